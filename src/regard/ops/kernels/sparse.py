"""Sparse graphs: each query with the keys of its edges, and no other cell."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import gcd, prod
from typing import Any

import torch
from torch import Tensor

from regard.checks import Checks
from regard.ops.indexing import SelectCells
from regard.ops.kernels.base import KernelInputs
from regard.ops.kernels.blocks import BlockLocation, BlockSizes, slices
from regard.ops.kernels.blockwise import Blockwise
from regard.ops.masks import And, Mask, Neighbors
from regard.ops.masks.base import find_part
from regard.ops.measures import BlockMean, KLDivergence, Measure
from regard.ops.request import AttentionRequest
from regard.ops.rules import builtin_classes
from regard.ops.scores import Score
from regard.ops.tile import KeyRange as KeyRange  # in the annotations that `GraphBlockLocation` inherits
from regard.ops.tile import Tile


@dataclass(frozen=True)
class Sparse(Blockwise):
    """Rows of neighbors in blocks of similar length, each row with its own keys.

    Args:
        sizes: As of `Blockwise`, of which only `elements` counts.
        max_density: Largest share of the cells that are edges. Denser graphs are faster as a mask.
    """

    name = "sparse"
    description = "sparse graphs (Neighbors): only the cells that are edges, O(edges) time and memory, exact gradients"
    required_mask = Neighbors
    scores = frozenset(builtin_classes(Score))
    measures = frozenset(builtin_classes(Measure)) - {BlockMean, KLDivergence, SelectCells}  # those need a rectangle

    max_density: float = field(default=1 / 8, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        with Checks() as checks:
            checks.number("max_density", self.max_density, low=0, high=1)

    def inefficient_reasons(self, inputs: KernelInputs) -> Iterator[str]:
        graph = find_part(inputs.request.mask, Neighbors)
        if graph is not None and graph.num_edges > self.max_density * prod(inputs.request.shape[2:]):
            yield f"the graph is too dense: more than {self.max_density:.1%} of the cells are edges"

    def streams(self, inputs: KernelInputs) -> tuple[list[Iterator[BlockLocation]], int]:
        """One stream, for the blocks share queries and keys; of rows with similar numbers of edges, to pad little."""
        return [_graph_blocks(inputs.request, inputs.value, self.sizes_on(inputs.request.query.device))], 1


@dataclass(eq=False)
class GraphBlockLocation(BlockLocation):
    """Rows with their own keys.

    Args:
        is_edge: (rows, width) The columns that are edges; the others pad the row.
    """

    rows: Tensor  # pyright: ignore[reportIncompatibleVariableOverride]
    is_edge: Tensor

    def masked_ranges(self) -> list[tuple[slice, Tensor]]:
        """All cells at once: padding may be anywhere."""
        assert self.request.mask is not None
        allowed = _allowed(self.request.mask, self.tile, self.is_edge)
        return [(slice(0, self.tile.width), ~allowed)]

    def accumulate_queries(self, whole: Tensor, part: Tensor) -> None:
        whole[self.batch, self.heads].index_add_(2, self.rows, part)

    def slice_keys(self, whole: Tensor) -> Tensor:
        """(batch, heads or 1, rows, width, dim)."""
        part = whole[self._kv_index(whole)]
        assert self.tile.row_keys is not None
        return (
            part.index_select(2, self.tile.row_keys.flatten()).unflatten(2, self.is_edge.shape).to(self.request.dtype)
        )

    def shares_keys_with(self, other: BlockLocation) -> bool:
        return False

    def accumulate_keys(self, whole: Tensor, part: Tensor) -> None:
        assert self.tile.row_keys is not None
        whole[self._kv_index(whole)].index_add_(2, self.tile.row_keys.flatten(), part.flatten(2, 3))


def _graph_blocks(request: AttentionRequest, value: Tensor | None, sizes: BlockSizes) -> Iterator[BlockLocation]:
    """The blocks of a matrix whose mask is a graph, rows with few edges first."""
    graph = find_part(request.mask, Neighbors)
    assert graph is not None
    batch, heads, queries, _ = request.shape
    device = request.query.device
    nodes = torch.arange(queries, device=device) if request.rows is None else request.rows
    starts, counts = graph.edge_ranges(nodes)
    counts, order = counts.sort(stable=True)
    # Number of heads that share a head of the keys, and one of the values.
    head_counts = (request.key.shape[1], heads if value is None else value.shape[1])
    unit = gcd(heads, *(heads // count for count in head_counts if count not in (1, heads)))
    dim = max(request.query.shape[3], 0 if value is None else value.shape[3]) * batch * unit
    room = max(1, 2 * sizes.elements // dim)
    summaries: dict[int, Any] = {}
    for start, stop in _runs(counts.tolist(), room):
        rows, width = order[start:stop], max(1, int(counts[stop - 1]))
        edge = starts[rows][:, None] + torch.arange(width, device=device)
        row_stops = starts[rows] + counts[start:stop]
        is_edge = edge < row_stops[:, None]
        columns = torch.zeros_like(edge)
        if counts[stop - 1]:
            last = (row_stops - 1).clamp(min=0)  # a row is padded with its own last key
            columns = graph.key_idx[torch.minimum(edge, last[:, None])]
        for h in slices(slice(0, heads), unit):
            tile = request.tile(slice(0, batch), h, rows, columns, summaries)
            yield GraphBlockLocation(request, slice(0, batch), h, rows, tile, tile.no_keys, sizes.waits, is_edge)


def _allowed(mask: Mask, tile: Tile, is_edge: Tensor) -> Tensor:
    """The cells of a graph's tile that the whole mask allows."""
    if type(mask) is Neighbors:
        return is_edge
    assert isinstance(mask, And)
    inner, other = (mask.right, mask.left) if find_part(mask.left, Neighbors) is None else (mask.left, mask.right)
    return _allowed(inner, tile, is_edge) & other.allowed(tile)


def _runs(counts: list[int], room: int) -> Iterator[tuple[int, int]]:
    """Cut ascending counts into runs of at most `room` cells, in which the last is at most twice the first, or 8."""
    start = 0
    while start < len(counts):
        stop = bisect_right(counts, max(8, 2 * counts[start]), start)
        while stop - start > 1 and (stop - start) * max(1, counts[stop - 1]) > room:
            stop = start + max(1, min(stop - start - 1, room // max(1, counts[stop - 1])))
        yield start, stop
        start = stop
