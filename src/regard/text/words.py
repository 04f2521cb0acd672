"""Groups of tokens that form words."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise

from regard.text.display import EMPTY, escape_invisible
from regard.text.tokens import SPACE, is_special, normalize_tokens, token_bytes

_BYTES = re.compile(r"(?:<0x[0-9A-F]{2}>)+")
_LINE_END = re.compile(rf"[\s{SPACE}]*\n[\s{SPACE}]*|<0x0A>")
_JOINERS = "\u200c\u200d"
_BOUNDARY = re.compile(r"</?s>|<pad>|\[(?:CLS|SEP|PAD)\]|<\|\w+\|>")
_WHOLE_WORD = re.compile(r"<mask>|\[(?:MASK|UNK)\]")
"""Special tokens that stand for a word whose space they include."""
_SPACED = re.compile(r"[^\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
"""What has no character with Unicode's property White_Space."""
_WORD = re.compile(rf"\w+(?:['’\-{_JOINERS}]\w+)*|[^\w\s]+")
_ANNOTATED_WORD = re.compile(rf"\w+(?:[.'’/&@\-{_JOINERS}]\w+|(?<=\d)[,:]\d\w*)*|([^\w\s])\1*")
_INVALID_BYTE = re.compile("[\udc80-\udcff]")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


def group_into_words(tokens: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Group tokens into words.

    Punctuation and line ends form separate words, except for an apostrophe or a hyphen within a word. If tokens do not
    say where words begin, each token is a word, except for the bytes of a split character.

    Args:
        tokens: Tokens of a text in order, as the vocabulary spells them or as `BaseTokenizer.convert_ids_to_tokens`
            returns them; `normalize_tokens` lists how tokenizers mark words.

    Returns:
        The words in order, each with the positions of its tokens. A special token is one word. Each position is in
        exactly one word, and those of a word are neighbors. What is invisible in a word is escaped.

    Examples:
        >>> group_into_words(["▁did", "n", "'t", "▁cross", ".", "</s>"])
        [("didn't", [0, 1, 2]), ('cross', [3]), ('.', [4]), ('</s>', [5])]
        >>> group_into_words(["[CLS]", "un", "##related", "[SEP]"])
        [('[CLS]', [0]), ('unrelated', [1, 2]), ('[SEP]', [3])]
    """
    spelled = normalize_tokens(tokens)
    specials = [is_special(token) for token in tokens]
    marks_words = any(SPACE in token for token, special in zip(spelled, specials, strict=True) if not special)

    def is_single(position: int) -> bool:
        token = spelled[position]
        if specials[position] or _LINE_END.fullmatch(token):
            return True
        return not marks_words and _BYTES.fullmatch(token) is None

    words: list[tuple[str, list[int]]] = []
    for single, group in groupby(range(len(spelled)), is_single):
        run = list(group)
        if single:
            words += [(_readable_token(spelled[position], specials[position]), [position]) for position in run]
            continue
        text, ends, indices = _split(_WORD, [spelled[position] for position in run])
        start = 0
        for place, items in groupby(zip(indices, run, strict=True), lambda item: item[0]):
            positions = [position for _, position in items]
            # A token can hold several words, such as "U.S.", of which only the last has an index: they are one.
            words.append((_readable(text[start : ends[place]].strip()), positions))
            start = ends[place]
    return words


def word_indices(tokens: Sequence[str]) -> list[int]:
    """The index of each token's word among those of `group_into_words`, (tokens,).

    Examples:
        >>> word_indices(["<s>", "▁well", "-", "known", "▁cat", "s", ".", "</s>"])
        [0, 1, 1, 1, 2, 2, 3, 4]
    """
    return [index for index, (_, positions) in enumerate(group_into_words(tokens)) for _ in positions]


def white_space_word_indices(tokens: Sequence[str]) -> list[int]:
    """The index of each token's word, for words that white space separates; -1 for tokens that begin or end a text.

    Examples:
        >>> white_space_word_indices(["<s>", "well", "-", "known", "▁cat", "s", "</s>"])
        [-1, 0, 0, 0, 1, 1, -1]
    """
    is_boundary = [_BOUNDARY.fullmatch(token) is not None for token in tokens]
    spelled = [
        SPACE if boundary else SPACE * bool(_WHOLE_WORD.fullmatch(token)) + token
        for token, boundary in zip(tokens, is_boundary, strict=True)
    ]
    *_, indices = _split(_SPACED, spelled)
    return [-1 if boundary else index for index, boundary in zip(indices, is_boundary, strict=True)]


def split_words(text: str) -> list[str]:
    """Split a text into words as annotated data have them: punctuation at the sides of a word is a word of its own.

    Within a word stay apostrophes, hyphens, periods, slashes, ``&`` and ``@``, and commas and colons between digits. In
    a script without spaces, what stands between punctuation is one word.

    Examples:
        >>> split_words("Dr. Smith's A-Team paid $1,000.50 (in the U.S.)...")
        ['Dr', '.', "Smith's", 'A-Team', 'paid', '$', '1,000.50', '(', 'in', 'the', 'U.S', '.', ')', '...']
    """
    matches = _ANNOTATED_WORD.finditer(_NOT_ASCII.sub(_as_letter, text))
    return [text[match.start() : match.end()] for match in matches]


def first_tokens(words: Sequence[str], offsets: Sequence[tuple[int, int]]) -> list[int]:
    """The position of the first token of each word, or -1 for a word without tokens.

    The space before a word belongs to it, also if it is a token of its own, as in byte-level vocabularies.

    Args:
        words: The words of a text, which spaces join.
        offsets: Where each token begins and ends in the text; (0, 0) for special tokens.

    Examples:
        >>> first_tokens(["a", "walk"], [(0, 0), (0, 1), (1, 2), (2, 4), (4, 6), (0, 0)])
        [1, 2]
    """
    positions, token, start = [], 0, 0
    for index, word in enumerate(words):
        end = start + len(word) + (index > 0)  # with the space before it
        while token < len(offsets) and offsets[token][1] <= start:  # special, or of the word before
            token += 1
        positions.append(token if token < len(offsets) and offsets[token][0] < end else -1)
        start = end
    return positions


def _split(pattern: re.Pattern[str], tokens: Sequence[str]) -> tuple[str, list[int], list[int]]:
    """The text of tokens; where each word in it ends; and the word of each token's last byte that is not a space.

    A space belongs to the word after it; what follows the last word belongs to that word. A text without words counts
    as one word.
    """
    encoded = [token_bytes(token) for token in tokens]
    # Invalid bytes become surrogates, each of which is one byte again when encoded, so that offsets can be counted.
    text = b"".join(encoded).decode("utf-8", "surrogateescape")
    matches = list(pattern.finditer(_NOT_ASCII.sub(_as_letter, text)))
    # Where each word but the last ends, in characters and in bytes.
    borders = [match.end() for match in matches[:-1]]
    lengths = (len(text[at:end].encode("utf-8", "surrogateescape")) for at, end in pairwise([0, *borders]))
    ends = list(accumulate(lengths))
    starts = accumulate(map(len, encoded), initial=0)
    lasts = [start + len(token.rstrip() or token) for start, token in zip(starts, encoded, strict=False)]
    return text, [*borders, len(text)], [bisect_left(ends, last) for last in lasts]


def _as_letter(match: re.Match[str]) -> str:
    r"""A letter for a combining mark, which ``\w`` leaves out, and for a byte of a character that is not complete."""
    character = match.group()
    return "_" if unicodedata.category(character)[0] == "M" or _INVALID_BYTE.match(character) else character


def _readable_token(token: str, is_special_token: bool) -> str:
    """A token that is a word of its own; a line end is ``↵``."""
    if _LINE_END.fullmatch(token):
        return escape_invisible("\n" * max(1, token.count("\n")))
    return _readable(token if is_special_token else token.replace(SPACE, " "))


def _readable(text: str) -> str:
    """A word without the spaces around it; � replaces bytes that are not a character."""
    return escape_invisible(_INVALID_BYTE.sub("�", text).strip(" ")) or EMPTY
