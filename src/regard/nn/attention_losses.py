"""Losses on attention: what a model's weights should look like, as terms of what it is trained for.

Each takes a `WeightMatrix`, as `AttentionOutput.weights` or an output's `.attentions` give it, and is a scalar. Nothing
of the size queries × keys is made, forward or backward. Queries that the matrix knows to be padding do not count.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from regard.checks import Checks, describe
from regard.ops import WeightMatrix
from regard.ops.indexing import SelectCells
from regard.ops.measures import Received
from regard.ops.measures.divergence import KLDivergence

Rows = Shaped[Tensor, "..."] | None
"""How much each row counts, broadcastable to (batch, heads, queries); None counts all alike."""


def entropy_loss(
    weights: WeightMatrix, *, floor: float | None = None, ceiling: float | None = None, row_weights: Rows = None
) -> Float[Tensor, ""]:
    """How far the entropy of rows lies outside a range: the mean over rows of max(0, floor − H) + max(0, H − ceiling).

    A floor keeps heads from collapsing onto one key, which makes training unstable; a ceiling makes them choose.

    Args:
        weights: (batch, heads, queries, keys).
        floor: In nats. Default: none.
        ceiling: In nats. Default: none.
        row_weights: Broadcastable to (batch, heads, queries); 0 leaves a row out, as where it is padding.

    Raises:
        InvalidArgument: If neither bound is given, the floor lies above the ceiling, or row_weights do not fit.
        InvalidType: If weights is not a weight matrix.

    Reference: Zhai et al. 2023, "Stabilizing Transformer Training by Preventing Attention Entropy Collapse", section 3.

    Example:
        >>> import regard, torch
        >>> W = regard.weights(torch.zeros(1, 1, 4, 8), torch.zeros(1, 1, 4, 8))  # entropy log 4 = 1.386
        >>> regard.nn.entropy_loss(W, ceiling=1.0)
        tensor(0.3863)
    """
    with Checks() as checks:
        _check(checks, weights, row_weights=row_weights)
        if floor is None and ceiling is None:
            checks.fail("floor, ceiling: expected at least one of them, in nats, got neither")
        elif floor is not None and ceiling is not None and floor > ceiling:
            checks.fail(f"floor: expected at most the ceiling {ceiling}, got {floor}")
    entropy = weights.entropy()
    outside = torch.zeros_like(entropy)
    if floor is not None:
        outside = outside + (floor - entropy).clamp(min=0)
    if ceiling is not None:
        outside = outside + (entropy - ceiling).clamp(min=0)
    return _mean(outside, _row_weights(weights, row_weights))


def alignment_loss(
    weights: WeightMatrix, targets: Int[Tensor, "batch queries"], *, row_weights: Rows = None
) -> Float[Tensor, ""]:
    """Cross-entropy against the key that each query should attend to: the mean over rows and heads of −log Pᵢⱼ.

    Args:
        weights: (batch, heads, queries, keys); choose heads by ``W.at(heads=[0])``.
        targets: (batch, queries), the number of each query's key; below 0 it has none, and does not count.
        row_weights: Broadcastable to (batch, heads, queries).

    Raises:
        InvalidArgument: If targets or row_weights do not fit the matrix.
        InvalidType: If weights is not a weight matrix, or targets are not integers.

    Reference: Garg et al. 2019, "Jointly Learning to Align and Translate with Transformer Models", section 3.3.

    Example:
        >>> import regard, torch
        >>> W = regard.weights(torch.zeros(1, 1, 2, 8), torch.zeros(1, 1, 4, 8))
        >>> regard.nn.alignment_loss(W, torch.tensor([[3, -1]]))  # log 4
        tensor(1.3863)
    """
    with Checks() as checks:
        if _check(checks, weights, row_weights=row_weights):
            batch, heads, queries, size = weights.shape
            valid = checks.tensor("targets", targets, "integer", shapes={"(batch, queries)": (batch, queries)})
            if valid and targets.device.type == "cpu" and targets.numel():  # elsewhere a device would have to wait
                last = int(targets.max())
                checks.that(last < size, f"targets: expected indices below {size}, the number of keys, got {last}")
    aligned = targets >= 0
    at = targets.clamp(min=0)[:, None, :, None].expand(-1, heads, -1, 1)
    found = weights.measure({"score": SelectCells("scores", at), "lse": "lse"})
    score = found["score"][..., 0]
    loss = (found["lse"] - score).masked_fill(score == -torch.inf, torch.inf)  # also in a row that has no key
    loss = loss.masked_fill(~aligned[:, None], 0.0)
    counted, row_weights = aligned[:, None].to(loss.dtype), _row_weights(weights, row_weights)
    return _mean(loss, counted if row_weights is None else counted * row_weights)


def coverage_loss(weights: WeightMatrix, *, row_weights: Rows = None, key_weights: Rows = None) -> Float[Tensor, ""]:
    """How unevenly the keys are covered: the mean over keys of (1 − cⱼ)² with cⱼ = Σᵢ Pᵢⱼ what a key receives.

    In translation every word of the source should be read about once.

    Args:
        weights: (batch, heads, queries, keys).
        row_weights: Broadcastable to (batch, heads, queries): how much each query gives; 0 where it is padding.
        key_weights: Broadcastable to (batch, heads, keys): how much each key counts; 0 where it is padding.

    Raises:
        InvalidArgument: If row_weights or key_weights do not fit the matrix.
        InvalidType: If weights is not a weight matrix.

    Reference: Xu et al. 2015, "Show, Attend and Tell", equation 14 (doubly stochastic attention).

    Example:
        >>> import regard, torch
        >>> W = regard.weights(torch.zeros(1, 1, 4, 8), torch.zeros(1, 1, 2, 8))  # each key receives 2
        >>> regard.nn.coverage_loss(W)
        tensor(1.)
    """
    with Checks() as checks:
        _check(checks, weights, row_weights=row_weights, key_weights=key_weights)
    received = weights.measure(Received(row_weights))["received"]
    return _mean((1 - received).square(), key_weights)


def kl_divergence_loss(weights: WeightMatrix, other: WeightMatrix, *, row_weights: Rows = None) -> Float[Tensor, ""]:
    """How far another model's attention is from this one's: the mean over rows of Σⱼ Pᵢⱼ log (Pᵢⱼ / Qᵢⱼ), in nats.

    To teach a student, give the teacher's weights, detached, first and the student's second.

    Args:
        weights: P, (batch, heads, queries, keys).
        other: Q, of the same shape.
        row_weights: Broadcastable to (batch, heads, queries).

    Returns:
        A scalar; infinite where Q forbids a key that P attends to.

    Raises:
        InvalidArgument: If the shapes or devices differ, or row_weights do not fit.
        InvalidType: If weights or other is not a weight matrix.

    Reference: Kullback and Leibler 1951, "On Information and Sufficiency"; Wang et al. 2020, "MiniLM", equation 3.

    Example:
        >>> import regard, torch
        >>> W = regard.weights(*torch.randn(2, 1, 2, 5, 8).unbind())
        >>> bool(regard.nn.kl_divergence_loss(W, W).abs() < 1e-6)
        True
    """
    with Checks() as checks:
        if all([_check(checks, weights, row_weights=row_weights), _check_matrix(checks, "other", other)]):
            shape, device = tuple(weights.shape), weights.device
            if other.shape != weights.shape or other.device != device:
                checks.fail(f"other: expected shape {shape} on {device}, got {tuple(other.shape)} on {other.device}")
    divergence = weights.measure(KLDivergence(other))["kl_divergence"]
    return _mean(divergence, _row_weights(weights, row_weights))


def _row_weights(weights: WeightMatrix, row_weights: Rows) -> Rows:
    """How much each row counts: nothing where the matrix knows that its query is padding."""
    if weights.valid_queries is None:
        return row_weights
    valid = weights.valid_queries[:, None].to(weights.dtype)
    return valid if row_weights is None else valid * row_weights


def _mean(values: Tensor, weights: Rows) -> Tensor:
    if weights is None:
        return values.mean()
    counted = weights.to(values.dtype).expand(values.shape)
    values = values.masked_fill(counted == 0, 0.0)  # also where it is infinite
    return (values * counted).sum() / counted.sum().clamp(min=torch.finfo(values.dtype).tiny)


def _check(checks: Checks, weights: WeightMatrix, **counts: Rows) -> bool:
    """Check the matrix, and that the weights of its rows or keys can be expanded to them."""
    if not _check_matrix(checks, "weights", weights):
        return False
    batch, heads, queries, keys = weights.shape
    for name, given in counts.items():
        axis, size = ("keys", keys) if name == "key_weights" else ("queries", queries)
        if given is not None and checks.tensor(name, given, device=weights.device):
            checks.broadcastable(name, given, f"(batch, heads, {axis})", (batch, heads, size))
    return True


def _check_matrix(checks: Checks, name: str, value: object) -> bool:
    expected = "a weight matrix, as AttentionOutput.weights"
    return isinstance(value, WeightMatrix) or checks.fail_type(f"{name}: expected {expected}, got {describe(value)}")
