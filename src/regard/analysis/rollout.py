"""How attention passes through several layers: rollout, which multiplies them, and flow, a maximum-flow problem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from regard.analysis.fused_weights import (
    FusedWeights,
    Fusion,
    check_self_attention,
    gradient_times_weights,
    matrices_of,
)
from regard.analysis.padding import valid_queries
from regard.analysis.token_grids import PatchMerging, merging_before, result_shape, windows_of
from regard.checks import Checks
from regard.errors import InvalidArgument, require, short_repr
from regard.ops import WeightMatrix
from regard.ops.indexing import Selection, resolve_index
from regard.recordings.layer import Layer, check_head_indices

HeadFusion = Literal["mean", "max", "min"] | Selection
"""How the heads of a layer become one: their mean, maximum or minimum, or the mean of some of them."""

MAX_FLOW_EDGES = 10**6
"""`flow` solves a maximum-flow problem over all edges for each cell of its result."""


def rollout(
    layers: Sequence[Layer | WeightMatrix],
    *,
    queries: Selection = None,
    head_fusion: HeadFusion = "mean",
    residual_weight: float = 0.5,
    discard_ratio: float = 0.0,
    use_gradients: bool = False,
) -> Float[Tensor, "batch queries keys"]:
    """Attention rollout: how much of each input token is in each token of the last layer, R = A_L · … · A₁.

    A = r · I + (1 − r) · W with the residual weight r and the fused heads W of a layer. Each row of A is divided by its
    sum, which matters where a row of W sums to less than 1 (no key, a sink, or discarded cells) or, with ``"max"``, to
    more.

    In a layer of windows (Swin, SAM), W is block-diagonal: the matrix of each window at the places that its tokens have
    in the image, also where windows are shifted, without the cells of padding. Where a stage merges 2 × 2 tokens, as
    Swin does, R is multiplied by a matrix that gives each of them the same share of the merged token.

    Args:
        layers: The self-attention of each layer, from the input on: `Layer`s of a recording, or weight matrices (batch,
            heads, tokens, tokens). Of a model with several parts, those of one: ``result.layers.encoder`` or
            ``result.layers.within("vision_model")``.
        queries: Tokens of the last layer: an int, several, bools or a slice. Default: all.
        head_fusion: ``"mean"``, ``"max"``, ``"min"``, or the heads whose mean is taken, by their indices in the model.
        residual_weight: The share r of the residual connection, from 0 to below 1.
        discard_ratio: The share of the cells of each fused matrix W, the smallest ones, that count as 0, from 0 to
            below 1. The first cell, that of a class token, always counts.
        use_gradients: Whether W are weights times their gradients, ∇W · W; after the heads are fused, negative cells
            count as 0. The layers are those of ``regard.watch(model, weight_gradients=True)`` after a backward pass.

    Returns:
        (batch, queries, tokens), with gradients unless `use_gradients`; the batch of layers of windows is that of the
        images, and tokens are those of the first layer, row by row. Every row sums to 1, or to 0 if its token is
        padding; with r = 0, to 0 where it leads to rows without keys.

    Raises:
        InvalidType: If the layers are neither `Layer`s nor weight matrices.
        InvalidArgument: If the layers do not have the same tokens as queries and as keys, as in Hiera, which pools
            queries; or a number is out of range; every problem is in the message. With `use_gradients`, if a layer has
            no gradient.

    Memory:
        O(tokens * queries): each layer is multiplied by the rows and never dense. ``"max"``, ``"min"`` and
        `use_gradients` compute blocks of rows. `discard_ratio` holds the cells of one fused matrix, tokens².

    Reference:
        Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3. `discard_ratio` and
        `use_gradients` are those of jacobgil/vit-explain, which divides columns, not rows, by the sums.

    Examples:
        >>> import regard, torch
        >>> layers = [regard.weights(*torch.randn(2, 1, 4, 50, 8).unbind()) for _ in range(6)]
        >>> regard.analysis.rollout(layers, queries=[0, 49]).shape
        torch.Size([1, 2, 50])
    """
    with Checks() as checks:
        checks.number("discard_ratio", discard_ratio, low=0, below=1)
        if not isinstance(use_gradients, bool):
            checks.fail_type(f"use_gradients: expected True or False, got {short_repr(use_gradients)}")
    matrices, rows, fusions = _validate(layers, queries, head_fusion, residual_weight)
    if discard_ratio and any(windows_of(layer) is not None for layer in layers):
        raise InvalidArgument("discard_ratio: expected 0 for layers of windows, whose matrices are not of one image")
    steps: list[FusedWeights | PatchMerging] = []
    for number, (layer, weights, fusion) in enumerate(zip(layers, matrices, fusions, strict=True)):
        merging = merging_before(layers, number)
        steps += [] if merging is None else [merging]
        matrix = gradient_times_weights(layer, number) if use_gradients else weights
        matrix = matrix if isinstance(fusion, str) else matrix.at(heads=fusion)
        steps.append(FusedWeights(matrix, _fusion(fusion, use_gradients), discard_ratio, windows_of(layer)))
    batch, tokens = result_shape(layers)
    result = torch.eye(tokens, dtype=matrices[0].dtype, device=matrices[0].device)[rows].expand(batch, -1, -1)
    for step in reversed(steps):
        if isinstance(step, PatchMerging):
            result = step.transposed_times(result.mT).mT
        else:
            result = _propagate(step, result, residual_weight)
    if any(windows_of(layer) is not None for layer in layers):
        return result
    return result * valid_queries(matrices[0], is_self=True)[:, rows, None]


def _fusion(head_fusion: HeadFusion, use_gradients: bool) -> Fusion | None:
    """How the heads of a block become one; None for their mean."""
    reduce = {"max": torch.amax, "min": torch.amin}.get(str(head_fusion), torch.mean)
    if use_gradients:
        return lambda block: reduce(block, 1).clamp(min=0)
    return None if reduce is torch.mean else lambda block: reduce(block, 1)


def _propagate(fused: FusedWeights, rows: Tensor, residual_weight: float) -> Tensor:
    """The product of rows, (batch, rows, tokens), with the matrix A of a layer."""
    if fused.is_mean or fused.windows is not None:
        ones = rows.new_ones(len(rows), rows.shape[2], 1)
        shares = rows / _row_sums(fused.times(ones)[..., 0], residual_weight)
        attended = fused.transposed_times(shares.mT).mT
    else:
        shares, attended = torch.zeros_like(rows), torch.zeros_like(rows)
        for block, part in fused.blocks():
            share = rows[..., block] / _row_sums(part.sum(-1), residual_weight)
            shares[..., block] = share
            attended = attended + share @ part
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
    if any(windows_of(layer) is not None for layer in layers):
        raise InvalidArgument("layers: flow takes layers of all tokens, not of windows; use rollout")
    batch, _, tokens, _ = matrices[0].shape
    count = len(layers) * tokens**2
    if count > MAX_FLOW_EDGES:
        raise InvalidArgument(
            f"layers: {len(layers)} layers of {tokens} tokens have {count:,} edges, more than {MAX_FLOW_EDGES:,}; pass "
            "fewer layers or a shorter input, or use rollout"
        )
    networkx = require("networkx", extra="graph", needed_by="flow")
    result = torch.zeros(batch, len(rows), tokens, dtype=matrices[0].dtype, device="cpu")
    valid = valid_queries(matrices[0], is_self=True).tolist()
    residual = residual_weight * torch.eye(tokens, dtype=torch.float64, device="cpu")
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
    matrices = matrices_of(layers)
    fusions: list[Any] = []
    _, tokens = result_shape(layers)
    with Checks() as checks:
        check_self_attention(checks, layers)
        for number, weights in enumerate(matrices):
            fusions.append(_select_recorded(checks, layers[number], head_fusion))
            if not isinstance(head_fusion, str):
                resolve_index(checks, f"head_fusion in layer {number}", fusions[-1], weights.shape[1], weights.device)
        if isinstance(head_fusion, str) and head_fusion not in ("mean", "max", "min"):
            checks.fail(
                f"head_fusion: expected 'mean', 'max', 'min' or indices of heads, got {short_repr(head_fusion)}"
            )
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
