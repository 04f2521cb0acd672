"""Results of a softmax that a module changes in place, divides into parts or multiplies several times."""

from __future__ import annotations

import pytest
import torch

import regard
from helpers.own_softmax import BATCH, HEADS, TOKENS, WIDTH, Calls
from regard.errors import InvalidArgument


def in_place(change):
    def attend(query, key):
        weights = (query @ key.mT).softmax(-1)
        change(weights)
        weights /= weights.sum(-1, keepdim=True)
        return weights @ key, weights.clone()

    return attend


@pytest.mark.parametrize(
    "change",
    [
        lambda weights: weights[..., 4:].zero_(),
        lambda weights: weights.__setitem__((..., slice(4, None)), 0.0),
        lambda weights: weights.tril_(),
        lambda weights: weights.view(-1, TOKENS).mul_(torch.arange(1.0, TOKENS + 1)),
        lambda weights: torch.mul(weights, torch.arange(1.0, TOKENS + 1), out=weights),
        lambda weights: weights.pow_(2),
    ],
)
def test_weights_that_a_module_changes_in_place_are_those_after_it(change):
    module, x = Calls(in_place(change)), torch.randn(BATCH, HEADS, TOKENS, WIDTH)
    with pytest.warns(UserWarning, match="dense"), regard.watch(module) as result, torch.no_grad():
        module(x, x)
    torch.testing.assert_close(result.layers[0].weights.dense(), module.weights)


def test_a_softmax_that_overwrites_its_scores():
    def attend(query, key):
        scores = query @ key.mT
        weights = torch.softmax(scores, -1, out=scores)
        return weights @ key, weights

    module, x = Calls(attend), torch.randn(BATCH, HEADS, TOKENS, WIDTH)
    with pytest.warns(UserWarning, match="dense"), regard.watch(module) as result, torch.no_grad():
        module(x, x)
    torch.testing.assert_close(result.layers[0].weights.dense(), module.weights)


@pytest.mark.parametrize(
    "multiply",
    [
        lambda w, v: torch.stack([w[:, i] @ v[:, i] for i in range(HEADS)], 1),
        lambda w, v: torch.cat([w[:, :, :3] @ v, w[:, :, 3:] @ v], 2),
        lambda w, v: torch.stack([w[i] @ v[i] for i in range(len(w))]),
        lambda w, v: torch.stack([a @ b for a, b in zip(w.unbind(1), v.unbind(1), strict=True)], 1),
    ],
)
def test_a_softmax_that_is_multiplied_part_by_part_is_not_recorded(multiply):
    def attend(query, key):
        weights = (query @ key.mT).softmax(-1)
        return multiply(weights, key), weights

    module, x = Calls(attend), torch.randn(BATCH, HEADS, TOKENS, WIDTH)
    with pytest.raises(InvalidArgument, match=r"nothing was recorded: .* part"), regard.watch(module):
        module(x, x)


def test_a_division_by_the_softmax_is_no_scale():
    def attend(query, key):
        weights = (query @ key.mT).softmax(-1)
        return torch.div(1, weights) @ key, weights

    with pytest.raises(InvalidArgument, match="rows do not sum to 1"), regard.watch(Calls(attend)) as result:
        result.model(*torch.randn(2, BATCH, HEADS, TOKENS, WIDTH))


class Own(torch.nn.Module):
    num_heads = HEADS

    def __init__(self, gate=None):
        super().__init__()
        self.project, self.gate = torch.nn.Linear(HEADS * WIDTH, HEADS * WIDTH), gate

    def forward(self, x, weights=None):
        query = self.project(x).unflatten(2, (HEADS, -1)).transpose(1, 2)
        if weights is None:
            weights = (query @ query.mT).softmax(-1)
            weights.retain_grad()
            self.weights = weights
        gated = weights if self.gate is None else weights * self.gate
        return (gated @ query).transpose(1, 2).flatten(2), weights


class Reuses(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = Own(), Own(), Own()

    def forward(self, x):
        y, weights = self.a(x)
        return self.b(y)[0] + self.c(y, weights)[0]


@pytest.mark.filterwarnings("ignore:.*dense weights")
def test_gradients_of_weights_that_another_module_multiplies_too_are_refused():
    model = Reuses()
    with regard.watch(model, weight_gradients=True) as result:
        model(torch.randn(BATCH, TOKENS, HEADS * WIDTH))[:, 0].sum().backward()
    torch.testing.assert_close(result.layers["b"].weights.grad.dense(), model.b.weights.grad)
    with pytest.raises(InvalidArgument, match="not its weights times one value"):
        _ = result.layers["a"].weights.grad


@pytest.mark.filterwarnings("ignore:.*dense weights")
def test_gradients_of_weights_with_a_gate_are_refused():
    model = Own(torch.arange(float(HEADS)).view(1, HEADS, 1, 1))
    with regard.watch(model, weight_gradients=True) as result:
        model(torch.randn(BATCH, TOKENS, HEADS * WIDTH))[0][:, 0].sum().backward()
    torch.testing.assert_close(result.layers[0].weights.dense(), model.weights.detach())
    with pytest.raises(InvalidArgument, match="not its weights times one value"):
        _ = result.layers[0].weights.grad


@pytest.mark.filterwarnings("ignore:.*dense weights")
def test_a_token_that_a_mask_of_its_own_leaves_out_is_no_padding():
    mask = torch.ones(TOKENS, TOKENS).tril(-1).bool()
    mask[0, 0] = True

    def attend(query, key):
        weights = (query @ key.mT).masked_fill(~mask, -torch.inf).softmax(-1)
        return weights @ key, weights

    module, x = Calls(attend), torch.randn(BATCH, HEADS, TOKENS, WIDTH)
    with regard.watch(module, ["received"]) as result:
        module(x, x)
    torch.testing.assert_close(result.layers[0].measured["received"], module.weights.sum(2))
