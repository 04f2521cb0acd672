"""How a token is displayed, whatever it holds: nothing invisible, nothing that controls a terminal, nothing endless."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from regard.text.tokens import SPACE, is_special, normalize_tokens

MAX_LENGTH = 32
"""Characters of a displayed token."""
EMPTY = "␣"
"""A token without text."""

_ARROWS = {"\n": "↵", "\t": "⇥"}
_WITHOUT_GLYPH = {"Cc", "Cf", "Zl", "Zp", "Zs", "Mn", "Mc", "Me"}
"""Categories that show nothing by themselves: controls, formats, spaces, and marks without a letter."""
_FILLERS = "\u115f\u1160\u2800\u3164\uffa0"
"""Letters of Hangul and a Braille pattern that are empty."""
_INVISIBLE = {"Cc", "Cf", "Zl", "Zp", "Cs"}
_JOINERS = "\u200c\u200d"
"""Invisible, but they determine the shape of the letters and emoji next to them."""
_ASCII_BYTE = re.compile("<0x([0-7][0-9A-F])>")
_CONTROLS = re.compile("[\u202a-\u202e\u2066-\u2069\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What changes the order of the text after it, and controls except tabs and line ends. Joiners, and marks of a single
letter's direction, are ordinary in texts from right to left."""


def display_tokens(tokens: Sequence[str], max_length: int | None = MAX_LENGTH) -> list[str]:
    r"""Each token of a text as it is displayed.

    The mark of a space is dropped and bytes are decoded, as `normalize_tokens` does; a token without text is ``␣``, a
    line end ``↵``. Characters that are invisible or control a terminal are replaced by pictures or codes.

    Args:
        tokens: Tokens of a text in order, of any tokenizer.
        max_length: Characters of a displayed token; longer ones end with ``…``. None: no limit.

    Examples:
        >>> display_tokens(["Ġna", "Ã¯", "ve", "Ċ", "<|endoftext|>"]), display_tokens(["▁a", "▁", "<0x09>", "\u202e"])
        (['na', 'ï', 've', '↵', '<|endoftext|>'], ['a', '␣', '⇥', '⟨202E⟩'])
    """
    return [_display(token, max_length) for token in normalize_tokens(tokens)]


def is_blank(text: str) -> bool:
    r"""Whether a text shows nothing: it has only white space, controls, and other characters without a glyph.

    Examples:
        >>> is_blank("\u200b \ufeff"), is_blank("\u200bא")
        (True, False)
    """
    return all(character in _FILLERS or unicodedata.category(character) in _WITHOUT_GLYPH for character in text)


def escape_invisible(text: str) -> str:
    r"""Text in which a picture or code replaces each character that is invisible or controls a terminal.

    Joiners stay, unless there is nothing else.

    Examples:
        >>> escape_invisible("a\tb\x1b[2J\u202e")
        'a⇥b␛[2J⟨202E⟩'
    """
    return "".join(_escape_each(text))


def escape_controls(text: str) -> str:
    r"""Running text in which only characters that control a terminal or change the order of text are escaped.

    Examples:
        >>> escape_controls("a \u202egnp.exe\n\x1b[2J")
        'a ⟨202E⟩gnp.exe\n␛[2J'
    """
    return _CONTROLS.sub(lambda match: _escape(match.group()), text)


def _display(token: str, max_length: int | None) -> str:
    """A token of `normalize_tokens`."""
    if byte := _ASCII_BYTE.fullmatch(token):
        token = chr(int(byte[1], 16))
    text = token if is_special(token) else token.removeprefix(SPACE).replace(SPACE, " ")
    if all(unicodedata.category(character) == "Zs" for character in text):
        text = EMPTY * max(1, len(token))
    if max_length is None:
        return escape_invisible(text)
    characters = _escape_each(text[: max_length + 1])  # an escape is several characters
    length = sum(map(len, characters))
    if length <= max_length:
        return "".join(characters)
    while length >= max_length:
        length -= len(characters.pop())
    return "".join(characters) + "…"


def _escape_each(text: str) -> list[str]:
    """Each character, or its picture or code."""
    if text.strip(_JOINERS):
        return [character if character in _JOINERS else _escape(character) for character in text]
    return list(map(_escape, text))


def _escape(character: str) -> str:
    """A line end or tab as an arrow, which more fonts have than its picture; others as their picture or code."""
    code = ord(character)
    if character in _ARROWS:
        return _ARROWS[character]
    if code < 0x20 or code == 0x7F:
        return chr(0x2400 + code) if code < 0x20 else "␡"
    return f"⟨{code:04X}⟩" if unicodedata.category(character) in _INVISIBLE else character
