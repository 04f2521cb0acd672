"""The words that a tokenizer's readable pieces spell."""

from __future__ import annotations

import re
from collections.abc import Sequence

_MARK = "▁"
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_DECODER = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + place): byte for place, byte in enumerate(_OTHERS)}
"""The byte that byte-level BPE means by a letter: a printable one stands for itself, the others for letters from
U+0100 on."""

_RAW = re.compile(rf"(?:{_MARK}|<0x[0-9A-F]{{2}}>)+")
_SPECIAL = re.compile(r"</?[a-z]\w*>|\[(?:CLS|SEP|MASK|PAD|UNK)\]|<\|\w+\|>")
_JOINERS = "\u200c\u200d"
"""They have no shape of their own, but decide that of the letters and emoji at their sides."""
_WORD = re.compile(rf"\w+(?:['’\-{_JOINERS}]\w+)*|[^\w\s]+")


def is_special(token: str) -> bool:
    """Whether a token is special, such as ``<s>``, ``[CLS]``, ``<start_of_turn>`` or ``<|endoftext|>``."""
    return _SPECIAL.fullmatch(token) is not None


def readable(piece: bytes) -> str:
    """A piece as text, ``▁`` for a space; ``<0xC3>`` for each of its bytes where it is part of a letter."""
    try:
        return piece.decode("utf-8").replace(" ", _MARK)
    except UnicodeDecodeError:
        return "".join(_MARK if byte == 0x20 else f"<0x{byte:02X}>" for byte in piece)


def group_into_words_or_tokens(tokens: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Words, as `group_into_words` merges them; tokens of which none says where a word begins are words themselves."""
    if any(_MARK in token for token in tokens):
        return group_into_words(tokens)
    return [(token, [place]) for place, token in enumerate(tokens)]


def group_into_words(tokens: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Merge pieces into words: ``▁`` stands for a space, ``<0xC3>`` for one byte of a letter.

    Punctuation makes words of its own; an apostrophe or a hyphen within a word does not.

    Args:
        tokens: Readable pieces, in the order of the text.

    Returns:
        The words in order, each with the positions of its tokens; special tokens are words of their own. Every
        position is in exactly one word.

    Example:
        >>> group_into_words(["▁did", "n", "'t", "▁cross", ".", "</s>"])
        [("didn't", [0, 1, 2]), ('cross', [3]), ('.', [4]), ('</s>', [5])]
    """
    merged: list[tuple[str, list[int]]] = []
    run: list[int] = []
    for position, token in enumerate(tokens):
        if is_special(token):
            merged += [*_words_of_run(tokens, run), (token, [position])]
            run = []
        else:
            run.append(position)
    return merged + _words_of_run(tokens, run)


def _words_of_run(tokens: Sequence[str], run: Sequence[int]) -> list[tuple[str, list[int]]]:
    """The words of pieces that are all text; a piece belongs to the word that its last byte lies in."""
    pieces = [_bytes(tokens[position]) for position in run]
    # A byte that is no letter becomes one surrogate, which is one byte again when encoded: places can be counted.
    text = b"".join(pieces).decode("utf-8", "surrogateescape")
    found = [(match.group(), _size(text[: match.end()])) for match in _WORD.finditer(text)]
    if not found:
        return [(_shown(text), list(run))] if run else []
    positions: list[list[int]] = [[] for _ in found]
    end, word = 0, 0
    for position, piece in zip(run, pieces, strict=True):
        end += len(piece)
        # A space belongs to the word after it, and what follows the last word to that one.
        while word + 1 < len(found) and found[word][1] < end:
            word += 1
        positions[word].append(position)
    return [(_shown(word), own) for (word, _), own in zip(found, positions, strict=True) if own]


def _bytes(token: str) -> bytes:
    if _RAW.fullmatch(token):
        return bytes(0x20 if part == _MARK else int(part[3:5], 16) for part in re.findall(rf"{_MARK}|<0x..>", token))
    return token.replace(_MARK, " ").encode("utf-8", "replace")


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))


def _shown(text: str) -> str:
    """Text in which all that is no letter or sign is one mark, so that no terminal obeys it."""
    return "".join(letter if letter.isprintable() or letter in _JOINERS else "�" for letter in text.strip())
