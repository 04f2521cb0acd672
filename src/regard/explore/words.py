"""The words that a tokenizer's readable pieces spell."""

from __future__ import annotations

import re
from collections.abc import Sequence

_MARK = "▁"
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_SPECIAL = re.compile(r"</?[a-z]+>")
_WORD = re.compile(r"\w+(?:['’\-]\w+)*|[^\w\s]+")


def is_special(token: str) -> bool:
    """Whether a token is no text but a mark of the model's, as ``<s>`` and ``</s>``."""
    return _SPECIAL.fullmatch(token) is not None


def words(tokens: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Merge pieces into words: ``▁`` stands for a space, ``<0xC3>`` for one byte of a letter.

    Punctuation makes words of its own, as in a text that is read aloud; an apostrophe or a hyphen within a word does not.

    Args:
        tokens: Readable pieces, in the order of the text.

    Returns:
        The words in order, each with the positions of its tokens; special tokens are words of their own. Every
        position is in exactly one word.

    Example:
        >>> words(["▁did", "n", "'t", "▁cross", ".", "</s>"])
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
    """The words of pieces among which no special token stands; a piece belongs to the word that its end lies in."""
    # Bytes are told apart from text by U+DC80 to U+DCFF, one character for each, so that places can be counted.
    pieces = [_plain(tokens[position]) for position in run]
    text = "".join(pieces)
    letters = "".join("x" if "\udc80" <= letter <= "\udcff" else letter for letter in text)
    spans = [match.span() for match in _WORD.finditer(letters)]
    if not spans:
        return [(_spelt(text), list(run))] if run else []
    positions: list[list[int]] = [[] for _ in spans]
    end, word = 0, 0
    for position, piece in zip(run, pieces, strict=True):
        end += len(piece)
        while word + 1 < len(spans) and spans[word + 1][0] < end:
            word += 1
        positions[word].append(position)
    found = [(_spelt(text[start:stop]), own) for (start, stop), own in zip(spans, positions, strict=True)]
    return [(word, own) for word, own in found if own]


def _plain(token: str) -> str:
    byte = _BYTE.fullmatch(token)
    if byte is None:
        return token.replace(_MARK, " ")
    value = int(byte[1], 16)
    return chr(value) if value < 0x80 else chr(0xDC00 + value)


def _spelt(text: str) -> str:
    """Text whose bytes are read as UTF-8 again; what is no letter shows as one mark, so that no terminal obeys it."""
    letters = text.encode("utf-8", "surrogateescape" if not _lone(text) else "replace").decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() else "�" for letter in letters.strip())


def _lone(text: str) -> bool:
    """Whether there are surrogates that stand for no byte."""
    return any("\ud800" <= letter <= "\udfff" and not "\udc80" <= letter <= "\udcff" for letter in text)
