"""A user-defined measure gets whole rows: every key of the matrix, with weight 0 where the mask hides it."""

from __future__ import annotations

from functools import cache
from math import inf, log

import pytest
import torch

from helpers.ops.cases import allowed, masks
from regard.ops import attend, weights
from regard.ops.masks import Causal, Neighbors, Padding, Window
from regard.ops.measures import Entropy, Measure, Received

BATCH, HEADS, QUERIES, KEYS = SHAPE = 2, 2, 300, 270
RULES = masks(*SHAPE)


def gini(P):
    """0 where all keys weigh the same, near 1 where one has all: by the mean difference of any two weights."""
    keys = P.shape[-1]
    rank = torch.arange(1, keys + 1, dtype=P.dtype)
    return ((2 * rank - keys - 1) * P.sort(-1).values).sum(-1) / (keys * P.sum(-1).clamp(min=1e-30))


def spread(P):
    return (P.var(-1, correction=0) + 1e-9).sqrt()  # the root has no gradient at 0


def evenness(entropy, P):
    """The entropy divided by its maximum."""
    return entropy / log(P.shape[-1])


class Gini(Measure):
    def compute(self, block):
        return gini(block.weights)


class MeanWeight(Measure):
    def compute(self, block):
        return block.weights.mean(-1)


class Spread(Measure):
    def compute(self, block):
        return spread(block.weights)


class Count(Measure):
    def compute(self, block):
        return torch.full_like(block.weights[..., 0], block.weights.shape[-1])


class Evenness(Entropy):
    """A built-in measure that is made another one."""

    def compute(self, block):
        return evenness(super().compute(block), block.weights)


class TimesUniform(Received):
    """What each key receives, in multiples of what it would receive if all weights were equal."""

    def compute(self, block):
        return super().compute(block) * block.weights.shape[-1]


class AboveMean(Measure):
    """What each key receives beyond the mean of its rows."""

    axis = "keys"

    def compute(self, block):
        return (block.weights - block.weights.mean(-1, keepdim=True)).relu().sum(-2)


class Total(Measure):
    axis = None

    def compute(self, block):
        return torch.stack((spread(block.weights).sum(-1), block.weights.mean(-1).sum(-1)), -1)


OWN = {
    "gini": Gini(),
    "mean": MeanWeight(),
    "spread": Spread(),
    "count": Count(),
    "evenness": Evenness(),
    "times uniform": TimesUniform(),
    "above mean": AboveMean(),
    "total": Total(),
    "entropy": Entropy(),
}


def by_definition(P):
    entropy = -(P * P.where(P > 0, 1.0).log()).sum(-1)
    return {
        "gini": gini(P),
        "mean": P.mean(-1),
        "spread": spread(P),
        "count": torch.full_like(P[..., 0], P.shape[-1]),
        "evenness": evenness(entropy, P),
        "times uniform": P.sum(-2) * P.shape[-1],
        "above mean": (P - P.mean(-1, keepdim=True)).relu().sum(-2),
        "total": torch.stack((spread(P).sum(-1), P.mean(-1).sum(-1)), -1),
        "entropy": entropy,
    }


def tensors():
    random = torch.Generator().manual_seed(0)
    sizes = (HEADS, QUERIES), (1, KEYS), (1, KEYS)
    draws = (torch.randn(BATCH, *size, 4, generator=random, dtype=torch.float64) for size in sizes)
    return [tensor.requires_grad_() for tensor in draws]


def loss(measures):
    trained = [measures[name] for name in measures if name != "count"]
    return sum((part * torch.linspace(0.5, 1.5, part.numel()).view(part.shape)).sum() for part in trained)


@cache
def cells_of(mask):
    return allowed(mask, *SHAPE, KEYS - QUERIES)


@cache
def exact_results(mask):
    """The measures, and the gradients of query and key."""
    query, key, _ = tensors()
    scores = (query @ key.mT / 2).masked_fill(~cells_of(mask), -inf)
    numerator = (scores - scores.detach().amax(-1, keepdim=True).clamp(min=-1e9)).exp()  # 0 where there is no key
    measures = by_definition(numerator / numerator.sum(-1, keepdim=True).clamp(min=1e-300))
    gradients = torch.autograd.grad(loss(measures), (query, key))
    return {name: measure.detach() for name, measure in measures.items()}, gradients


SOME = ["none", "window", "lengths", "neighbors", "neighbors and", "no edges"]
CASES = {"blockwise": list(RULES), None: SOME, "reference": SOME}  # masks by kernel


@pytest.mark.parametrize("kernel", CASES)
def test_a_measure_that_counts_keys_counts_all_of_them(kernel, subtests):
    for mask in CASES[kernel]:
        with subtests.test(mask=mask):
            check_measures(mask, kernel)


def check_measures(mask, kernel):
    query, key, value = tensors()
    actual = attend(query, key, value, mask=RULES[mask], measure=OWN, kernel=kernel).measured
    measures, expected = exact_results(mask)
    for name, measure in measures.items():
        torch.testing.assert_close(actual[name], measure, rtol=1e-9, atol=1e-9, msg=lambda text, n=name: f"{n}: {text}")
    for result, other in zip(torch.autograd.grad(loss(actual), (query, key)), expected, strict=True):
        torch.testing.assert_close(result, other, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kernel", CASES)
def test_a_block_of_a_user_s_measure_has_all_keys(kernel, subtests):
    for mask in CASES[kernel]:
        with subtests.test(mask=mask):
            check_blocks(mask, kernel)


def check_blocks(mask, kernel):
    blocks = []

    class Seen(Measure):
        def compute(self, block):
            blocks.append(block)
            return block.weights.sum(-1)

    query, key, value = (tensor.detach() for tensor in tensors())
    attend(query, key, value, mask=RULES[mask], measure=[Seen(), "entropy"], kernel=kernel)
    rows = 0
    for block in blocks:
        assert block.weights.shape[-1] == block.scores.shape[-1] == KEYS
        assert block.index[3] == slice(0, KEYS)
        assert torch.equal(block.kv_idx, torch.arange(KEYS))
        assert (block.weights[~cells_of(mask)[block.index[:3]]] == 0).all()
        rows += block.weights[..., 0].numel()
    assert rows == BATCH * HEADS * QUERIES  # each once


CHAIN = Neighbors(*torch.stack((torch.arange(QUERIES), torch.arange(QUERIES) % 100)))


@pytest.mark.parametrize("mask", [Window(20, 0), Causal() & Padding(torch.tensor([200, 30])), CHAIN], ids=repr)
def test_some_rows_of_a_view_are_whole_too(mask):
    query, key, _ = (tensor.detach() for tensor in tensors())
    W = weights(query, key, mask=mask)
    own = {name: OWN[name] for name in ("gini", "mean", "spread", "count", "evenness")}
    for part in (W, W.at(batch=1, heads=[1], queries=[7, 290, 3]), W.at(queries=slice(140, 160)), W.detach()):
        measures = by_definition(part.dense())
        for name, actual in part.measure(own).items():
            torch.testing.assert_close(actual, measures[name], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("sees_all_keys", [True, False])
def test_an_infinite_derivative_at_masked_keys_reaches_no_gradient(sees_all_keys):
    class SquareRoots(Measure, name=f"square_roots_{sees_all_keys}"):
        needs_all_keys = sees_all_keys

        def compute(self, block):
            return block.weights.sqrt().sum(-1)

    query, key = torch.randn(2, 1, 2, 6, 4, dtype=torch.float64).requires_grad_().unbind()
    result = weights(query, key, mask=Causal()).measure(SquareRoots())
    (gradient,) = torch.autograd.grad(next(iter(result.values())).sum(), query)
    allowed = torch.ones(6, 6, dtype=torch.bool).tril()
    P = (query @ key.mT / 2).masked_fill(~allowed, -torch.inf).softmax(-1)
    (expected,) = torch.autograd.grad(P.masked_select(allowed).sqrt().sum(), query)
    assert torch.allclose(gradient, expected)
