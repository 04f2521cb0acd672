"""Steps of a generation are measured together, with the same results as one by one."""

from __future__ import annotations

import pytest
import torch

import regard
from helpers.model_zoo.families import LENGTH, built
from regard.errors import StaleView
from regard.ops.masks import Causal
from regard.ops.request import make_request
from regard.recordings import BatchAxis
from regard.watching.axis_rules import Split
from regard.watching.call import AttentionCall
from regard.watching.layer_recorder import LayerRecorder
from regard.watching.pending_steps import MAX_PENDING_QUERIES, PendingSteps
from regard.watching.retention import Retention

pytest.importorskip("transformers")


def test_more_steps_than_are_deferred_join():
    model, ids = built("mistral"), torch.randint(3, 90, (1, LENGTH))
    options = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "do_sample": False}
    with regard.watch(model, ["entropy", "received"]) as result:
        model.generate(**options, max_new_tokens=MAX_PENDING_QUERIES + 20)
    with regard.watch(model, ["entropy", "received"], keep_qk=False) as alone:
        model.generate(**options, max_new_tokens=MAX_PENDING_QUERIES + 20)
    for layer, other in zip(result.layers, alone.layers, strict=True):
        assert layer.weights.shape[2:] == (LENGTH + MAX_PENDING_QUERIES + 19,) * 2
        for name, expected in layer.weights.measure("entropy", "received").items():
            torch.testing.assert_close(layer.measured[name], expected, atol=1e-5, rtol=1e-5)
            assert torch.equal(layer.measured[name], other.measured[name])


def test_measures_can_be_read_between_steps():
    model, ids = built("gpt2"), torch.randint(3, 90, (2, LENGTH))
    cache = None
    with torch.no_grad(), regard.watch(model, ["entropy", "received"]) as result:
        for step in range(6):
            cache = model(ids[:, step : step + 1], past_key_values=cache).past_key_values
            for layer in result.layers:
                if step != 3:
                    assert layer.measured["entropy"].shape == (2, 4, step + 1)
                    torch.testing.assert_close(layer.measured["received"].sum(-1), torch.full((2, 4), step + 1.0))


def step(stop: int, key: torch.Tensor, **kwargs: int) -> AttentionCall:
    offsets = {"q_offset": stop - 1, "kv_offset": 0} | kwargs
    request = make_request(torch.randn(1, 2, 1, 4), key, offset=offsets["q_offset"] - offsets["kv_offset"])
    return AttentionCall(request, **offsets)


def test_only_steps_that_continue_a_call_are_deferred():
    key = torch.randn(1, 2, 20, 4)
    steps = PendingSteps()
    with torch.no_grad():
        assert not steps.try_add(step(7, key[:, :, :7].clone()))
        steps.start_after(step(7, key[:, :, :7].clone()))
        assert steps.try_add(step(8, key[:, :, :8].clone()))
        assert not steps.try_add(step(10, key[:, :, :10].clone()))  # two keys more
        assert not steps.try_add(step(9, key[:, :, 1:9].clone(), kv_offset=1))  # a window that slides
    assert not steps.try_add(step(9, key[:, :, :9].clone()))  # a loss may be made of it
    with torch.no_grad():
        assert steps.try_add(step(9, last := key[:, :, :9].clone()))
        call = steps.take()
        assert call is not None
        assert call.key is last
        assert call.query.shape[2] == 2
        assert call.weights.dense().count_nonzero(-1)[0, 0].tolist() == [8, 9]
        assert steps.take() is None
        assert not steps.try_add(step(10, key[:, :, :10].clone()))


def test_a_cache_that_is_modified_in_place_is_measured_immediately():
    key, steps = torch.randn(1, 2, 20, 4), PendingSteps()
    with torch.no_grad():
        steps.start_after(step(7, key[:, :, :7]))
        assert not steps.try_add(step(8, key[:, :, :8]))


@pytest.mark.parametrize("room", [0, 4])
def test_a_prefill_changed_in_place_stays_stale_after_the_next_step(room):
    recorder = LayerRecorder("a", "decoder", {}, Retention())
    query, key = torch.randn(1, 2, 6, 4), torch.randn(1, 2, 6 + room, 4)
    prefill = AttentionCall(make_request(query, key, mask=Causal(), offset=0))
    recorder.add(prefill, None)
    query.mul_(2)
    longer = key if room else torch.cat([key, torch.randn(1, 2, 1, 4)], 2)
    step = AttentionCall(make_request(torch.randn(1, 2, 1, 4), longer, mask=Causal(), offset=6), q_offset=6)
    recorder.add(step, "new_tokens")
    with pytest.raises(StaleView, match="changed in place"):
        _ = recorder.weights


def test_beams_keep_what_is_known_of_a_layer():
    recorder = LayerRecorder("a", "decoder", {}, Retention(keep_values=True))
    query, key = torch.randn(2, 2, 7, 4), torch.randn(2, 2, 7, 4)
    for step, stop in ((slice(0, 6), 6), (slice(6, 7), 7)):
        request = make_request(query[:, :, step], key[:, :, :stop], mask=Causal(), offset=step.start)
        recorder.add(AttentionCall(request, step.start, value=key[:, :, :stop]), "new_tokens" if stop == 7 else None)
    recorder.repeat()  # the weights of the last step are multiplied by other values, too
    recorder.splits, recorder.batch_axis = (Split("image", (0, 1), 2),), BatchAxis("image", (0, 1), 2, ("", ""))
    rows = torch.tensor([[1, 1], [0, 1], [0, 0]])
    selected = recorder.select_beams(rows)
    expected = recorder.weights.dense()
    assert recorder.value is selected.value is None
    assert (selected.splits, selected.batch_axis) == (recorder.splits, recorder.batch_axis)
    assert (selected.num_keys, selected.num_queries, selected.batch_size) == (recorder.num_keys, 7, 3)
    torch.testing.assert_close(selected.weights.dense()[[0, 2]], expected[[1, 0]])
    assert recorder.weights.shape[0] == recorder.batch_size == 2  # as before
