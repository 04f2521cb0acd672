"""Adapters of a user: a small GPT with its own softmax, caches, and which adapter a module has."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn

import regard
from helpers.small_gpt import IDS, CausalSelfAttention, adapter, small_gpt
from regard.analysis import rollout
from regard.errors import InvalidArgument
from regard.ops.masks import Causal, Window
from regard.watching.adapters import AttentionInputs

ADAPTERS = {CausalSelfAttention: adapter}


def dense(model, ids=IDS):
    """The weights of each layer, from a model that is not watched."""
    kept = []
    original = CausalSelfAttention.weights

    def weights(self, query, key):
        kept.append(original(self, query, key))
        return kept[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CausalSelfAttention, "weights", weights)
        output = model(ids)
    return kept, output


def test_weights_measures_and_output_are_those_of_the_model():
    model = small_gpt()
    expected, plain = dense(model)
    with regard.watch(model, ["entropy", "received"], adapters=ADAPTERS, keep_values=True) as result:
        output = model(IDS)
    assert torch.equal(output, plain)
    assert [(layer.name, layer.kind) for layer in result.layers] == [("h.0", "decoder"), ("h.1", "decoder")]
    for layer, weights in zip(result.layers, expected, strict=True):
        torch.testing.assert_close(layer.weights.dense(), weights, atol=1e-6, rtol=0)
        torch.testing.assert_close(layer.measured["received"], weights.sum(2), atol=1e-5, rtol=1e-5)
        assert layer.value.shape == (2, 4, 20, 8)
    assert rollout(result.recording.select(1).layers, queries=-1).shape == (1, 1, 20)
    parameters = list(model.parameters())
    entropy = -(expected[1] * expected[1].clamp(min=1e-30).log()).sum()
    losses = result.layers[1].measured["entropy"].sum(), entropy
    gradients = (torch.autograd.grad(loss, parameters, allow_unused=True) for loss in losses)
    for one, other in zip(*gradients, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_gradients_of_the_weights_are_those_of_autograd():
    model = small_gpt()
    weights, output = dense(model)
    expected = torch.autograd.grad(output[:, -1, 7].sum(), weights)
    with regard.watch(model, adapters=ADAPTERS, weight_gradients=True) as result:
        model(IDS)[:, -1, 7].sum().backward()
    for layer, each in zip(result.layers, expected, strict=True):
        torch.testing.assert_close(layer.weights.grad.dense(), each, atol=1e-5, rtol=1e-4)


def test_an_adapter_is_not_called_where_a_call_was_recorded():
    def unused(module, arguments, output):
        raise AssertionError

    model = small_gpt(flash=True)
    with regard.watch(model, adapters={CausalSelfAttention: unused}) as result:
        model(IDS)
    slow = small_gpt()
    with regard.watch(slow, adapters=ADAPTERS) as expected:
        slow(IDS)
    for one, other in zip(result.layers, expected.layers, strict=True):
        torch.testing.assert_close(one.weights.dense(), other.weights.dense())


def test_modules_that_layers_leave_out_do_not_call_their_adapter():
    called = []

    def counting(module, arguments, output):
        called.append(module)
        return adapter(module, arguments, output)

    model = small_gpt()
    with regard.watch(model, adapters={CausalSelfAttention: counting}, layers=["h.1"], heads=[2]) as result:
        model(IDS)
    assert called == [model.h[1]]
    expected = dense(model)[0][1][:, 2:3]
    torch.testing.assert_close(result.layers[0].weights.dense(), expected, atol=1e-6, rtol=0)


class Halved(CausalSelfAttention):
    def weights(self, query, key):
        return super().weights(query / 2, key)


def halved(module, arguments, output):
    inputs = adapter(module, arguments, output)
    return AttentionInputs(query=inputs.query / 2, key=inputs.key, mask=Causal())


def test_a_subclass_has_the_adapter_of_its_nearest_class():
    model = small_gpt()
    model.h.append(Halved(32, 4, 64))
    with regard.watch(model, adapters=ADAPTERS) as by_parent:
        model(IDS)
    with regard.watch(model, adapters=ADAPTERS | {Halved: halved}) as by_class:
        model(IDS)
    expected = dense(model)[0]
    torch.testing.assert_close(by_class.layers[2].weights.dense(), expected[2], atol=1e-6, rtol=0)
    assert not torch.allclose(by_parent.layers[2].weights.dense(), expected[2], atol=1e-2)


def test_an_adapter_of_the_user_goes_before_a_shipped_one():
    transformers = pytest.importorskip("transformers")
    from transformers.models.bloom.modeling_bloom import BloomAttention

    def local(module, arguments, output):
        query = key = torch.ones(*arguments["hidden_states"].shape[:2], 1)[:, None]
        return AttentionInputs(query=query, key=key, mask=Window(2, 0))

    model = transformers.BloomModel(transformers.BloomConfig(vocab_size=50, hidden_size=32, n_layer=2, n_head=4))
    with regard.watch(model, adapters={BloomAttention: local}) as result:
        model(IDS)
    assert result.layers[0].weights.shape == (2, 1, 20, 20)
    torch.testing.assert_close(result.layers[0].weights[0, 0, 10, 8:12], torch.tensor([1, 1, 1, 0]) / 3)


class Cached(nn.Module):
    """Attention with a cache of its own."""

    def __init__(self):
        super().__init__()
        self.project, self.keys = nn.Linear(8, 16), []

    def forward(self, x, *, mask=None, **options):
        query, key = self.project(x).unflatten(-1, (2, -1)).transpose(1, 2).chunk(2, -1)
        self.keys.append(key)
        key = torch.cat(self.keys, 2)
        scores = query @ key.mT / 2
        causal = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(scores.shape[-1] - scores.shape[-2])
        scores = scores.masked_fill(~causal, -torch.inf) + options.get("bias", 0)
        return (scores.softmax(-1) @ key).transpose(1, 2).flatten(2)


def of_cache(module, arguments, output):
    query, _ = module.project(arguments["x"]).unflatten(-1, (2, -1)).transpose(1, 2).chunk(2, -1)
    key = torch.cat(module.keys, 2)
    score = regard.ScaledDotProduct()
    if "bias" in arguments:
        score = score + regard.Bias(arguments["bias"])
    return AttentionInputs(
        query=query, key=key, mask=Causal(), score=score, scale=0.5, offset=key.shape[2] - query.shape[2]
    )


@pytest.mark.parametrize("has_bias", [False, True])
def test_steps_with_an_offset_are_rows_of_one_matrix(has_bias):
    model, x, bias = Cached(), torch.randn(2, 12, 8), torch.randn(12)
    options = [{"bias": bias[:stop]} if has_bias else {} for stop in range(13)]
    with regard.watch(model, ["entropy", "received"], adapters={Cached: of_cache}) as result, torch.no_grad():
        model(x[:, :7], **options[7])
        for token in range(7, 12):
            model(x[:, token : token + 1], **options[token + 1])
    whole = Cached()
    whole.load_state_dict(model.state_dict())
    with regard.watch(whole, ["entropy", "received"], adapters={Cached: of_cache}) as expected, torch.no_grad():
        whole(x, **options[12])
    assert len(result.recordings) == 1
    (one,), (other,) = result.layers, expected.layers
    torch.testing.assert_close(one.weights.dense(), other.weights.dense())
    torch.testing.assert_close(one.measured["received"], other.measured["received"])


class Parent(nn.Module):
    """Leaves the softmax to a part that is named like attention."""

    class DotAttention(nn.Module):
        """Has a softmax of its own."""

        def forward(self, query, key, value):
            return (query @ key.mT).softmax(-1) @ value

    def __init__(self):
        super().__init__()
        self.project, self.attend = nn.Linear(8, 24), self.DotAttention()

    def forward(self, x):
        return self.attend(*self.project(x)[:, None].chunk(3, -1))[:, 0]


def of_parent(module, arguments, output):
    query, key, _ = module.project(arguments["x"])[:, None].chunk(3, -1)
    return AttentionInputs(query=query, key=key, scale=1.0)


@pytest.mark.filterwarnings("error")
def test_modules_within_an_adapted_one_are_parts_of_it():
    model, x = Parent(), torch.randn(2, 5, 8)
    with regard.watch(model, adapters={Parent: of_parent}) as result:
        model(x)
    query, key, _ = model.project(x)[:, None].chunk(3, -1)
    torch.testing.assert_close(result.layers[0].weights.dense(), (query @ key.mT).softmax(-1))
    of_part = {
        Parent.DotAttention: lambda module, a, output: AttentionInputs(query=a["query"], key=a["key"], scale=1.0)
    }
    with regard.watch(model, adapters=of_part) as by_part:
        model(x)
    assert [layer.name for layer in by_part.layers] == ["attend"]


def test_what_an_adapter_calls_is_not_recorded_and_draws_no_random_numbers_of_the_model():
    def careless(module, arguments, output):
        inputs = adapter(module, arguments, output)
        nn.functional.scaled_dot_product_attention(inputs.query, inputs.key, inputs.value)
        return AttentionInputs(query=nn.functional.dropout(inputs.query), key=inputs.key, mask=Causal())

    model = nn.Sequential(small_gpt(), nn.Dropout(0.5)).train()
    torch.manual_seed(0)
    expected = model(IDS)
    torch.manual_seed(0)
    with regard.watch(model, adapters={CausalSelfAttention: careless}) as result:
        output = model(IDS)
    assert torch.equal(output, expected)
    assert [layer.name for layer in result.layers] == ["0.h.0", "0.h.1"]


def test_attention_under_vmap_is_refused():
    model = small_gpt()
    with pytest.raises(InvalidArgument, match=r"calls under torch\.vmap"), regard.watch(model, adapters=ADAPTERS):
        torch.vmap(model)(IDS[:, None])


def test_ablation_names_the_attention_that_it_cannot_change():
    model = small_gpt()
    message = "h.0 is a CausalSelfAttention, which can be watched but not changed"
    with pytest.raises(InvalidArgument, match=message), regard.watch(model, adapters=ADAPTERS, ablate={"h.0": [1]}):
        model(IDS)


def test_outputs_that_are_no_tensor_and_several_results():
    class Two(nn.Module):
        def forward(self, x):
            return OrderedDict(output=[x])

    def several(module, arguments, output):
        x = output["output"][0][:, None]
        return [AttentionInputs(query=x, key=x), AttentionInputs(query=2 * x, key=x)]

    x = torch.randn(1, 5, 4)
    with regard.watch(Two(), adapters={Two: several}) as result:
        result.model(x)
    assert [layer.name for layer in result.layers] == ["", "#2"]
    torch.testing.assert_close(result.layers[1].weights.dense(), (x @ x.mT).softmax(-1)[:, None])
