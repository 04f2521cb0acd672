"""How tokens are written in labels: without the marks of tokenizers, and with nothing invisible."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from regard.text.words import is_special

SPACE = "▁"
_BYTE_LEVEL = str.maketrans({"Ġ": SPACE, "Ċ": "\n", "ĉ": "\t", "č": "\r"})
"""Space, line feed, tab and carriage return in byte-level vocabularies such as GPT-2's."""
_VISIBLE = {"\n": "↵", "\t": "⇥", SPACE: "␣"}
_INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_ZERO_WIDTH_JOINER = "\u200d"  # holds emoji together


def token_labels(tokens: Sequence[str]) -> tuple[str, ...]:
    """The label of each token of a text.

    A space before a token is not shown. A token that continues a word has a dot before it, if the vocabulary marks
    spaces. Line breaks and tabs are arrows, and other invisible characters are replaced by their codes.

    Args:
        tokens: Tokens as `BaseTokenizer.convert_ids_to_tokens` or transformers return them: ``▁`` or ``Ġ`` is a space,
            ``##`` continues a word.

    Example:
        >>> token_labels(["▁The", "▁cat", "s", ".", "</s>"])
        ('The', 'cat', '·s', '.', '</s>')
        >>> token_labels(["The", "Ġcat", "s", "Ċ"])
        ('The', 'cat', '·s', '↵')
        >>> token_labels(["a", "cat"])
        ('a', 'cat')
    """
    if not any(token.startswith(SPACE) for token in tokens) and any(token[:1] in ("Ġ", "Ċ") for token in tokens):
        tokens = [token.translate(_BYTE_LEVEL) for token in tokens]
    marked = any(token.startswith(SPACE) for token in tokens)
    return tuple(_label(token, continues=marked and index > 0) for index, token in enumerate(tokens))


def _label(token: str, *, continues: bool) -> str:
    if is_special(token):
        return token
    if token.startswith("##") and len(token) > 2:
        return f"·{_visible(token[2:])}"
    return "·" * (continues and token[:1].isalnum()) + _visible(token.removeprefix(SPACE) or SPACE)


def _visible(text: str) -> str:
    return re.sub(".", lambda match: _VISIBLE.get(match[0]) or _code(match[0]), text, flags=re.DOTALL)


def _code(character: str) -> str:
    if unicodedata.category(character) in _INVISIBLE and character != _ZERO_WIDTH_JOINER:
        return f"⟨{ord(character):04X}⟩"
    return character
