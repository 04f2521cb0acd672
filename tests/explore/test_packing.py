"""Packing: every weight within its stated error, every token whole, every objection at once."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import regard
from regard.analysis.recording import Layer, Recording
from regard.errors import InvalidArgument
from regard.explore.packing import MAX_WEIGHTS, pack


def unpacked(header, data, layer):
    """Read a layer's weights back as the docstring of `pack` says: the oracle of the page's own reader. NaN: masked."""
    entry = next(entry for entry in header["layers"] if entry["name"] == layer.name)
    shape = (entry["heads"], len(layer.queries), len(layer.keys))
    numbers = np.frombuffer(data, "<u2")[entry["first"] : entry["first"] + int(np.prod(shape))]
    return np.where(numbers == header["masked"], np.nan, numbers / header["steps"]).reshape(shape)


def unmasked(dense: torch.Tensor) -> SimpleNamespace:
    """What has dense weights and a score for each, as a view has."""
    scores = SimpleNamespace(dense=lambda: torch.zeros_like(dense))
    return SimpleNamespace(shape=tuple(dense.shape), dense=lambda: dense, scores=scores)


def test_every_weight_is_read_back_within_the_error_that_is_stated(recording):
    header, data = pack(recording)
    for layer in recording.layers:
        exact = layer.weights.dense()[0].double().numpy()
        read = unpacked(header, data, layer)
        later = np.triu(np.ones(exact.shape, dtype=bool), 1) & (layer.kind == "decoder")
        assert (np.isnan(read) == later).all()
        assert (exact[later] == 0).all()
        difference = np.abs(np.nan_to_num(read) - exact)
        assert difference.max() <= header["error"] * (1 + 1e-6)
        assert (difference <= np.maximum(0.01 * exact, 1e-4)).all()


def test_the_stated_error_is_not_larger_than_it_has_to_be(make_weights):
    shares = torch.rand(4, 50, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = make_weights(shares / shares.sum(-1, keepdim=True))
    layer = Layer("a", "encoder", weights, ("q",) * 50, ("k",) * 50)
    header, data = pack(Recording("", "", (layer,)))
    assert np.abs(unpacked(header, data, layer) - weights.dense()[0].numpy()).max() > 0.9 * header["error"]


def test_nothing_and_everything_are_exact():
    layer = Layer("a", "encoder", unmasked(torch.eye(2)[None, None]), ("x", "y"), ("x", "y"))
    assert unpacked(*pack(Recording("", "", (layer,))), layer).tolist() == [[[1.0, 0.0], [0.0, 1.0]]]


def test_what_is_masked_is_no_weight_and_a_row_may_be_masked_whole():
    mask = torch.tensor([[True, False], [False, False]])
    weights = regard.weights(torch.zeros(1, 1, 2, 1), torch.zeros(1, 1, 2, 1), mask=mask)
    layer = Layer("a", "encoder", weights, ("x", "y"), ("x", "y"))
    np.testing.assert_equal(unpacked(*pack(Recording("", "", (layer,))), layer), [[[1, np.nan], [np.nan, np.nan]]])


def test_half_precision_may_round_a_little_beyond_one():
    weights = unmasked(torch.tensor([[[[1.0005]]]]))
    layer = Layer("a", "encoder", weights, ("x",), ("y",))
    assert unpacked(*pack(Recording("", "", (layer,))), layer).tolist() == [[[1.0]]]


def test_tokens_and_texts_are_whole(recording):
    strange = ("</script>", '"', "\\", "\x00\x1b", "\u202e", "\U0001f469\u200d\U0001f467", "\ud800", "", "ß" * 10_000)
    weights = regard.weights(torch.zeros(1, 1, 9, 1), torch.zeros(1, 1, 9, 1))
    layer = Layer("a", "encoder", weights, strange, strange)
    header, _ = pack(Recording("t", "m", (layer,), {"source": "</script>"}))
    again = json.loads(json.dumps(header))
    assert tuple(again["sequences"][0]["tokens"]) == strange
    assert (again["title"], again["model"], again["texts"]) == ("t", "m", {"source": "</script>"})


def test_a_sequence_is_stored_once_and_roles_are_kept_apart(recording):
    header, _ = pack(recording)
    assert [sequence["role"] for sequence in header["sequences"]] == ["source", "written", "read"]
    ends = {(entry["kind"], entry["queries"], entry["keys"]) for entry in header["layers"]}
    assert ends == {("encoder", 0, 0), ("decoder", 1, 2), ("cross", 1, 0)}


def test_a_translation_that_equals_its_source_is_still_another_text(make_recording):
    header, _ = pack(make_recording(source=("▁Berlin", "</s>"), written=("▁Berlin", "</s>")))
    cross = next(entry for entry in header["layers"] if entry["kind"] == "cross")
    assert cross["queries"] != cross["keys"]


def test_all_objections_come_at_once(recording):
    first, second, *_ = recording.layers
    layers = (replace(first, queries=("one",)), replace(second, name="encoder.0"))
    with pytest.raises(InvalidArgument) as caught:
        pack(replace(recording, layers=layers))
    message = str(caught.value)
    assert "layer 'encoder.0': expected weights (1, heads, 1, 8)" in message
    assert "got (1, 3, 8, 8)" in message
    assert "expected every layer to have a name of its own, got 'encoder.0' 2 times" in message


def test_a_recording_needs_a_layer(recording):
    with pytest.raises(InvalidArgument, match="recording: expected at least one layer, got none"):
        pack(replace(recording, layers=()))


@pytest.mark.parametrize(("value", "told"), [(float("nan"), "nan"), (-0.5, "-0.5"), (1.5, "1.5")])
def test_what_is_no_weight_is_refused(value, told):
    weights = unmasked(torch.tensor([[[[value, 0.5]]]]))
    with pytest.raises(InvalidArgument, match=f"layer 'a': expected weights from 0 to 1, got values from .*{told}"):
        pack(Recording("", "", (Layer("a", "encoder", weights, ("x",), ("y", "z")),)))


def test_a_page_that_no_browser_could_hold_is_refused_before_it_is_computed():
    tokens = ("x",) * 3000
    weights = regard.weights(torch.zeros(1, 8, 3000, 1), torch.zeros(1, 8, 3000, 1))
    with pytest.raises(InvalidArgument, match=f"at most {MAX_WEIGHTS:,} weights in one page, got 72,000,000"):
        pack(Recording("", "", (Layer("a", "encoder", weights, tokens, tokens),)))
