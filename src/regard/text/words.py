"""Groups of tokens that form words, for display."""

from __future__ import annotations

import re
from collections.abc import Sequence

_SPACE = "▁"
_BYTE_TOKEN = re.compile(rf"(?:{_SPACE}|<0x[0-9A-F]{{2}}>)+")
_SPECIAL = re.compile(r"</?[a-z]\w*>|\[(?:CLS|SEP|MASK|PAD|UNK)\]|<\|\w+\|>")
_JOINERS = "\u200c\u200d"
"""Invisible, but they determine the shape of the letters and emoji next to them."""
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
    run: list[int] = []
    for position, token in enumerate(tokens):
        if is_special(token):
            words += [*_group_run(tokens, run), (token, [position])]
            run = []
        else:
            run.append(position)
    return words + _group_run(tokens, run)


def _group_run(tokens: Sequence[str], run: Sequence[int]) -> list[tuple[str, list[int]]]:
    """The words of consecutive tokens that are not special; a token belongs to the word that has its last byte."""
    encoded = [_to_bytes(tokens[position]) for position in run]
    # Invalid bytes become surrogates, each of which is one byte again when encoded, so that offsets can be counted.
    text = b"".join(encoded).decode("utf-8", "surrogateescape")
    words = [(match.group(), _num_bytes(text[: match.end()])) for match in _WORD.finditer(text)]
    if not words:
        return [(_printable(text), list(run))] if run else []
    positions: list[list[int]] = [[] for _ in words]
    end, word = 0, 0
    for position, token in zip(run, encoded, strict=True):
        end += len(token)
        # A space belongs to the word after it; what follows the last word belongs to that word.
        while word + 1 < len(words) and words[word][1] < end:
            word += 1
        positions[word].append(position)
    return [(_printable(word), own) for (word, _), own in zip(words, positions, strict=True) if own]


def _to_bytes(token: str) -> bytes:
    if _BYTE_TOKEN.fullmatch(token):
        parts = re.findall(rf"{_SPACE}|<0x..>", token)
        return bytes(0x20 if part == _SPACE else int(part[3:5], 16) for part in parts)
    return token.replace(_SPACE, " ").encode("utf-8", "replace")


def _num_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))


def _printable(text: str) -> str:
    """Text with � for each character that is not printable, so that none controls a terminal."""
    return "".join(character if character.isprintable() or character in _JOINERS else "�" for character in text.strip())
