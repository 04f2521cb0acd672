"""Packing: the header's entries for texts, layers and heads, and refused recordings with every reason."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import regard
from helpers.explore.page_cases import LONG, claim_weights, long_weights, one_layer, random_weights
from helpers.explore.page_reader import read_layer, read_page
from regard.analysis.head_scores import head_scores
from regard.errors import InvalidArgument, InvalidType
from regard.explore.html_page import to_html
from regard.explore.pack import pack
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording
from regard.text import display_tokens, word_indices

STRANGE = ("</script>", '"', "\\", "\x00\x1b", "\u202e", "\U0001f469\u200d\U0001f467", "\ud800", "", "ß" * 10_000)


def of_tokens(*tokens: str) -> Recording:
    weights = regard.weights(torch.zeros(1, 1, len(tokens), 1), torch.zeros(1, 1, len(tokens), 1))
    layer = Layer("a", "encoder", weights, tokens, tokens)
    return Recording("t", "m", (layer,), {"source": "</script>"})


# Query, key and value.


def test_small_recordings_hold_query_key_and_value_and_large_ones_do_not():
    weights, value = random_weights(5, 7), torch.randn(1, 2, 7, 8)
    layer = read_layer(*pack(one_layer(weights, value=value)))
    expected = (weights.request.query[0], weights.request.key[0], value[0])
    for stored, exact in zip(layer.qkv, expected, strict=True):
        assert stored.dtype == np.float32
        np.testing.assert_array_equal(stored, exact)
    assert len(read_layer(*pack(one_layer(weights))).qkv) == 2
    wide = regard.weights(torch.ones(1, 1, 4, 2**17), torch.ones(1, 1, 4, 2**17))
    assert read_layer(*pack(one_layer(wide))).qkv == ()


def test_a_dense_layer_has_neither_query_nor_key():
    query, key = torch.zeros(1, 2, 5, 1), torch.zeros(1, 1, 7, 1)
    scores = torch.randn(1, 2, 5, 7)
    weights = regard.weights(query, key, score=regard.ScaledDotProduct() + regard.Bias(scores))
    recording = one_layer(weights)
    dense = recording.layers[0].replace(is_dense=True)
    layer = read_layer(*pack(Recording("", "m", (dense,))))
    assert layer.qkv == ()
    assert layer.header["score"] == "captured"
    np.testing.assert_allclose(layer.weights, scores.softmax(-1)[0], atol=1e-3)


def test_heads_that_share_keys_store_them_once():
    weights = regard.weights(torch.randn(1, 4, 5, 8), torch.randn(1, 2, 6, 8))
    assert [part.shape for part in read_layer(*pack(one_layer(weights))).qkv] == [(4, 5, 8), (2, 6, 8)]


def test_the_order_of_ties_is_stored_if_the_page_cannot_compute_the_weights():
    sinks = regard.Sinks(regard.ScaledDotProduct(), torch.zeros(2))
    wide = regard.weights(torch.ones(1, 1, 4, 2**17), torch.ones(1, 1, 4, 2**17))
    for weights, is_stored in [
        (random_weights(5, 7), False),
        (random_weights(5, 7, mask=torch.ones(5, 7).tril() > 0), False),
        (random_weights(5, 7, score=sinks), True),
        (wide, True),
    ]:
        layer = read_layer(*pack(one_layer(weights)))
        assert (layer.key_order is not None) == (layer.query_order is not None) == is_stored


MASKS = {
    "no mask": None,
    "causal": regard.Causal(),
    "a hole": torch.ones(LONG, LONG, dtype=torch.bool).tril() & (torch.arange(LONG) != 7),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_the_weights_of_a_long_text_follow_from_query_key_and_lse(mask):
    query, key = torch.randn(2, 1, 4, LONG, 16, generator=torch.Generator().manual_seed(1))
    weights = regard.weights(3 * query, key[:, :2], mask=mask, scale=0.3)
    layer = read_layer(*pack(one_layer(weights)))
    assert (layer.header["storage"], layer.header["levels"]) == ("computed", [3])
    query, key = (part.astype(np.float64) for part in layer.qkv)
    scores = 0.3 * query @ key.repeat(2, 0).transpose(0, 2, 1) - layer.lse[..., None]
    exact = regard.weights(weights.request.query.double(), weights.request.key.double(), mask=mask, scale=0.3)
    np.testing.assert_allclose(np.where(layer.allowed, np.exp(scores), 0), exact.dense()[0], rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("name", ["score", "mask of each head", "mask without runs", "size"])
def test_what_a_page_cannot_compute_is_a_sketch(name):
    holes = torch.arange(LONG) % 2 == 0
    options = {
        "score": {"score": regard.Sinks(regard.ScaledDotProduct(), torch.zeros(2))},
        "mask of each head": {"mask": torch.stack([torch.ones(LONG, LONG).tril(), torch.ones(LONG, LONG)])[None] > 0},
        "mask without runs": {"mask": holes.expand(LONG, LONG)},
    }
    weights = long_weights(**{"score": None, **options.get(name, {})})
    if name == "size":
        weights = regard.weights(*torch.ones(2, 1, 2, LONG, 1000))  # 9.6 MB
    layer = read_layer(*pack(one_layer(weights)))
    assert layer.header["storage"] == "sketch"
    assert layer.top_keys is not None


@pytest.mark.parametrize("mask", [None, regard.Causal(), torch.ones(5, 7).tril() > 0])
def test_without_a_score_the_weights_follow_from_query_key_and_scale(mask):
    weights = random_weights(5, 7, mask=mask, scale=0.7)
    layer = read_layer(*pack(one_layer(weights)))
    query, key = layer.qkv
    assert (layer.header["scale"], layer.header["score"]) == (0.7, None)
    scores = layer.header["scale"] * query @ key.transpose(0, 2, 1)
    exact = torch.from_numpy(np.where(np.isnan(layer.weights), -np.inf, scores)).softmax(-1)
    torch.testing.assert_close(exact, weights.dense()[0])


# Texts.


def test_tokens_and_texts_are_stored_as_they_are():
    recording = of_tokens(*STRANGE)
    header = json.loads(json.dumps(pack(recording)[0]))
    assert tuple(header["sequences"][0]["tokens"]) == STRANGE
    assert (header["title"], header["model"], header["texts"]) == ("t", "m", {"source": "</script>"})
    header, _ = read_page(to_html(recording))
    assert tuple(header["sequences"][0]["tokens"]) == STRANGE


def test_a_sequence_defines_how_its_tokens_are_displayed_and_form_words():
    tokens = ("<s>", "▁The", "▁ti", "red", ".", "</s>", "▁It")
    (sequence,) = pack(of_tokens(*tokens))[0]["sequences"]
    assert sequence == {
        "role": "source",
        "tokens": list(tokens),
        "display": ["<s>", "The", "ti", "red", ".", "</s>", "It"],
        "words": [0, 1, 2, 2, 3, 4, 5],
        "word_texts": ["<s>", "The", "tired", ".", "</s>", "It"],
        "special": [0, 5],
        "spaces": [1, 2, 5, 6],
    }
    (sequence,) = pack(of_tokens(*STRANGE))[0]["sequences"]
    assert sequence["display"] == display_tokens(STRANGE)
    assert sequence["words"] == word_indices(STRANGE)


def test_spaces_separate_all_tokens_if_none_marks_a_word():
    (sequence,) = pack(of_tokens("[CLS]", "the", "cat", "[SEP]"))[0]["sequences"]
    assert sequence["spaces"] == [1, 2, 3]


def test_a_sequence_is_stored_once_and_roles_are_kept_apart(recording):
    header, _ = pack(recording)
    assert [sequence["role"] for sequence in header["sequences"]] == ["source", "written", "read"]
    axes = {(entry["kind"], entry["queries"], entry["keys"]) for entry in header["layers"]}
    assert axes == {("encoder", 0, 0), ("decoder", 1, 2), ("cross", 1, 0)}


def test_a_translation_that_equals_its_source_is_another_text(make_recording):
    header, _ = pack(make_recording(source=("▁Berlin", "</s>"), written=("▁Berlin", "</s>")))
    cross = next(entry for entry in header["layers"] if entry["kind"] == "cross")
    assert cross["queries"] != cross["keys"]


# Heads.


def test_head_scores_are_those_of_the_analysis(recording):
    header, _ = pack(recording)
    scores = head_scores(recording)
    for entry in header["layers"]:
        rows = [row for row, name in enumerate(scores["layer"]) if name == entry["name"]]
        for name, values in entry["scores"].items():
            exact = [scores[name][row] for row in rows]
            assert values == pytest.approx([None if np.isnan(value) else value for value in exact], abs=1e-5)


def test_the_header_names_the_heads_that_were_recorded():
    weights = random_weights(5, 7, heads=2)
    (layer,) = pack(one_layer(weights, head_indices=(3, 7)))[0]["layers"]
    assert layer["heads"] == [3, 7]
    assert all(len(values) == 2 for values in layer["scores"].values())


# What is refused.


def test_all_problems_are_reported_at_once(recording):
    first, second, *_ = recording.layers
    with pytest.raises(InvalidArgument) as caught:
        first.replace(query_tokens=("one",), head_indices=[0])
    message = str(caught.value)
    assert "layer 'encoder.0': query_tokens: expected 8 tokens, as the weights have, got 1" in message
    assert "layer 'encoder.0': head_indices: expected" in message
    with pytest.raises(InvalidArgument) as caught:
        recording.replace(layers=(first, second.replace(name="encoder.0")), image=b"")
    message = str(caught.value)
    assert "expected every layer to have a name of its own, got 'encoder.0' 2 times" in message
    assert "image: expected the bytes of a PNG" in message


def test_a_recording_needs_a_layer(recording):
    with pytest.raises(InvalidArgument, match=r"^recording: expected at least one layer, got none"):
        pack(recording.replace(layers=()))
    with pytest.raises(InvalidArgument, match=r"^compare_with: expected at least one layer, got none"):
        pack(recording, recording.replace(layers=()))


def test_what_is_not_a_recording_is_refused(recording):
    with pytest.raises(InvalidType, match=r"^recording: expected a Recording or the result of regard.watch, got str"):
        pack("a recording")
    with pytest.raises(
        InvalidType, match=r"^compare_with: expected a Recording or the result of regard.watch, got list"
    ):
        pack(recording, [])


@pytest.mark.parametrize(("value", "reported"), [(float("nan"), "nan"), (-0.5, "-0.5"), (1.5, "1.5")])
def test_values_that_are_not_weights_are_refused(value, reported):
    wrong = one_layer(claim_weights(value, 0.5))
    message = f"layer 'a': expected weights from 0 to 1, got values from .*{reported}"
    with pytest.raises(InvalidArgument, match=message):
        pack(wrong)
    with pytest.raises(InvalidArgument, match=f"compare_with: {message}"):
        pack(one_layer(random_weights(1, 2)), wrong)


def test_a_long_layer_with_nan_is_refused_too():
    weights = regard.weights(torch.full((1, 1, LONG, 4), float("nan")), torch.ones(1, 1, LONG, 4))
    with pytest.raises(InvalidArgument, match="layer 'a': expected weights from 0 to 1, got values from nan"):
        pack(one_layer(weights))


def test_two_recordings_need_layers_of_one_kind_or_name(make_recording):
    encoder = make_recording(decoders=0)
    weights = random_weights(8, 8)
    names = ("a",) * 8
    other = Recording("", "", (Layer("b", "decoder", weights, names, names),))
    with pytest.raises(InvalidArgument, match=r"kind \(encoder\) of one in the first recording, got decoder"):
        pack(encoder, other)


def test_the_blocks_of_a_second_recording_follow_those_of_the_first(make_recording):
    first, second = make_recording(decoders=0), make_recording(source=("▁a", "▁b", "</s>"), decoders=0)
    header, blocks = pack(first, second)
    second_header, own_blocks = pack(second)
    compared = header.pop("compare_with")
    assert compared.keys() - second_header.keys() == {"counterparts", "alignments"}
    assert compared == {**compared, **second_header}
    assert (header, blocks[: len(blocks) - len(own_blocks)]) == pack(first)
    assert blocks[-len(own_blocks) :] == own_blocks
