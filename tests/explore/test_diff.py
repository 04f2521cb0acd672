"""What two recordings have in common: aligned tokens and words, and layers that belong together."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.explore.diff import align, counterparts
from regard.explore.pack import pack
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording

TEXTS = st.lists(st.sampled_from("abcd"), max_size=14)


def pairs_of(runs) -> list[tuple[int, int]]:
    return [(a + index, b + index) for a, b, length in runs for index in range(length)]


def longest(a, b) -> int:
    """The length of a longest common subsequence by its recursive definition."""

    @cache
    def length(i: int, j: int) -> int:
        if i == len(a) or j == len(b):
            return 0
        if a[i] == b[j]:
            return 1 + length(i + 1, j + 1)
        return max(length(i + 1, j), length(i, j + 1))

    return length(0, 0)


@given(TEXTS, TEXTS)
def test_runs_are_a_longest_common_subsequence(a, b):
    runs = align(a, b)
    pairs = pairs_of(runs)
    assert all(a[i] == b[j] for i, j in pairs)
    assert all(i < k and j < m for (i, j), (k, m) in pairwise(pairs))
    assert len(pairs) == longest(a, b)
    # A run is as long as it can be.
    assert all((i + n, j + n) != (k, m) for (i, j, n), (k, m, _) in pairwise(runs))


@given(TEXTS, TEXTS, TEXTS)
def test_what_begins_and_ends_both_texts_is_aligned(start, end, middle):
    pairs = pairs_of(align([*start, *middle, *end], [*start, *end]))
    assert pairs[: len(start)] == [(index, index) for index in range(len(start))]
    assert len(pairs) == len(start) + len(end)


def test_repeated_tokens_take_no_longer_than_others():
    """`difflib.SequenceMatcher` takes minutes for this one."""
    runs = align(["x"] * 4096, ["x", "y"] * 2048)
    assert len(pairs_of(runs)) == 2048


def test_layers_belong_together_by_name_or_else_by_place_in_their_kind():
    def layers(*names):
        return [{"name": name, "kind": name.rsplit(".", 2)[-2]} for name in names]

    a = layers("encoder.0", "encoder.1", "decoder.0", "cross.0")
    assert counterparts(a, a) == [0, 1, 2, 3]
    assert counterparts(a, layers("encoder.1", "encoder.0")) == [1, 0, None, None]
    assert counterparts(a, layers("bert.cross.4", "bert.encoder.3")) == [1, None, None, 0]


def recording(tokens, name="encoder.0") -> Recording:
    query, key = torch.randn(2, 1, 1, len(tokens), 4)
    return Recording("", "", (Layer(name, "encoder", regard.weights(query, key), tuple(tokens), tuple(tokens)),))


def alignments(a, b):
    return pack(recording(a), recording(b))[0]["compare_with"]["alignments"]


def test_tokens_of_different_tokenizers_are_spelled_alike():
    [actual] = alignments(["▁the", "▁un", "related", "▁new"], ["the", "un", "##related", "old"])
    assert actual == {"sequences": (0, 0), "tokens": [(0, 0, 3)], "words": [(0, 0, 2)]}


def test_words_are_aligned_though_their_subwords_differ():
    [actual] = alignments(["▁too", "▁ti", "red", "."], ["▁too", "▁tired", "."])
    assert actual["tokens"] == [(0, 0, 1), (3, 2, 1)]
    assert actual["words"] == [(0, 0, 3)]


def test_each_pair_of_texts_that_some_layers_compare_is_aligned_once():
    def translator(source, target, name):
        sizes = {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}
        layers = []
        for kind, (queries, keys) in sizes.items():
            weights = regard.weights(torch.randn(1, 1, len(queries), 4), torch.randn(1, 1, len(keys), 4))
            layers += [Layer(f"{name}.{kind}.{index}", kind, weights, queries, keys) for index in range(2)]
        return Recording("", "", tuple(layers))

    source, target = ("a", "b", "c"), ("A", "B")
    header = pack(translator(source, target, "x"), translator(("a", "c"), target, "y"))[0]
    second = header["compare_with"]
    assert second["counterparts"] == list(range(6))
    assert [alignment["sequences"] for alignment in second["alignments"]] == [(0, 0), (1, 1)]
    assert [alignment["tokens"] for alignment in second["alignments"]] == [[(0, 0, 1), (2, 1, 1)], [(0, 0, 2)]]
