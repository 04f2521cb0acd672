"""What happens to the result of a softmax before it multiplies the values."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

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
from regard.errors import InvalidArgument

pytestmark = pytest.mark.filterwarnings("ignore:.*dense weights were recorded at the softmax")


class NamedAttention(Calls):
    pass


KEPT = torch.tensor([[True] * 5 + [False] * 2, [False] * 3 + [True] * 4])


def masked_after(x):
    """Zeroes padding after the softmax, and divides by the sum of the rest."""
    query, key, value = (part.transpose(1, 2) for part in project(x))
    weights = (query @ key.mT).softmax(-1) * KEPT[:, None, None]
    weights = weights / weights.sum(-1, keepdim=True)
    return functional.dropout(weights, 0.3) @ value, weights


def head_mask(x):
    query, key, value = (part.transpose(1, 2) for part in project(x))
    weights = (query @ key.mT).softmax(-1)
    return (weights * torch.tensor([0.0, 1.0, 0.5])[:, None, None]) @ value, weights


def upcast(x):
    query, key, value = (part.transpose(1, 2) for part in project(x.half()))
    weights = functional.softmax(query.float() @ key.float().mT, dim=-1, dtype=torch.float32)
    return weights.to(value.dtype) @ value, weights


def slots(x):
    """Tokens choose a slot, and a slot is the mean of those that chose it."""
    query, key, value = (part.transpose(1, 2) for part in project(x))
    weights = (query @ key.mT).softmax(2) + 1e-6
    weights = weights / weights.sum(-1, keepdim=True)
    return torch.einsum("bhjd,bhij->bhid", value, weights), weights


def filled(x):
    query, key, value = (part.transpose(1, 2) for part in project(x))
    scores = (query @ key.mT).masked_fill(~KEPT[:, None, None], torch.finfo(torch.float32).min)
    scores = scores.masked_fill(~KEPT[:, None, :, None], torch.finfo(torch.float32).min)  # padded rows see nothing
    weights = scores.softmax(-1)
    return weights @ value, weights.masked_fill(~KEPT[:, None, :, None], 0)


@pytest.mark.parametrize("call", [masked_after, head_mask, upcast, slots, filled])
def test_what_follows_the_softmax(call):
    module = NamedAttention(call)
    layer = watched(module, inputs()).layers[0]
    torch.testing.assert_close(layer.weights.dense(), module.weights)
    if call in (masked_after, filled):
        assert torch.equal(layer.weights.valid_queries, KEPT)


def test_gradients_flow_through_weights_that_were_changed():
    module, x = Calls(masked_after), inputs().requires_grad_()
    torch.manual_seed(0)
    with regard.watch(module, "entropy") as result:
        module(x)
    (actual,) = torch.autograd.grad(result.layers[0].measured["entropy"].square().sum(), x)
    torch.manual_seed(0)
    weights = masked_after(x)[1]
    (expected,) = torch.autograd.grad(entropy_of(weights).square().sum(), x)
    torch.testing.assert_close(actual, expected)


def linear_attention(x):
    query, key, value = (part.transpose(1, 2) for part in project(x))
    return query @ (key.softmax(-2).mT @ value), None


def both_softmaxes(x):
    query, key, value = (part.transpose(1, 2) for part in project(x))
    return query.softmax(-1) @ (key.softmax(-2).mT @ value), None


def landmarks(x):
    query, key, value = (part.transpose(1, 2) for part in project(x))
    few = query[:, :, :3]
    first, last = (query @ few.mT).softmax(-1), (few @ key.mT).softmax(-1)
    return first @ (few @ few.mT).softmax(-1) @ (last @ value), None


def blocks(x):
    query, key, value = (part.transpose(1, 2).unflatten(2, (4, 2)) for part in project(x))
    key, value = (torch.cat((part.roll(1, 2), part), 3) for part in (key, value))
    return (query @ key.mT).softmax(-1) @ value, None


def a_part_of_the_keys(x):
    query, key, value = (part.transpose(1, 2) for part in project(x))
    return (query @ key.mT).softmax(-1)[..., :5] @ value[:, :, :5], None


def not_normalized(x):
    query, key, value = (part.transpose(1, 2) for part in project(x))
    return ((query @ key.mT).softmax(-1) - 0.5 * (query @ query.mT).softmax(-1)) @ value, None


def overwritten(x):
    query, key, value = (part.transpose(1, 2) for part in project(x))
    scores = query @ key.mT
    weights = scores.softmax(-1)
    scores.zero_()
    return weights @ value, None


REFUSED = {
    linear_attention: "multiplies queries by a product over keys",
    both_softmaxes: "multiplies several softmaxes",
    landmarks: "multiplies several softmaxes",
    blocks: "attends to blocks of keys",
    a_part_of_the_keys: "takes a part of its keys",
    not_normalized: "changes its softmax so that rows do not sum to 1",
    overwritten: "overwrites its scores after the softmax",
}


@pytest.mark.parametrize("call", REFUSED, ids=lambda call: call.__name__)
def test_other_forms_are_refused_with_the_reason(call):
    message = rf"NamedAttention computes .*: it {REFUSED[call]}; if it is a softmax.*NamedAttention: adapter"
    x = inputs(BATCH, 8, HEADS * WIDTH)
    with pytest.raises(InvalidArgument, match=message) as error, regard.watch(NamedAttention(call)) as result:
        result.model(x)
    assert "layers=" not in str(error.value)  # there is nothing else
    model = Outer(Calls(call), SlowAttention())
    model.parts[1].forward = lambda _: SlowAttention.forward(model.parts[1], x)
    with pytest.warns(UserWarning, match=r"not recorded: parts.0 \(Calls\)"), regard.watch(model) as result:
        model(x)
    assert [layer.name for layer in result.layers] == ["parts.1"]


def test_layers_that_are_left_out_are_not_captured():
    model = Outer(SlowAttention(), NamedAttention(linear_attention))
    model.parts[1].forward = lambda x: x
    with regard.watch(model, layers=["parts.0"]) as result:
        model(inputs())
    assert len(result.layers) == 1
    with (
        pytest.raises(InvalidArgument, match=r"layers=\[...\] did not compute"),
        regard.watch(model, layers=["parts.1"]),
    ):
        model(inputs())


def test_a_softmax_in_a_module_of_its_own_belongs_to_the_one_that_multiplies():
    class Softened(Calls):
        def __init__(self):
            super().__init__(self.attend)
            self.soften, self.drop = nn.Softmax(-1), nn.Dropout(0.0)

        def attend(self, x):
            weights = self.soften(x @ x.mT)
            return self.drop(weights) @ x, weights[:, None]

    module = Softened()
    layer = watched(Outer(module), inputs()).layers[0]
    assert layer.name == "parts.0"
    torch.testing.assert_close(layer.weights.dense(), module.weights)


def test_one_softmax_with_several_values_is_one_layer():
    def relative(x):
        query, key, value = (part.transpose(1, 2) for part in project(x))
        weights = (query @ key.mT).softmax(-1)
        extra = torch.einsum("bhlr,lrd->bhld", weights, torch.randn(TOKENS, TOKENS, WIDTH))
        return weights @ value + weights @ (2 * value) + extra, weights

    module = Calls(relative)
    (layer,) = watched(module, inputs(), keep_values=True).layers
    torch.testing.assert_close(layer.weights.dense(), module.weights)
    assert layer.value is None
