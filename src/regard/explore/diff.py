"""Which layers, tokens and words of two recordings belong together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from regard.explore.page_format import Alignment, LayerHeader, PageHeader
from regard.text.tokens import normalize_tokens
from regard.text.words import group_into_words


def counterparts(a: Sequence[LayerHeader], b: Sequence[LayerHeader]) -> list[int | None]:
    """The layer of `b` that each layer of `a` is compared with: the one of its name, else of its place in its kind.

    Example:
        >>> a = [{"name": "encoder.0", "kind": "encoder"}, {"name": "cross.0", "kind": "cross"}]
        >>> counterparts(a, [{"name": "bert.layer.0", "kind": "encoder"}])
        [0, None]
    """
    names = {layer["name"]: index for index, layer in enumerate(b)}
    found: list[int | None] = []
    for number, layer in enumerate(a):
        place = sum(other["kind"] == layer["kind"] for other in a[:number])
        same_kind = [index for index, other in enumerate(b) if other["kind"] == layer["kind"]]
        found.append(names.get(layer["name"], same_kind[place] if place < len(same_kind) else None))
    return found


def align_sequences(a: PageHeader, b: PageHeader) -> list[Alignment]:
    """The tokens and words that the texts of compared layers have in common, one alignment for each pair of texts."""
    layers = zip(a["layers"], counterparts(a["layers"], b["layers"]), strict=True)
    compared = [(layer, b["layers"][other]) for layer, other in layers if other is not None]
    pairs = dict.fromkeys((one[side], other[side]) for one, other in compared for side in ("queries", "keys"))
    return [
        _align(a["sequences"][one]["tokens"], b["sequences"][other]["tokens"], (one, other)) for one, other in pairs
    ]


def _align(a: Sequence[str], b: Sequence[str], sequences: tuple[int, int]) -> Alignment:
    words = [[text for text, _ in group_into_words(tokens)] for tokens in (a, b)]
    return {"sequences": sequences, "tokens": align(normalize_tokens(a), normalize_tokens(b)), "words": align(*words)}


def align(a: Sequence[str], b: Sequence[str]) -> list[tuple[int, int, int]]:
    """Align two texts by a longest common subsequence.

    Args:
        a: Tokens or words, of any number.
        b: The same of the other text.

    Returns:
        Runs ``(start_a, start_b, length)`` in order: ``a[start_a:start_a + length] == b[start_b:start_b + length]``.

    Memory:
        ``len(a) * len(b) / 8`` bytes for what is between the common beginning and the common end.

    Reference:
        H. Hyyrö, "Bit-parallel LCS-length computation revisited" (2004). `difflib.SequenceMatcher` finds fewer pairs,
        and takes cubic time where few distinct tokens repeat.

    Example:
        >>> align("the old cat sat".split(), "the cat sat".split())
        [(0, 0, 1), (2, 1, 2)]
    """
    start = _common_prefix(a, b)
    end = _common_prefix(a[start:][::-1], b[start:][::-1])
    middle = _longest_common_subsequence(a[start : len(a) - end], b[start : len(b) - end])
    pairs = [(index, index) for index in range(start)]
    pairs += [(start + index, start + other) for index, other in middle]
    pairs += [(len(a) - index, len(b) - index) for index in range(end, 0, -1)]
    runs: list[tuple[int, int, int]] = []
    for index, other in pairs:
        first, second, length = runs[-1] if runs else (-1, -1, 0)
        if (index, other) == (first + length, second + length):
            runs[-1] = first, second, length + 1
        else:
            runs.append((index, other, 1))
    return runs


def _common_prefix(a: Sequence[str], b: Sequence[str]) -> int:
    """The number of equal elements at the beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def _longest_common_subsequence(a: Sequence[str], b: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs of positions.

    ``rows[i]`` holds row i of the table of lengths L: bit j is 0 where L[i, j + 1] = L[i, j] + 1. One addition of
    integers of ``len(b)`` bits computes a row.
    """
    positions: dict[str, int] = {}
    for index, item in enumerate(b):
        positions[item] = positions.get(item, 0) | 1 << index
    ones = (1 << len(b)) - 1
    rows = [ones]
    for item in a:
        matches = positions.get(item, 0)
        row = rows[-1]
        rows.append((row + (row & matches) | row & ~matches) & ones)
    pairs = []
    i, j = len(a), len(b)
    while i and j:
        if rows[i] >> (j - 1) & 1:  # L[i, j] = L[i, j - 1]
            j -= 1
        elif rows[i - 1] >> (j - 1) & 1:  # L[i, j] is more than both of its neighbors, so a[i - 1] == b[j - 1]
            i, j = i - 1, j - 1
            pairs.append((i, j))
        else:  # L[i, j] = L[i - 1, j]
            i -= 1
    return pairs[::-1]
