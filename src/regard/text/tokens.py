"""What the spelling of a token says: whether it is special, where a word begins, and which bytes it has."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from itertools import pairwise

from regard.text.byte_level import decode_entry, readable_bytes

SPACE = "▁"
"""A space before a word, in SentencePiece and in `normalize_tokens`."""

_SPECIAL = re.compile(
    r"</?[A-Za-z][\w-]*>"  # <s>, </s>, <pad>, <extra_id_0>, <start_of_turn>
    r"|\[(?:/?[A-Z][A-Z0-9_]*|[gs]MASK|unused\d+)\]"  # [CLS], [INST], [/INST], [unused12]
    r"|<\|[^\s|<>]+\|>|<｜[^\s｜<>]+｜>"  # <|endoftext|>, <|im_start|>, <｜end▁of▁sentence｜>
    r"|>>\w+<<",  # >>deu<<, the target language of OPUS-MT
    re.ASCII,
)
_CONTINUES = re.compile(r"##(?=.)", re.DOTALL)
"""Before a WordPiece token that continues a word."""
_BYTES_OR_SPACES = re.compile(rf"(?:{SPACE}|<0x[0-9A-F]{{2}}>)+")
_WHITE_SPACE_ENTRY = re.compile("[ĠĊĉč]+")
"""Spaces, line ends and tabs in a byte-level vocabulary."""


def is_special(token: str) -> bool:
    """Whether a token is not text, by its spelling.

    Such are ``<s>``, ``<extra_id_0>`` and ``<start_of_turn>``; ``[CLS]``, ``[INST]`` and ``[unused12]``;
    ``<|im_start|>`` and ``<｜end▁of▁sentence｜>``; ``>>deu<<``.

    Examples:
        >>> [token for token in ["<s>", "▁a", "<0xC3>", "[SEP]", "<|eot_id|>"] if is_special(token)]
        ['<s>', '[SEP]', '<|eot_id|>']
    """
    return _SPECIAL.fullmatch(token) is not None


def normalize_tokens(tokens: Sequence[str]) -> list[str]:
    r"""Spell the tokens of any tokenizer alike: ``▁`` is a space, ``<0xC3>`` one byte of a split character.

    Tokens that have ``▁`` already, and special tokens, stay as they are. Others are, by the first that occurs:

    - entries of a byte-level vocabulary, where a token begins with ``Ġ`` (GPT-2, Llama 3, Qwen): ``Ġcaf``, ``Ã©``;
    - WordPiece, where a token begins with ``##`` (BERT): ``un``, ``##related``;
    - tokens with ``</w>`` at the end of a word (CLIP), or with ``@@`` before the rest of it (subword-nmt);
    - tokens that begin with a space;
    - a byte-level vocabulary without spaces, where their bytes are UTF-8 that is not ASCII, as ``ä½łå¥½`` (Chinese).

    If there is none of these, tokens do not say where words begin, and stay as they are.

    Args:
        tokens: Tokens of a text in order: those of `BaseTokenizer.convert_ids_to_tokens`, or entries of a vocabulary as
            transformers' ``convert_ids_to_tokens`` returns them.

    Examples:
        >>> normalize_tokens(["ĠcafÃ©", "s", "Ċ"]), normalize_tokens(["[CLS]", "un", "##related"])
        (['▁café', 's', '\n'], ['[CLS]', '▁un', 'related'])
    """
    regular = [index for index, token in enumerate(tokens) if not is_special(token)]
    spelled = list(tokens)
    for index, token in zip(regular, _normalize([tokens[index] for index in regular]), strict=True):
        spelled[index] = token
    return spelled


def token_bytes(token: str) -> bytes:
    r"""The UTF-8 bytes of a token of `normalize_tokens`.

    Examples:
        >>> token_bytes("▁a"), token_bytes("<0xC3>")
        (b' a', b'\xc3')
    """
    if _BYTES_OR_SPACES.fullmatch(token):
        return bytes.fromhex(token.replace(SPACE, "20").replace("<0x", "").replace(">", ""))
    return token.replace(SPACE, " ").encode("utf-8", "replace")


def _normalize(tokens: list[str]) -> list[str]:
    """The same without special tokens."""
    if any(SPACE in token for token in tokens):
        return tokens
    if any(token.startswith("Ġ") or _WHITE_SPACE_ENTRY.fullmatch(token) for token in tokens):
        return [_from_byte_level(token) for token in tokens]
    if any(map(_CONTINUES.match, tokens)):
        return [token[2:] if _CONTINUES.match(token) else SPACE + token for token in tokens]
    if any(token.endswith("</w>") for token in tokens):
        return _from_suffixes([(token.removesuffix("</w>"), token.endswith("</w>")) for token in tokens])
    if any(token.endswith("@@") for token in tokens):
        return _from_suffixes([(token.removesuffix("@@"), not token.endswith("@@")) for token in tokens])
    if any(token.startswith(" ") for token in tokens):
        return [SPACE + token[1:] if token.startswith(" ") else token for token in tokens]
    return [_from_byte_level(token) for token in tokens] if _are_utf8_bytes("".join(tokens)) else tokens


def _from_byte_level(token: str) -> str:
    decoded = decode_entry(token)
    return token if decoded is None else readable_bytes(decoded)


def _from_suffixes(tokens: Sequence[tuple[str, bool]]) -> list[str]:
    """Tokens that mark the end of a word, each with whether it does, as tokens that mark its start."""
    starts = [True, *(ends for (_, ends), _ in pairwise(tokens))]
    return [SPACE * begins + token for (token, _), begins in zip(tokens, starts, strict=True)]


def _are_utf8_bytes(entries: str) -> bool:
    """Whether entries of a byte-level vocabulary are the start of a UTF-8 text that is not ASCII."""
    decoded = decode_entry(entries)
    try:  # the last character may be incomplete
        text = codecs.getincrementaldecoder("utf-8")().decode(decoded or b"")
    except UnicodeDecodeError:
        return False
    return not text.isascii()
