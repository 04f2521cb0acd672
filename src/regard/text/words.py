"""Groups of tokens that form words, for display."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise

_SPACE = "▁"
_BYTE_TOKEN = re.compile(rf"(?:{_SPACE}|<0x[0-9A-F]{{2}}>)+")
_SPECIAL = re.compile(r"</?[a-z]\w*>|\[(?:CLS|SEP|MASK|PAD|UNK)\]|<\|\w+\|>")
_JOINERS = "\u200c\u200d"
"""Invisible, but they determine the shape of the letters and emoji next to them."""
_BOUNDARY = re.compile(r"</?s>|<pad>|\[(?:CLS|SEP|PAD)\]|<\|\w+\|>")
_WHOLE_WORD = re.compile(r"<mask>|\[(?:MASK|UNK)\]")
"""Special tokens that stand for a word whose space they include."""
_SPACED = re.compile(r"[^\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
"""What has no character with Unicode's property White_Space."""
_WORD = re.compile(rf"\w+(?:['’\-{_JOINERS}]\w+)*|[^\w\s]+")


def is_special(token: str) -> bool:
    """Whether a token is special, such as ``<s>``, ``[CLS]``, ``<start_of_turn>`` or ``<|endoftext|>``."""
    return _SPECIAL.fullmatch(token) is not None


def group_into_words_or_tokens(tokens: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Words as in `group_into_words`; if no token has a space, each token is a word."""
    if any(_SPACE in token for token in tokens):
        return group_into_words(tokens)
    return [(token, [position]) for position, token in enumerate(tokens)]


def group_into_words(tokens: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Group tokens into words.

    Punctuation forms separate words, except for an apostrophe or a hyphen within a word.

    Args:
        tokens: Tokens of a text in order, as `BaseTokenizer.convert_ids_to_tokens` returns them: ``▁`` is a space,
            ``<0xC3>`` one byte of a character.

    Returns:
        The words in order, each with the positions of its tokens. A special token is one word. Each position is in
        exactly one word.

    Example:
        >>> group_into_words(["▁did", "n", "'t", "▁cross", ".", "</s>"])
        [("didn't", [0, 1, 2]), ('cross', [3]), ('.', [4]), ('</s>', [5])]
    """
    words: list[tuple[str, list[int]]] = []
    for special, group in groupby(range(len(tokens)), lambda position: is_special(tokens[position])):
        run = list(group)
        if special:
            words += [(tokens[position], [position]) for position in run]
            continue
        found, indices = _split(_WORD, [tokens[position] for position in run])
        positions: list[list[int]] = [[] for _ in found]
        for position, index in zip(run, indices, strict=True):
            positions[index].append(position)
        words += [(_printable(word), own) for word, own in zip(found, positions, strict=True) if own]
    return words


def word_indices(tokens: Sequence[str]) -> list[int]:
    """The index of each token's word, for words that white space separates; -1 for tokens that begin or end a text.

    Example:
        >>> word_indices(["<s>", "well", "-", "known", "▁cat", "s", "</s>"])
        [-1, 0, 0, 0, 1, 1, -1]
    """
    is_boundary = [_BOUNDARY.fullmatch(token) is not None for token in tokens]
    spelled = [
        _SPACE if boundary else _SPACE * bool(_WHOLE_WORD.fullmatch(token)) + token
        for token, boundary in zip(tokens, is_boundary, strict=True)
    ]
    indices = _split(_SPACED, spelled)[1]
    return [-1 if boundary else index for index, boundary in zip(indices, is_boundary, strict=True)]


def _split(pattern: re.Pattern[str], tokens: Sequence[str]) -> tuple[list[str], list[int]]:
    """The words in the text of tokens, and for each token the index of the word of its last byte that is not a space.

    A space belongs to the word after it; what follows the last word belongs to that word. A text without words counts
    as one word.
    """
    encoded = [_to_bytes(token) for token in tokens]
    # Invalid bytes become surrogates, each of which is one byte again when encoded, so that offsets can be counted.
    text = b"".join(encoded).decode("utf-8", "surrogateescape")
    matches = list(pattern.finditer(text))
    # Where each word but the last ends, in characters and in bytes.
    borders = [0, *(match.end() for match in matches[:-1])]
    ends = list(accumulate(len(text[at:end].encode("utf-8", "surrogateescape")) for at, end in pairwise(borders)))
    starts = accumulate(map(len, encoded), initial=0)
    lasts = [start + len(token.rstrip() or token) for start, token in zip(starts, encoded, strict=False)]
    return [match.group() for match in matches] or [text], [bisect_left(ends, last) for last in lasts]


def _to_bytes(token: str) -> bytes:
    if _BYTE_TOKEN.fullmatch(token):
        return bytes.fromhex(token.replace(_SPACE, "20").replace("<0x", "").replace(">", ""))
    return token.replace(_SPACE, " ").encode("utf-8", "replace")


def _printable(text: str) -> str:
    """Text with � for each character that is not printable, so that none controls a terminal."""
    return "".join(character if character.isprintable() or character in _JOINERS else "�" for character in text.strip())
