"""What Hugging Face's ``tokenizers`` lacks: errors instead of panics, and tokens as readable text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import tokenizers
from tokenizers import decoders

from regard.errors import InvalidFile
from regard.text.byte_level import decode_entry, readable_bytes

TOKENIZER_FILE = "tokenizer.json"


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Turn a panic of ``tokenizers``, which is not an `Exception`, into an error; odd files make its Rust code panic.

    Raises:
        InvalidFile: With the reason.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # the bindings do not export the class
            raise
        raise InvalidFile(f"{TOKENIZER_FILE}: cannot be used as a tokenizer: {error}") from None


def readable_tokens(backend: tokenizers.Tokenizer, ids: Sequence[int]) -> list[str]:
    """Tokens of any ``tokenizer.json`` as readable text: ``▁`` is a space, ``<0xC3>`` one byte of a character."""
    with panics_as_errors():
        added = backend.get_added_tokens_decoder()
        return [_readable_token(backend, index, index in added) for index in ids]


def _readable_token(backend: tokenizers.Tokenizer, index: int, is_added: bool) -> str:
    entry, decoder = backend.id_to_token(index) or "", backend.decoder
    if is_added or decoder is None:
        return entry
    text = backend.decode([index], skip_special_tokens=False)
    if ("\ufffd" in text or "▁" in text) and (decoded := decode_entry(entry)) is not None:
        return readable_bytes(decoded)
    if entry.startswith(("Ġ", "▁", " ")):
        return "▁" + text.lstrip(" ")
    if isinstance(decoder, decoders.WordPiece):
        return entry.removeprefix(decoder.prefix) if entry.startswith(decoder.prefix) else "▁" + entry
    return entry if "\ufffd" in text else text
