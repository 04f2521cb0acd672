"""Losses on attention weights, to be added to the loss of a model.

Each takes a `WeightMatrix`, such as `AttentionOutput.weights`, and returns a scalar. No (queries, keys) tensor is
stored, forward or backward. Queries that the matrix marks as padding do not count.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from regard.checks import Checks, describe
from regard.ops import WeightMatrix
from regard.ops.indexing import SelectCells
from regard.ops.measures import Received
from regard.ops.measures.divergence import KLDivergence

MeanWeights = Shaped[Tensor, "..."] | None
"""Weights of rows or keys in a mean, broadcastable to (batch, heads, queries) or (batch, heads, keys); None: all 1."""


def entropy_loss(
    weights: WeightMatrix, *, floor: float | None = None, ceiling: float | None = None, row_weights: MeanWeights = None
) -> Float[Tensor, ""]:
    """Penalize entropies H outside a range: the mean over rows of max(0, floor − H) + max(0, H − ceiling).

    A floor keeps heads from collapsing onto one key, which makes training unstable; a ceiling makes them sharper.

    Args:
        weights: (batch, heads, queries, keys).
        floor: Lower bound in nats. Default: none.
        ceiling: Upper bound in nats. Default: none.
        row_weights: Broadcastable to (batch, heads, queries); 0 excludes a row, such as padding. Default: all 1.

    Raises:
        InvalidArgument: If both bounds are None, floor is above ceiling, or row_weights has a wrong shape.
        InvalidType: If weights is not a weight matrix.

    Reference: Zhai et al. 2023, "Stabilizing Transformer Training by Preventing Attention Entropy Collapse".

    Examples:
        >>> import regard, torch
        >>> W = regard.weights(torch.zeros(1, 1, 4, 8), torch.zeros(1, 1, 4, 8))  # entropy log 4 = 1.386
        >>> regard.nn.entropy_loss(W, ceiling=1.0)
        tensor(0.3863)
    """
    with Checks() as checks:
        check_matrix(checks, "weights", weights, row_weights=row_weights)
        _check_range(checks, floor, ceiling)
    entropy = weights.entropy()
    return mean_of_rows((entropy - entropy.clamp(floor, ceiling)).abs(), weights, row_weights)


def spectral_entropy_loss(
    weights: WeightMatrix, *, floor: float | None = None, ceiling: float | None = None, k: int | None = None
) -> Float[Tensor, ""]:
    """Penalize spectral entropies H outside a range: the mean over heads of max(0, floor − H) + max(0, H − ceiling).

    H is the entropy of the singular values of a head (`WeightMatrix.spectral_entropy`). A floor keeps a head from
    collapsing to rank one, where all queries attend to the same keys. Padding queries, if known, do not count.

    Args:
        weights: (batch, heads, queries, keys).
        floor: Lower bound in nats. Default: none.
        ceiling: Upper bound in nats. Default: none.
        k: How many singular values, the largest ones. Default: all, from the dense matrix, for short inputs.

    Raises:
        InvalidArgument: If both bounds are None, floor is above ceiling, there are fewer than k singular values or they
            do not converge, or the dense matrix is too large.
        InvalidType: If weights is not a weight matrix.

    Reference: Roy and Vetterli 2007, "The Effective Rank"; Dong et al. 2021, "Attention is not all you need: pure
    attention loses rank doubly exponentially with depth".

    Examples:
        >>> import regard, torch
        >>> W = regard.weights(torch.zeros(1, 1, 4, 8), torch.zeros(1, 1, 4, 8))  # rank one: entropy 0
        >>> regard.nn.spectral_entropy_loss(W, floor=1.0)
        tensor(1.)
    """
    with Checks() as checks:
        check_matrix(checks, "weights", weights)
        _check_range(checks, floor, ceiling)
    entropy = weights.spectral_entropy(k)
    return (entropy - entropy.clamp(floor, ceiling)).abs().mean()


def alignment_loss(
    weights: WeightMatrix, targets: Int[Tensor, "batch queries"], *, row_weights: MeanWeights = None
) -> Float[Tensor, ""]:
    """Cross-entropy against the key that each query should attend to: the mean over rows and heads of −log Pᵢⱼ.

    Args:
        weights: (batch, heads, queries, keys); choose heads by ``W.at(heads=[0])``.
        targets: (batch, queries), index of the key for each query; negative excludes the query.
        row_weights: Broadcastable to (batch, heads, queries). Default: all 1.

    Raises:
        InvalidArgument: If targets or row_weights has a wrong shape, or a target is not the index of a key.
        InvalidType: If weights is not a weight matrix, or targets are not integers.

    Reference: Garg et al. 2019, "Jointly Learning to Align and Translate with Transformer Models".

    Examples:
        >>> import regard, torch
        >>> W = regard.weights(torch.zeros(1, 1, 2, 8), torch.zeros(1, 1, 4, 8))
        >>> regard.nn.alignment_loss(W, torch.tensor([[3, -1]]))  # log 4
        tensor(1.3863)
    """
    with Checks() as checks:
        if check_matrix(checks, "weights", weights, row_weights=row_weights):
            batch, _, queries, size = weights.shape
            valid = checks.tensor("targets", targets, "integer", shapes={"(batch, queries)": (batch, queries)})
            if valid and targets.device.type == "cpu" and targets.numel():  # would synchronize a GPU
                last = int(targets.max())
                checks.that(last < size, f"targets: expected indices below {size}, the number of keys, got {last}")
    aligned = targets >= 0
    indices = targets.clamp(min=0)[:, None, :, None].expand(-1, weights.shape[1], -1, 1)
    measured = weights.measure({"score": SelectCells("scores", indices), "lse": "lse"})
    score = measured["score"][..., 0]
    loss = (measured["lse"] - score).masked_fill(score == -torch.inf, torch.inf)  # also if the row has no keys
    aligned = aligned[:, None]
    return mean_of_rows(loss, weights, aligned if row_weights is None else aligned * row_weights)


def coverage_loss(
    weights: WeightMatrix, *, row_weights: MeanWeights = None, key_weights: MeanWeights = None
) -> Float[Tensor, ""]:
    """Penalize uneven coverage: the mean over keys of (1 − cⱼ)², where key j receives cⱼ = Σᵢ Pᵢⱼ.

    In translation, each source token should receive a total weight of about 1.

    Args:
        weights: (batch, heads, queries, keys).
        row_weights: Factor of each row in cⱼ, broadcastable to (batch, heads, queries); 0 for padding. Default: all 1.
        key_weights: Weight of each key in the mean, broadcastable to (batch, heads, keys). Default: all 1.

    Raises:
        InvalidArgument: If row_weights or key_weights has a wrong shape.
        InvalidType: If weights is not a weight matrix.

    Reference: Xu et al. 2015, "Show, Attend and Tell", equation 14 (doubly stochastic attention).

    Examples:
        >>> import regard, torch
        >>> W = regard.weights(torch.zeros(1, 1, 4, 8), torch.zeros(1, 1, 2, 8))  # each key receives 2
        >>> regard.nn.coverage_loss(W)
        tensor(1.)
    """
    with Checks() as checks:
        check_matrix(checks, "weights", weights, row_weights=row_weights, key_weights=key_weights)
    received = weights.measure(Received(row_weights))["received"]
    return _mean((1 - received).square(), key_weights)


def kl_divergence_loss(
    weights: WeightMatrix, other: WeightMatrix, *, row_weights: MeanWeights = None
) -> Float[Tensor, ""]:
    """KL divergence between two attention weights: the mean over rows of Σⱼ Pᵢⱼ log (Pᵢⱼ / Qᵢⱼ), in nats.

    For distillation, pass the teacher's weights, detached, first and the student's second.

    Args:
        weights: P, (batch, heads, queries, keys).
        other: Q, of the same shape.
        row_weights: Broadcastable to (batch, heads, queries). Default: all 1.

    Returns:
        A scalar; infinite if Q masks a key that P attends to.

    Raises:
        InvalidArgument: If the shapes or devices differ, or row_weights has a wrong shape.
        InvalidType: If weights or other is not a weight matrix.

    Reference: Kullback and Leibler 1951, "On Information and Sufficiency"; Wang et al. 2020, "MiniLM", equation 3.

    Examples:
        >>> import regard, torch
        >>> W = regard.weights(*torch.randn(2, 1, 2, 5, 8).unbind())
        >>> bool(regard.nn.kl_divergence_loss(W, W).abs() < 1e-6)
        True
    """
    with Checks() as checks:
        if all(
            [check_matrix(checks, "weights", weights, row_weights=row_weights), check_matrix(checks, "other", other)]
        ):
            shape, device = tuple(weights.shape), weights.device
            if other.shape != weights.shape or other.device != device:
                checks.fail(f"other: expected shape {shape} on {device}, got {tuple(other.shape)} on {other.device}")
    divergence = weights.measure(KLDivergence(other))["kl_divergence"]
    return mean_of_rows(divergence, weights, row_weights)


def _check_range(checks: Checks, floor: float | None, ceiling: float | None) -> None:
    if floor is None and ceiling is None:
        checks.fail("floor, ceiling: expected at least one of them, in nats, got neither")
    elif floor is not None and ceiling is not None and floor > ceiling:
        checks.fail(f"floor: expected at most the ceiling {ceiling}, got {floor}")


def mean_of_rows(values: Tensor, weights: WeightMatrix, row_weights: MeanWeights) -> Tensor:
    """The mean without the queries that the matrix marks as padding."""
    if weights.valid_queries is not None:
        valid = weights.valid_queries[:, None]
        row_weights = valid if row_weights is None else valid * row_weights
    return _mean(values, row_weights)


def _mean(values: Tensor, weights: MeanWeights) -> Tensor:
    if weights is None:
        return values.mean()
    counted = weights.to(values.dtype).expand(values.shape)
    values = values.masked_fill(counted == 0, 0.0)  # also where it is infinite
    return (values * counted).sum() / counted.sum().clamp(min=torch.finfo(values.dtype).tiny)


def check_matrix(checks: Checks, name: str, matrix: Any, **mean_weights: MeanWeights) -> bool:
    """Check that this is a matrix, and that weights of its rows or keys are broadcastable."""
    if not isinstance(matrix, WeightMatrix):
        expected = "a WeightMatrix such as AttentionOutput.weights"
        return checks.fail_type(f"{name}: expected {expected}, got {describe(matrix)}")
    batch, heads, queries, keys = matrix.shape
    for argument, value in mean_weights.items():
        axis, size = ("keys", keys) if argument == "key_weights" else ("queries", queries)
        if value is not None and checks.tensor(argument, value, device=matrix.device):
            checks.broadcastable(argument, value, f"(batch, heads, {axis})", (batch, heads, size))
    return True
