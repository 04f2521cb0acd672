"""How attention passes through layers: rollout, which multiplies them, and flow, which lets them be pipes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from regard.checks import Checks
from regard.errors import InvalidArgument, InvalidType, MissingExtra
from regard.ops import WeightMatrix
from regard.ops.indexing import Selection, resolve_index

Fusion = Literal["mean", "max"] | Selection
"""How the heads of a layer become one: their mean, their maximum, or the mean of some of them."""

Rows = Selection

BLOCK = 2**24
"""How many weights are held at once where heads are fused by their maximum: 64 MiB in float32."""

FLOW_EDGES = 10**6
"""So many edges `flow` takes; it finds a maximum flow in all of them for each cell of its answer."""


def rollout(
    layers: Sequence[WeightMatrix], *, rows: Rows = None, heads: Fusion = "mean", residual: float = 0.5
) -> Float[Tensor, "batch rows keys"]:
    """Attention rollout: how much of each input token is in each token of the last layer, R = A_L · … · A₁.

    A = residual · I + (1 − residual) · W with W the fused heads of a layer, and each row divided by its sum: that
    matters where a row of W sums to less than 1 (it sees no key, or a sink) or, with ``"max"``, to more.

    Args:
        layers: The self-attention of each layer, from the input on, (batch, heads, tokens, tokens).
        rows: Tokens of the last layer, one or several; None is all of them.
        heads: ``"mean"``, ``"max"``, or the numbers of heads whose mean is taken.
        residual: The share of the residual connection, from 0 to below 1.

    Returns:
        (batch, rows, tokens), with gradients. Every row sums to 1; without a residual to 0 where it leads to rows that
        see no key.

    Raises:
        InvalidArgument: If the layers do not have the same tokens as queries and as keys, or a number is out of range;
            all objections at once.
        InvalidType: If the layers are no weight matrices.

    Memory: O(tokens · rows): each layer is multiplied with the rows and never made. ``"max"`` makes blocks of its rows.

    Reference: Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3.

    Example:
        >>> import regard, torch
        >>> layers = [regard.weights(*torch.randn(2, 1, 4, 50, 8).unbind()) for _ in range(6)]
        >>> regard.analysis.rollout(layers, rows=[0, 49]).shape
        torch.Size([1, 2, 50])
    """
    numbers = _checked(layers, rows, heads, residual)
    batch, _, tokens, _ = layers[0].shape
    found = torch.eye(tokens, dtype=layers[0].dtype, device=layers[0].device)[numbers].expand(batch, -1, -1)
    for weights in reversed(layers):
        found = _through(weights, found, heads, residual)
    return found


def _through(weights: WeightMatrix, found: Tensor, heads: Fusion, residual: float) -> Tensor:
    """The product of some rows, (batch, rows, tokens), with the matrix A of a layer."""
    if heads == "max":
        fused = ((part, weights.at(queries=part).dense().amax(1)) for part in _parts(weights))
        pairs = [(found[..., part] / _total(block.sum(-1), residual), block) for part, block in fused]
        shares, through = torch.cat([share for share, _ in pairs], -1), sum(share @ block for share, block in pairs)
    else:
        weights = weights if isinstance(heads, str) else weights.at(heads=heads)
        ones = torch.ones(weights.shape[3], dtype=weights.dtype, device=weights.device)
        shares = found / _total((weights @ ones).mean(1), residual)
        through = (weights.mT @ shares.mT[:, None]).mean(1).mT
    return residual * shares + (1 - residual) * through


def _total(mass: Tensor, residual: float) -> Tensor:
    """The sum of each row of residual · I + (1 − residual) · W, (batch, 1, tokens), from those of W."""
    total = residual + (1 - residual) * mass
    return total.where(total > 0, 1.0)[:, None]  # without a residual a row with no key leads nowhere


def _parts(weights: WeightMatrix) -> Iterator[slice]:
    """Slices of the queries with few enough weights to be held at once."""
    batch, heads, queries, keys = weights.shape
    size = max(1, BLOCK // (batch * heads * keys))
    return (slice(start, min(start + size, queries)) for start in range(0, queries, size))


def flow(
    layers: Sequence[WeightMatrix], *, rows: Rows = None, residual: float = 0.5
) -> Float[Tensor, "batch rows keys"]:
    """Attention flow: the layers as a network of pipes, each as wide as its weight; the maximum flow between tokens.

    Pipes lead from each token of a layer to those of the layer below, with A = residual · I + (1 − residual) · W as
    capacities and W the mean of the heads.

    Args:
        layers: The self-attention of each layer, from the input on, (batch, heads, tokens, tokens).
        rows: Tokens of the last layer, one or several; None is all of them.
        residual: The share of the residual connection, from 0 to below 1.

    Returns:
        (batch, rows, tokens): how much can flow from a token of the last layer to each token of the input, found one by
        one: a row does not sum to 1. It has no gradients.

    Raises:
        InvalidArgument: As `rollout`, and if there are more than a million pipes.
        InvalidType: If the layers are no weight matrices.
        MissingExtra: If networkx is not installed.

    Memory: O(layers · tokens²), for small inputs.

    Reference: Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers", section 4.

    Example:
        >>> import regard, torch
        >>> layers = [regard.weights(*torch.randn(2, 1, 2, 4, 8).unbind()) for _ in range(2)]
        >>> regard.analysis.flow(layers, rows=0).shape
        torch.Size([1, 1, 4])
    """
    numbers = _checked(layers, rows, "mean", residual)
    batch, _, tokens, _ = layers[0].shape
    if len(layers) * tokens**2 > FLOW_EDGES:
        raise InvalidArgument(
            f"flow: {len(layers)} layers of {tokens} tokens have {len(layers) * tokens**2:,} pipes; it takes up to "
            f"{FLOW_EDGES:,}. Give fewer layers or a shorter input, or ask for a rollout"
        )
    try:
        import networkx
    except ImportError:
        raise MissingExtra("flow needs networkx: install it with `pip install 'regard[graph]'`") from None
    found = torch.zeros(batch, len(numbers), tokens, dtype=layers[0].dtype)
    own = residual * torch.eye(tokens, dtype=torch.float64)
    widths = [
        own + (1 - residual) * weights.detach().dense().mean(1).cpu().double() for weights in layers
    ]  # (batch, tokens, ...)
    for sequence in range(batch):
        pipes = networkx.DiGraph()
        pipes.add_nodes_from((depth, token) for depth in range(len(layers) + 1) for token in range(tokens))
        for depth, width in enumerate(widths):
            for i, j in width[sequence].nonzero().tolist():
                pipes.add_edge((depth + 1, i), (depth, j), capacity=float(width[sequence, i, j]))
        for row, number in enumerate(numbers):
            for key in range(tokens):
                if networkx.has_path(pipes, (len(layers), number), (0, key)):
                    found[sequence, row, key] = networkx.maximum_flow_value(pipes, (len(layers), number), (0, key))
    return found


def _checked(layers: Sequence[WeightMatrix], rows: Rows, heads: Fusion, residual: float) -> list[int]:
    """The numbers of the rows, once all else is as it must be."""
    if isinstance(layers, WeightMatrix) or not all(isinstance(weights, WeightMatrix) for weights in layers):
        raise InvalidType("layers: expected the weight matrices of the layers, from the input on")
    if not layers:
        raise InvalidArgument("layers: expected at least one weight matrix, got none")
    batch, _, tokens, _ = layers[0].shape
    checks = Checks()
    found = checks.problems
    for number, weights in enumerate(layers):
        sequences, count, queries, keys = weights.shape
        if queries != keys:
            found.append(f"layers: number {number} has {queries} queries and {keys} keys; they must be the same")
        if (sequences, queries) != (batch, tokens):
            first = f"the first one {batch} and {tokens}"
            found.append(f"layers: number {number} has batch {sequences} and {queries} tokens, {first}")
        if not isinstance(heads, str):
            resolve_index(checks, f"heads of layer {number}", heads, count, weights.device)
    if isinstance(heads, str) and heads not in ("mean", "max"):
        found.append(f"heads: expected 'mean', 'max' or numbers of heads, got {heads!r}")
    if isinstance(residual, bool) or not isinstance(residual, (int, float)) or not 0 <= residual < 1:
        found.append(f"residual: expected a share from 0 to below 1, got {residual!r}")
    numbers = resolve_index(checks, "rows", slice(None) if rows is None else rows, tokens, layers[0].device)
    checks.raise_problems()
    assert numbers is not None
    return numbers.tolist()
