"""Attention that modules compute with a softmax of their own: its scores are captured, and the weights are exact."""

from __future__ import annotations

import pytest
import torch

import regard
from helpers.own_softmax import (
    BATCH,
    HEADS,
    TOKENS,
    WIDTH,
    Calls,
    Outer,
    SlowAttention,
    entropy_of,
    inputs,
    project,
    watched,
)
from regard.errors import InvalidArgument, StaleView

pytestmark = pytest.mark.filterwarnings("ignore:.*dense weights were recorded at the softmax")


def test_the_slow_path_of_a_small_gpt_is_recorded():
    x, module = inputs(), SlowAttention().eval()
    expected = module(x)
    with (
        pytest.warns(
            UserWarning, match=r"Outer: dense weights .* softmax of parts.0 \(SlowAttention\), in memory"
        ) as all_,
        regard.watch(Outer(module), ["entropy"]) as result,
    ):
        output = result.model(x)
    assert len(all_) == 1
    assert torch.equal(output, expected)
    (layer,) = result.layers
    assert repr(layer) == "Layer('parts.0', decoder, dense)"
    assert layer.is_dense
    assert layer.name == "parts.0"
    torch.testing.assert_close(layer.weights.dense(), module.weights)
    torch.testing.assert_close(layer.weights[0, 1, 3], module.weights[0, 1, 3])
    torch.testing.assert_close(layer.weights.topk(2).values, module.weights.topk(2).values)
    torch.testing.assert_close(layer.measured["entropy"], torch.special.entr(module.weights).sum(-1))
    torch.testing.assert_close(layer.weights.mT[1, 2, 0], module.weights[1, 2, :, 0])
    assert layer.weights.request.offset == 0
    assert layer.weights.valid_queries is None


def test_weights_are_those_before_dropout():
    module = SlowAttention(dropout=0.5)
    layer = watched(module, inputs()).layers[0]
    torch.testing.assert_close(layer.weights.dense(), module.weights)


def test_a_second_forward_pass_is_another_recording():
    module = SlowAttention()
    with regard.watch(module) as result:
        module(inputs())
        module(inputs(1, 4, HEADS * WIDTH))
    assert [recording.layers[0].weights.shape[2] for recording in result.recordings] == [TOKENS, 4]


def test_steps_of_a_hand_written_cache_are_joined_on_request():
    def attend(query, key):
        scores = query @ key.mT
        hidden = torch.ones(scores.shape[-2:]).tril(key.shape[2] - query.shape[2]) == 0
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return weights @ key, weights

    module, x = Calls(attend), torch.randn(BATCH, HEADS, TOKENS, WIDTH)
    expected = attend(x, x)[1]
    for positions in (None, "last"):
        with regard.watch(module, ["received"], positions=positions) as result:
            for step in range(4, TOKENS + 1):
                first = 0 if step == 4 else step - 1
                module(x[:, :, first:step], x[:, :, :step])
        assert len(result.recordings) == (4 if positions is None else 1)
    torch.testing.assert_close(result.layers[0].weights.dense(), expected)
    torch.testing.assert_close(result.layers[0].measured["received"], expected.sum(2))
    with regard.watch(module, positions="last") as result:
        module(x[:, :, :4], x[:, :, :4])
        module(x[:, :, 4:5], x.flip(0)[:, :, :5])  # a cache of other sequences
    assert len(result.recordings) == 2


def test_measures_have_gradients():
    x, module = inputs().requires_grad_(), SlowAttention()
    with regard.watch(module, "entropy", keep_qk=False) as result:
        module(x)
    entropy = result.layers[0].measured["entropy"]
    expected = entropy_of(module.weights)
    actual = torch.autograd.grad(entropy.square().sum(), module.project.weight, retain_graph=True)[0]
    torch.testing.assert_close(actual, torch.autograd.grad(expected.square().sum(), module.project.weight)[0])
    assert result.nbytes <= entropy.nbytes + 1
    with pytest.raises(InvalidArgument, match="were not kept"):
        _ = result.layers[0].weights


def test_gradients_of_the_weights_are_those_of_autograd():
    x, module = inputs(), SlowAttention()
    with regard.watch(module, weight_gradients=True) as result:
        output = module(x)
    module.weights.retain_grad()
    output.square().sum().backward()
    torch.testing.assert_close(result.layers[0].weights.grad.dense().tril(), module.weights.grad.tril())


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_records_once(use_reentrant):
    class Checkpointed(Outer):
        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.parts[0], x, use_reentrant=use_reentrant)

    model, x = Checkpointed(SlowAttention()), inputs().requires_grad_()
    with regard.watch(model, "entropy") as result:
        output = model(x)
        loss = output.sum() if use_reentrant else output.sum() + result.layers[0].measured["entropy"].sum()
        loss.backward()
    assert len(result.recordings) == len(result.layers) == 1
    plain = model.parts[0]
    grad, plain.project.weight.grad = plain.project.weight.grad, None
    loss = plain(x).sum()
    (loss if use_reentrant else loss + entropy_of(plain.weights).sum()).backward()
    torch.testing.assert_close(grad, plain.project.weight.grad)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode):
    x, module = inputs(), SlowAttention()
    with mode():
        result = watched(module, x)
        weights = result.layers[0].weights.dense()
    torch.testing.assert_close(weights, module.weights)


def test_scores_that_change_after_the_call_are_noticed_or_copied():
    kept = []

    def call(x):
        query, key, value = (part.transpose(1, 2) for part in project(x))
        kept[:] = [query @ key.mT]
        weights = kept[0].softmax(-1)
        return weights @ value, weights

    module = Calls(call)
    layer = watched(module, inputs()).layers[0]
    kept[0].zero_()
    with pytest.raises(StaleView, match="was changed in place"):
        _ = layer.weights
    layer = watched(module, inputs(), offload="cpu").layers[0]
    kept[0].zero_()
    torch.testing.assert_close(layer.weights.dense(), module.weights)


def test_offloaded_scores_are_in_files(tmp_path):
    x, module = torch.randn(1, 300, HEADS * WIDTH), SlowAttention()
    layer = watched(module, x, offload=tmp_path).layers[0]
    torch.testing.assert_close(layer.weights.dense(), module.weights.detach())
    assert not layer.weights.request.score.right.tensor.requires_grad


def test_dense_weights_have_a_limit(monkeypatch):
    model, cells = Outer(SlowAttention(), SlowAttention()), BATCH * HEADS * TOKENS**2
    monkeypatch.setattr("regard.watching.retention.DENSE_LIMIT", 2 * cells - 1)
    message = (
        r"parts.1: its dense weights.* take 1.2 kB and those before them 1.2 kB, more than 2.3 kB in all; .*adapters"
    )
    with pytest.raises(InvalidArgument, match=message), regard.watch(model):
        model(inputs())
    watched(model, inputs(), max_bytes=10**6)
    watched(model, inputs(), layers=["parts.1"])
    watched(model, inputs(), heads=[0])
    watched(model, inputs(), measure="entropy", keep_qk=False)
    with pytest.raises(InvalidArgument, match=r"max_bytes: with parts\.0, the watch would keep"):
        watched(model, inputs(), max_bytes=1000)


def test_selected_heads_are_kept_alone():
    module = SlowAttention()
    every, some = watched(module, inputs()), watched(module, inputs(), heads=[2, 0])
    layer = some.layers[0]
    torch.testing.assert_close(layer.weights.dense(), module.weights[:, [2, 0]])
    assert layer.weights.request.score.right.tensor.shape[1] == 2
    assert some.nbytes < every.nbytes
    assert layer.head_indices == (2, 0)


def test_a_dense_layer_is_selected_saved_and_loaded(tmp_path):
    module = SlowAttention()
    recording = watched(Outer(module), inputs()).recording.select(1, tokens=list("abcdefg"))
    recording.save(tmp_path / "dense.regard")
    layer = regard.load(tmp_path / "dense.regard").layers[0]
    assert layer.is_dense
    assert layer.query_tokens == tuple("abcdefg")
    torch.testing.assert_close(layer.weights.dense()[0], module.weights[1].detach())


def test_interventions_are_refused():
    message = "ablate and knockout: parts.0 is a SlowAttention, which can be watched but not changed"
    with (
        pytest.raises(InvalidArgument, match=message),
        regard.watch(Outer(SlowAttention()), ablate={"parts.0": [0]}) as r,
    ):
        r.model(inputs())


def test_transforms_of_functions_are_refused():
    module = Calls(lambda x: ((x @ x.mT).softmax(-1) @ x, None))
    with pytest.raises(InvalidArgument, match=r"calls under torch\.vmap"), regard.watch(Outer(module)) as result:
        torch.vmap(result.model)(torch.randn(3, 2, 4, 5))
