"""How attention passes through several layers: rollout, which multiplies them, and flow, a maximum-flow problem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from regard.analysis.padding import valid_queries
from regard.checks import Checks
from regard.errors import InvalidArgument, InvalidType, require, short_repr
from regard.ops import WeightMatrix
from regard.ops.indexing import Selection, resolve_index
from regard.recordings.layer import Layer, check_head_indices

HeadFusion = Literal["mean", "max"] | Selection
"""How the heads of a layer become one: their mean, their maximum, or the mean of some of them."""

MAX_FLOW_EDGES = 10**6
"""`flow` solves a maximum-flow problem over all edges for each cell of its result."""


def rollout(
    layers: Sequence[Layer | WeightMatrix],
    *,
    queries: Selection = None,
    head_fusion: HeadFusion = "mean",
    residual_weight: float = 0.5,
) -> Float[Tensor, "batch queries keys"]:
    """Attention rollout: how much of each input token is in each token of the last layer, R = A_L · … · A₁.

    A = r · I + (1 − r) · W with the residual weight r and the fused heads W of a layer. Each row of A is divided by its
    sum, which matters where a row of W sums to less than 1 (no key, or a sink) or, with ``"max"``, to more.

    Args:
        layers: The self-attention of each layer, from the input on: `Layer`s of a recording, or weight matrices (batch,
            heads, tokens, tokens).
        queries: Tokens of the last layer: an int, several, bools or a slice. Default: all.
        head_fusion: ``"mean"``, ``"max"``, or the heads whose mean is taken, by their indices in the model.
        residual_weight: The share r of the residual connection, from 0 to below 1.

    Returns:
        (batch, queries, tokens), with gradients. Every row sums to 1, or to 0 if its token is padding; with r = 0, to 0
        where it leads to rows without keys.

    Raises:
        InvalidType: If the layers are neither `Layer`s nor weight matrices.
        InvalidArgument: If the layers do not have the same tokens as queries and as keys, or a number is out of range;
            every problem is in the message.

    Memory:
        O(tokens * queries): each layer is multiplied by the rows and never dense. ``"max"`` computes blocks of rows.

    Reference:
        Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3.

    Examples:
        >>> import regard, torch
        >>> layers = [regard.weights(*torch.randn(2, 1, 4, 50, 8).unbind()) for _ in range(6)]
        >>> regard.analysis.rollout(layers, queries=[0, 49]).shape
        torch.Size([1, 2, 50])
    """
    matrices, rows, fusions = _validate(layers, queries, head_fusion, residual_weight)
    batch, _, tokens, _ = matrices[0].shape
    result = torch.eye(tokens, dtype=matrices[0].dtype, device=matrices[0].device)[rows].expand(batch, -1, -1)
    for weights, fusion in zip(reversed(matrices), reversed(fusions), strict=True):
        result = _propagate(weights, result, fusion, residual_weight)
    return result * valid_queries(matrices[0], is_self=True)[:, rows, None]


def _propagate(weights: WeightMatrix, rows: Tensor, head_fusion: HeadFusion, residual_weight: float) -> Tensor:
    """The product of rows, (batch, rows, tokens), with the matrix A of a layer."""
    if head_fusion == "max":
        fused = ((block, weights.at(queries=block).dense().amax(1)) for block in weights.query_blocks())
        pairs = [(rows[..., block] / _row_sums(part.sum(-1), residual_weight), part) for block, part in fused]
        shares, attended = torch.cat([share for share, _ in pairs], -1), sum(share @ part for share, part in pairs)
    else:
        weights = weights if isinstance(head_fusion, str) else weights.at(heads=head_fusion)
        ones = torch.ones(weights.shape[3], dtype=weights.dtype, device=weights.device)
        shares = rows / _row_sums((weights @ ones).mean(1), residual_weight)
        attended = (weights.mT @ shares.mT[:, None]).mean(1).mT
    return residual_weight * shares + (1 - residual_weight) * attended


def _row_sums(mass: Tensor, residual_weight: float) -> Tensor:
    """The row sums of A, (batch, 1, tokens), from those of W."""
    total = residual_weight + (1 - residual_weight) * mass
    return total.where(total > 0, 1.0)[:, None]  # a row without keys, and without a residual, leads nowhere


def flow(
    layers: Sequence[Layer | WeightMatrix], *, queries: Selection = None, residual_weight: float = 0.5
) -> Float[Tensor, "batch queries keys"]:
    """Attention flow: the maximum flow between tokens of the last layer and of the input.

    Edges lead from each token of a layer to those of the layer below, with the capacities A = r · I + (1 − r) · W, with
    the residual weight r and the mean W of the heads.

    Args:
        layers: The self-attention of each layer, from the input on: `Layer`s of a recording, or weight matrices (batch,
            heads, tokens, tokens).
        queries: Tokens of the last layer: an int, several, bools or a slice. Default: all.
        residual_weight: The share r of the residual connection, from 0 to below 1.

    Returns:
        (batch, queries, tokens): the flow from a token of the last layer to each token of the input, each by itself, so
        rows do not sum to 1. 0 if either token is padding. It has no gradients.

    Raises:
        InvalidType: If the layers are neither `Layer`s nor weight matrices.
        InvalidArgument: As `rollout`, and if there are more than a million edges.
        MissingExtra: If networkx is not installed.

    Memory:
        O(layers * tokens²): for small inputs.

    Reference:
        Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers", section 4.

    Examples:
        >>> import regard, torch
        >>> layers = [regard.weights(*torch.randn(2, 1, 2, 4, 8).unbind()) for _ in range(2)]
        >>> regard.analysis.flow(layers, queries=0).shape
        torch.Size([1, 1, 4])
    """
    matrices, rows, _ = _validate(layers, queries, "mean", residual_weight)
    batch, _, tokens, _ = matrices[0].shape
    count = len(layers) * tokens**2
    if count > MAX_FLOW_EDGES:
        raise InvalidArgument(
            f"layers: {len(layers)} layers of {tokens} tokens have {count:,} edges, more than {MAX_FLOW_EDGES:,}; pass "
            "fewer layers or a shorter input, or use rollout"
        )
    networkx = require("networkx", extra="graph", needed_by="flow")
    result = torch.zeros(batch, len(rows), tokens, dtype=matrices[0].dtype)
    valid = valid_queries(matrices[0], is_self=True).tolist()
    residual = residual_weight * torch.eye(tokens, dtype=torch.float64)
    capacities = [  # (batch, tokens, tokens) each
        residual + (1 - residual_weight) * weights.detach().dense().mean(1).cpu().double() for weights in matrices
    ]
    for sequence in range(batch):
        graph = networkx.DiGraph()
        graph.add_nodes_from((depth, token) for depth in range(len(layers) + 1) for token in range(tokens))
        for depth, capacity in enumerate(capacities):
            for i, j in capacity[sequence].nonzero().tolist():
                graph.add_edge((depth + 1, i), (depth, j), capacity=float(capacity[sequence, i, j]))
        for row, query in enumerate(rows):
            if not valid[sequence][query]:
                continue
            for key in range(tokens):
                ends = (len(layers), query), (0, key)
                if networkx.has_path(graph, *ends):
                    result[sequence, row, key] = networkx.maximum_flow_value(graph, *ends)
    return result


def _validate(
    layers: Sequence[Layer | WeightMatrix], queries: Selection, head_fusion: HeadFusion, residual_weight: float
) -> tuple[list[WeightMatrix], list[int], list[HeadFusion]]:
    """The weight matrices, the indices of the queries, and the heads of each layer; raises every problem."""
    if not isinstance(layers, Sequence) or not all(isinstance(layer, (Layer, WeightMatrix)) for layer in layers):
        raise InvalidType(
            "layers: expected a list of layers or of weight matrices from the input on, as recording.layers.encoder, "
            f"got {type(layers).__name__}"
        )
    if not layers:
        raise InvalidArgument("layers: expected at least one layer, got none")
    matrices = [layer.weights if isinstance(layer, Layer) else layer for layer in layers]
    fusions: list[Any] = []
    first, _, tokens, _ = matrices[0].shape
    with Checks() as checks:
        for number, weights in enumerate(matrices):
            batch, heads, rows, keys = weights.shape
            if rows != keys:
                checks.fail(f"layers: expected as many queries as keys in layer {number}, got {rows} and {keys}")
            if (batch, rows) != (first, tokens):
                expected = f"expected batch {first} and {tokens} tokens, as in the first layer"
                checks.fail(f"layers: {expected}, got {batch} and {rows} in layer {number}")
            fusions.append(_select_recorded(checks, layers[number], head_fusion))
            if not isinstance(head_fusion, str):
                resolve_index(checks, f"head_fusion in layer {number}", fusions[-1], heads, weights.device)
        if isinstance(head_fusion, str) and head_fusion not in ("mean", "max"):
            checks.fail(f"head_fusion: expected 'mean', 'max' or indices of heads, got {short_repr(head_fusion)}")
        checks.number("residual_weight", residual_weight, low=0, below=1)
        rows = resolve_index(checks, "queries", slice(None) if queries is None else queries, tokens, matrices[0].device)
    assert rows is not None
    return matrices, rows.tolist(), fusions


def _select_recorded(checks: Checks, layer: Layer | WeightMatrix, heads: Any) -> Any:
    """Heads of the model by their indices among the recorded heads of a layer."""
    heads = heads.tolist() if isinstance(heads, Tensor) else heads
    listed = [heads] if isinstance(heads, int) else heads
    if isinstance(layer, WeightMatrix) or not isinstance(listed, Sequence) or set(map(type, listed)) != {int}:
        return heads
    check_head_indices(checks, layer, listed)
    return [layer.head_indices.index(head) for head in listed if head in layer.head_indices]
