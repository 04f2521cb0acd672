"""Losses on attention against the same formulas on the dense matrix, with their gradients."""

from __future__ import annotations

import pytest
import torch

from regard.errors import InvalidArgument, InvalidType
from regard.nn import alignment_loss, coverage_loss, entropy_loss, kl_divergence_loss, spectral_entropy_loss
from regard.ops import WeightMatrix, weights
from regard.ops.masks import Causal, Padding, Window
from regard.ops.scores import Alibi, ScaledDotProduct, Sinks

LENGTHS = torch.tensor([9, 4])


def matrix(seed=0, kv_heads=4, mask=None, score=None):
    random = torch.Generator().manual_seed(seed)
    query = torch.randn(2, 4, 7, 5, generator=random, dtype=torch.float64).requires_grad_()
    key = torch.randn(2, kv_heads, 9, 5, generator=random, dtype=torch.float64).requires_grad_()
    return weights(2 * query, key, mask=mask, score=score), [query, key]


def same(actual, expected, leaves):
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(*(torch.autograd.grad(each, leaves, retain_graph=True) for each in (actual, expected)))


def logs(P):
    return P.where(P > 0, 1.0).log()


ROWS = torch.rand(2, 1, 7, generator=torch.Generator().manual_seed(9), dtype=torch.float64)


@pytest.mark.parametrize("row_weights", [None, ROWS])
@pytest.mark.parametrize("mask", [None, Padding(LENGTHS), Window(1, None)], ids=str)
def test_entropy(mask, row_weights):
    W, leaves = matrix(mask=mask)
    P = W.dense()
    entropy = -(P * logs(P)).sum(-1)
    outside = (0.9 - entropy).clamp(min=0) + (entropy - 1.2).clamp(min=0)
    counted = torch.ones_like(outside) if row_weights is None else row_weights.expand_as(outside)
    actual = entropy_loss(W, floor=0.9, ceiling=1.2, row_weights=row_weights)
    same(actual, (outside * counted).sum() / counted.sum(), leaves)
    assert entropy_loss(W, floor=0.0, ceiling=3.0) == 0


@pytest.mark.parametrize("k", [None, 3])
def test_spectral_entropy(k):
    W, leaves = matrix(mask=Padding(LENGTHS))
    valid = torch.arange(7) < torch.tensor([[7], [5]])
    whole = WeightMatrix(W.request, valid)
    values = torch.linalg.svdvals(W.dense() * valid[:, None, :, None])[..., :k]
    shares = values / values.sum(-1, keepdim=True)
    entropy = -(shares * logs(shares)).sum(-1)
    middle = float(entropy.detach().mean())
    for bounds in ({"floor": middle}, {"ceiling": middle}, {"floor": middle - 0.1, "ceiling": middle + 0.1}):
        low, high = bounds.get("floor", -1.0), bounds.get("ceiling", 9.0)
        outside = (low - entropy).clamp(min=0) + (entropy - high).clamp(min=0)
        same(spectral_entropy_loss(whole, k=k, **bounds), outside.mean(), leaves)
    with pytest.raises(InvalidArgument, match="floor, ceiling: expected at least one of them"):
        spectral_entropy_loss(W)


@pytest.mark.parametrize("row_weights", [None, ROWS])
def test_alignment(row_weights):
    W, leaves = matrix(kv_heads=2)
    keys = torch.tensor([[0, 1, -1, 3, 8, 5, -1], [2, 2, 0, -1, 0, 1, 7]])
    losses = [
        -W.dense()[b, h, i, keys[b, i]].log() * (1 if row_weights is None else row_weights[b, 0, i])
        for b in range(2) for h in range(4) for i in range(7) if keys[b, i] >= 0
    ]  # fmt: skip
    counted = (keys >= 0).double()[:, None] * (1 if row_weights is None else row_weights)
    same(alignment_loss(W, keys, row_weights=row_weights), sum(losses) / (4 * counted.sum()), leaves)


def test_alignment_of_no_pairs_is_zero():
    W, leaves = matrix()
    loss = alignment_loss(W, torch.full((2, 7), -1))
    assert loss == 0
    assert all((part == 0).all() for part in torch.autograd.grad(loss, leaves))


def test_coverage():
    W, leaves = matrix(mask=Padding(LENGTHS))
    real = (torch.arange(9) < LENGTHS[:, None]).double()[:, None]
    received = (W.dense() * ROWS[..., None]).sum(2)
    expected = ((1 - received) ** 2 * real).sum() / (4 * real.sum())
    same(coverage_loss(W, row_weights=ROWS, key_weights=real), expected, leaves)


@pytest.mark.parametrize("row_weights", [None, ROWS])
@pytest.mark.parametrize(
    ("mask", "score"),
    [
        (None, None),
        (Causal(), ScaledDotProduct() + Alibi.for_heads(4)),
        (Window(1, 0), Sinks(ScaledDotProduct(), torch.ones(4))),
    ],
    ids=["plain", "alibi", "sinks"],
)
def test_divergence(mask, score, row_weights):
    W, leaves = matrix(0, mask=mask, score=score)
    other, other_leaves = matrix(1, kv_heads=2, mask=mask)
    P, Q = W.dense(), other.dense()
    expected = (P * (logs(P) - logs(Q))).sum(-1)
    counted = torch.ones_like(expected) if row_weights is None else row_weights.expand_as(expected)
    actual = kl_divergence_loss(W, other, row_weights=row_weights)
    same(actual, (expected * counted).sum() / counted.sum(), leaves + other_leaves)
    assert kl_divergence_loss(other, other).abs() < 1e-12
    taught = kl_divergence_loss(W.detach(), other, row_weights=row_weights)  # a teacher has no gradient
    same(taught, ((P.detach() * (logs(P.detach()) - logs(Q))).sum(-1) * counted).sum() / counted.sum(), other_leaves)


def test_the_divergence_is_infinite_where_the_other_is_masked():
    assert kl_divergence_loss(matrix()[0], matrix(1, mask=Causal())[0]) == torch.inf
    assert kl_divergence_loss(matrix(mask=Causal())[0], matrix(1)[0]) < torch.inf


def test_invalid_arguments_of_losses_are_named():
    W, _ = matrix()
    with pytest.raises(InvalidArgument, match="floor, ceiling: expected at least one of them, in nats, got neither"):
        entropy_loss(W)
    with pytest.raises(InvalidArgument, match=r"floor: expected at most the ceiling 1\.0, got 2\.0"):
        entropy_loss(W, floor=2.0, ceiling=1.0)
    with pytest.raises(InvalidArgument, match=r"targets: expected shape \(batch, queries\) = \(2, 7\), got \(7,\)"):
        alignment_loss(W, torch.zeros(7, dtype=torch.int64))
    with pytest.raises(InvalidArgument, match="targets: expected indices below 9, the number of keys, got 9"):
        alignment_loss(W, torch.full((2, 7), 9))
    with pytest.raises(InvalidType, match=r"targets: expected an integer tensor, got bool \(2, 7\)"):
        alignment_loss(W, torch.ones(2, 7, dtype=torch.bool))
    with pytest.raises(
        InvalidArgument, match=r"other: expected shape \(2, 4, 7, 9\) on cpu, got \(2, 2, 7, 9\) on cpu"
    ):
        kl_divergence_loss(W, W.at(heads=[0, 1]))
    with pytest.raises(InvalidType, match=r"weights: expected a WeightMatrix such as .*, got float"):
        coverage_loss(W.dense())
    for loss in (coverage_loss, lambda W, **inputs: entropy_loss(W, floor=1.0, **inputs)):
        with pytest.raises(
            InvalidArgument, match=r"row_weights: expected a shape broadcastable to .* = \(2, 4, 7\), got \(9,\)"
        ):
            loss(W, row_weights=torch.ones(9))
    with pytest.raises(
        InvalidType,
        match=r"(?s)row_weights: expected a tensor, got list.*key_weights: expected a shape .* 9\), got \(7,\)",
    ):
        coverage_loss(W, row_weights=[1.0], key_weights=torch.ones(7))


def test_a_row_of_weight_zero_is_left_out_where_its_loss_is_infinite():
    x, counted = torch.zeros(1, 1, 3, 4), torch.tensor([0.0, 1, 1])
    causal, past = weights(x, x, mask=Causal()), weights(x, x, mask=Window(None, -1))
    keys = torch.tensor([[2, 0, 0]])
    assert alignment_loss(causal, keys) == torch.inf
    expected = torch.tensor([2.0, 3.0]).log().mean()
    torch.testing.assert_close(alignment_loss(causal, keys, row_weights=counted), expected)
    torch.testing.assert_close(
        kl_divergence_loss(weights(x, x), causal, row_weights=torch.tensor([0.0, 0, 1])), torch.tensor(0.0)
    )
    assert alignment_loss(past, torch.tensor([[0, 0, 0]])) == torch.inf  # its first row has no key
    assert kl_divergence_loss(causal, past) == torch.inf
