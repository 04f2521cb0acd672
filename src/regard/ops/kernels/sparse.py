"""Sparse graphs: each query against the keys to which its edges lead, and no other cell."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from math import gcd, prod

import torch
from torch import Tensor

from regard.ops.kernels.base import KernelInputs
from regard.ops.kernels.blocks import CELLS, CELLS_ELSEWHERE, Place, slices
from regard.ops.kernels.blockwise import Blockwise
from regard.ops.masks import And, Mask, Neighbours
from regard.ops.masks.base import no_keys
from regard.ops.measures import MEASURES, BlockMean, TransposedProduct
from regard.ops.request import AttentionRequest
from regard.ops.scores import SCORES, Score, ScoreOfHeads, Sum
from regard.ops.tile import Span, Tile

SPARSE = 8
"""Edges are worth their lists where at most one cell of so many is one."""


class Sparse(Blockwise):
    """Rows of neighbours in blocks of similar length, each row with keys of its own."""

    name = "sparse"
    about = "sparse graphs (Neighbours): the cells that are edges, O(edges) time and memory, exact gradients"
    measures = (*(set(MEASURES.values()) - {BlockMean}), TransposedProduct)

    def why_not(self, job: KernelInputs) -> Iterator[str]:
        """Also: there is no graph, it is not sparse, or a score is a user's own."""
        request = job.request
        graph = _graph(request.mask)
        if graph is None:
            yield "the mask is no Neighbours, nor one combined with others by &"
        elif graph.edges.shape[1] * SPARSE > prod(request.shape[2:]):
            yield f"more than one in {SPARSE} of all cells is an edge"
        yield from super().why_not(job)
        for rule in _rules(request.score):
            if type(rule) not in (*SCORES.values(), ScoreOfHeads, Sum):
                yield f"it does not know the score {type(rule).__name__}"

    def streams(self, job: KernelInputs, parts: int) -> list[Iterator[Place]]:
        """One stream of blocks of rows with about equally many edges, so that little is filled up."""
        return [edge_places(job.request, job.value)]


@dataclass(eq=False)
class EdgePlace(Place):
    """Rows with keys of their own.

    Args:
        real: (rows, width) Which of the columns are edges; the others fill a row up.
    """

    rows: Tensor
    real: Tensor

    @property
    def width(self) -> int:
        return self.real.shape[1]

    def masked(self, certain: Span) -> list[tuple[slice, Tensor]]:
        """All cells at once: some fill rows up, wherever they lie."""
        assert self.request.mask is not None
        allowed = _beside_graph(self.request.mask, self.cells, self.real)
        return [(slice(0, self.width), ~allowed)]

    def certain(self) -> Span:
        return no_keys(self.cells)

    def add_to_queries(self, whole: Tensor, part: Tensor) -> None:
        whole[self.batch, self.heads].index_add_(2, self.rows, part)

    def of_keys(self, whole: Tensor) -> Tensor:
        """(batch, heads or 1, rows, width, dim)."""
        part = whole[self._shared(whole)]
        assert self.cells.columns is not None
        return part.index_select(2, self.cells.columns.flatten()).unflatten(2, self.real.shape).to(self.request.dtype)

    def has_keys_of(self, other: Place) -> bool:
        return False

    def add_to_keys(self, whole: Tensor, part: Tensor) -> None:
        assert self.cells.columns is not None
        whole[self._shared(whole)].index_add_(2, self.cells.columns.flatten(), part.flatten(2, 3))


def edge_places(request: AttentionRequest, value: Tensor | None) -> Iterator[Place]:
    """The blocks of a request whose mask is a graph, rows with few edges first."""
    graph = _graph(request.mask)
    assert graph is not None
    batch, heads, queries, keys = request.shape
    device = request.query.device
    numbers = torch.arange(queries, device=device) if request.rows is None else request.rows
    begins, counts = graph.lists(numbers)
    counts, order = counts.sort(stable=True)
    # so many heads share a head of the keys, and one of the values, or all share what they share
    counts_of_heads = (request.key.shape[1], heads if value is None else value.shape[1])
    unit = gcd(heads, *(heads // count for count in counts_of_heads if count not in (1, heads)))
    dim = max(request.query.shape[3], 0 if value is None else value.shape[3]) * batch * unit
    room = max(1, 2 * CELLS.get(device.type, CELLS_ELSEWHERE) // dim)
    for start, stop in _runs(counts.tolist(), room):
        rows, width = order[start:stop], max(1, int(counts[stop - 1]))
        at = begins[rows][:, None] + torch.arange(width, device=device)
        real = at < (begins[rows] + counts[start:stop])[:, None]
        columns = torch.zeros_like(at)
        if counts[stop - 1]:
            last = (begins[rows] + counts[start:stop] - 1).clamp(min=0)  # a row is filled up with its own last key
            columns = graph.edges[1, torch.minimum(at, last[:, None])]
        for h in slices(slice(0, heads), unit):
            cells = request.cells(slice(0, batch), h, rows, columns)
            yield EdgePlace(request, slice(0, batch), h, rows, slice(0, keys), cells, real)


def _graph(mask: Mask | None) -> Neighbours | None:
    """The graph that a mask is, or that it is combined with by &."""
    if isinstance(mask, And):
        left = _graph(mask.left)
        return _graph(mask.right) if left is None else left
    return mask if type(mask) is Neighbours else None  # what is made of it may have a rule of its own


def _beside_graph(mask: Mask, cells: Tile, real: Tensor) -> Tensor:
    """Which of a graph's cells the whole mask allows."""
    graph = _graph(mask)
    if mask is graph:
        return real
    assert isinstance(mask, And)
    inner, other = (mask.left, mask.right) if _graph(mask.left) is graph else (mask.right, mask.left)
    return _beside_graph(inner, cells, real) & other.allowed(cells)


def _rules(score: object) -> Iterator[Score]:
    """A score, and those that it is made of."""
    if isinstance(score, Score):
        yield score
        if is_dataclass(score):
            for field in fields(score):
                yield from _rules(getattr(score, field.name))


def _runs(counts: list[int], room: int) -> Iterator[tuple[int, int]]:
    """Cut rising counts into runs of at most `room` cells, in which the last is at most twice the first or 8."""
    start = 0
    while start < len(counts):
        stop = bisect_right(counts, max(8, 2 * counts[start]), start)
        while stop - start > 1 and (stop - start) * max(1, counts[stop - 1]) > room:
            stop = start + max(1, min(stop - start - 1, room // max(1, counts[stop - 1])))
        yield start, stop
        start = stop
