"""Where a text occurs among tokens."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise

from regard.text.tokens import SPACE, is_special, normalize_tokens, token_bytes

_PART = re.compile(r"[A-Za-z0-9_]+|\S")
"""What has no space inside, whatever the tokenizer: some have spaces around punctuation or Chinese characters."""
_WITHOUT_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff"
_LETTER = rf"[^\W{_WITHOUT_SPACES}]"
"""A letter or digit of the scripts that have spaces between words."""


def find_tokens(tokens: Sequence[str], text: str) -> list[range]:
    r"""Find each occurrence of a text among tokens.

    The text is searched as whole words. White space between words may differ, and around punctuation there need not be
    any, because not all tokenizers keep it. If the text does not occur as it is written, case is ignored.

    Args:
        tokens: Tokens of a text in order, of any tokenizer.
        text: The text to search for; it may have special tokens.

    Returns:
        The positions of the tokens of each occurrence, with those that it shares with the text around it: the last
        token of ``Stop.`` may be ``.\n``.

    Examples:
        >>> find_tokens(["▁The", "▁ti", "red", "▁cat", "▁was", "▁tired", ".", "</s>"], "tired")
        [range(1, 3), range(5, 6)]
    """
    pattern = _as_pattern(text)
    spelled = normalize_tokens(tokens)
    spellings = [spelled]
    if not any(SPACE in token for token in spelled if not is_special(token)):
        spellings.append([token if token.startswith("<0x") else SPACE + token for token in spelled])
    for flags in (0, re.IGNORECASE):
        for spelling in spellings if pattern else ():
            if found := _find(pattern, flags, list(map(token_bytes, spelling))):
                return found
    return []


def _as_pattern(text: str) -> str:
    """A regular expression for a text; empty if the text has only white space."""
    parts = list(_PART.finditer(text))
    pattern = "".join(
        re.escape(part[0]) + (r"\s+" if part.end() < after.start() and _is_word(part[0], after[0]) else r"\s*")
        for part, after in pairwise(parts)
    )
    if not parts:
        return ""
    before = rf"(?<!{_LETTER})" if _is_word(parts[0][0]) else ""
    return before + pattern + re.escape(parts[-1][0]) + (rf"(?!{_LETTER})" if _is_word(parts[-1][0]) else "")


def _is_word(*parts: str) -> bool:
    return all(re.match(_LETTER, part) for part in parts)


def _find(pattern: str, flags: int, encoded: Sequence[bytes]) -> list[range]:
    """The ranges of tokens that overlap with each match in their text."""
    text = b"".join(encoded).decode("utf-8", "surrogateescape")
    matches = list(re.finditer(pattern, text, flags))
    if not matches:
        return []
    # Matches are counted in characters, of which a token may hold a part: offsets of tokens are in bytes.
    offsets = [0, *accumulate(len(character.encode("utf-8", "surrogateescape")) for character in text)]
    ends = list(accumulate(map(len, encoded)))
    spans = [(offsets[match.start()], offsets[match.end()]) for match in matches]
    return [range(bisect_right(ends, start), bisect_left(ends, stop) + 1) for start, stop in spans]
