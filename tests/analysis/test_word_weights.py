"""Attention between words: subwords are merged, heads averaged, and one word selects its rows and columns."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.analysis import save_table, word_weights
from regard.errors import InvalidArgument
from regard.recordings import Layer, Recording

TOKENS = ("<s>", "▁the", "▁ca", "t", "▁saw", "▁the", "</s>")
WORDS = ("<s>", "the", "cat", "saw", "the", "</s>")


@pytest.fixture
def recording() -> Recording:
    torch.manual_seed(0)
    layers = [
        Layer(f"encoder.{index}", "encoder", regard.weights(*torch.randn(2, 1, 2, 7, 4)), TOKENS, TOKENS)
        for index in range(2)
    ]
    return Recording("", "", layers)


def test_keys_of_a_word_are_summed_and_queries_averaged(recording):
    words = word_weights(recording, "encoder.1")
    assert words.query_words == words.key_words == WORDS
    dense = recording.layers[1].weights.dense()[0].double().mean(0)  # (queries, keys)
    keys = torch.stack([dense[:, 0], dense[:, 1], dense[:, 2:4].sum(1), *dense[:, 4:].unbind(1)], 1)
    expected = torch.stack([keys[0], keys[1], keys[2:4].mean(0), *keys[4:]])
    torch.testing.assert_close(words.weights, expected, rtol=0, atol=1e-6)
    assert (words.layers, words.num_heads, words.is_cross) == (("encoder.1",), 2, False)


def test_without_a_layer_all_are_averaged_and_without_merging_tokens_stay(recording):
    words = word_weights(recording, merge=False)
    assert words.key_words == ("<s>", "the", "ca", "t", "saw", "the", "</s>")
    expected = torch.stack([layer.weights.dense()[0] for layer in recording.layers]).mean((0, 1)).double()
    torch.testing.assert_close(words.weights, expected, rtol=0, atol=1e-6)


def test_a_table_has_every_weight_or_those_of_one_word(recording, tmp_path):
    words = word_weights(recording)
    table = words.columns()
    assert list(table) == ["query", "key", "query_token", "key_token", "weight"]
    for query, key, query_token, key_token, weight in zip(*table.values(), strict=True):
        assert (query_token, key_token, weight) == (WORDS[query], WORDS[key], words.weights[query, key].item())
    assert len(set(zip(table["query"], table["key"], strict=True))) == 36
    of_word = words.columns("the")
    edges = list(zip(of_word["query"], of_word["key"], strict=True))
    assert sorted(edges) == sorted((q, k) for q in range(6) for k in range(6) if {1, 4} & {q, k})
    assert [edge[0] for edge in edges[:12]] == [1] * 6 + [4] * 6
    for start, stop in ((0, 6), (6, 12), (12, 16), (16, 20)):  # two rows, then two columns without these rows
        assert of_word["weight"][start:stop] == sorted(of_word["weight"][start:stop], reverse=True)
    save_table(of_word, tmp_path / "the.csv")
    assert (tmp_path / "the.csv").read_text().count("\n") == 21


def test_an_unknown_word_lists_the_known_ones(recording):
    with pytest.raises(InvalidArgument, match=r"one of <s>, the, cat, saw, </s>, got 'cta', did you mean 'cat'"):
        word_weights(recording).find("cta")
    with pytest.raises(InvalidArgument, match=r"layer: expected one of encoder.0, encoder.1, got 'x'"):
        word_weights(recording, "x")
    names = [f"▁w{index}" for index in range(50)]
    layer = Layer("c", "encoder", regard.weights(*torch.randn(2, 1, 1, 50, 4)), names, names)
    with pytest.raises(InvalidArgument, match=r"w38, w39 and 10 more, got 'x'"):
        word_weights(Recording("", "", [layer])).find("x")
