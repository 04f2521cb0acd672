"""Where the blocks of rows lie: few enough cells to stay in a cache, and only keys that some row may see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

from torch import Tensor

from regard.ops.cells import Cells, Index
from regard.ops.heads import heads_used
from regard.ops.request import AttentionRequest

ROWS = {"cpu": 128}
"""Rows of a block by device: enough for a matrix product at its full rate, few enough to skip what a mask forbids."""

CELLS = {"cpu": 2**19}
"""Cells of a block by device: 2 MiB in float32 stay in a CPU's cache; an accelerator wants work for all its
processors."""

FLOATS = {"cpu": 2**22}
"""Numbers of the rows of one head by device, from which on a block has fewer rows: 16 MiB in float32."""

ROWS_ELSEWHERE, CELLS_ELSEWHERE, FLOATS_ELSEWHERE = 1024, 2**25, 2**28


@dataclass(frozen=True, eq=False)
class Place:
    """Where a block lies in the matrix, and how its part is taken from whole tensors and put back.

    Args:
        request: The matrix.
        batch: Which sequences.
        heads: Which query heads; they lie within one head of keys, or of values, where such are shared.
        rows: Which queries.
        keys: The range of keys.
        cells: The block's cells.
    """

    request: AttentionRequest
    batch: slice
    heads: slice
    rows: Index
    keys: slice
    cells: Cells

    @property
    def index(self) -> tuple[slice, slice, Index, slice]:
        """Which entries of each axis."""
        return self.batch, self.heads, self.rows, self.keys

    @property
    def width(self) -> int:
        """How many keys each row of the block has."""
        return self.keys.stop - self.keys.start

    def masked(self) -> list[tuple[slice, Tensor]]:
        """Which cells are masked: ranges of the block's keys, each with a bool that broadcasts to it."""
        mask, cells = self.request.mask, self.cells
        if mask is None:
            return []
        start, stop = cells.keys
        first, last = mask.certain(cells)
        first, last = (first, last) if first < last else (start, start)
        parts = [span for span in ((start, first), (last, stop)) if span[0] < span[1]]
        return [(slice(low - start, high - start), ~mask.allowed(cells.within((low, high)))) for low, high in parts]

    def any_certain(self) -> bool:
        """Whether there is a key that every row may see, so that no row is without a key."""
        if self.request.mask is None:
            return True
        first, last = self.request.mask.certain(self.cells)
        return first < last

    def of_queries(self, whole: Tensor) -> Tensor:
        """The part of a tensor (batch, heads, queries, ...)."""
        return whole[self.batch, self.heads, self.rows]

    def add_to_queries(self, whole: Tensor, part: Tensor) -> None:
        """Add to the part of a tensor (batch, heads, queries, ...)."""
        whole[self.batch, self.heads, self.rows] += part

    def of_keys(self, whole: Tensor) -> Tensor:
        """The part of keys or values: (batch, heads or 1, keys, dim), in the dtype of sums."""
        return whole[self._shared(whole)].to(self.request.dtype)

    def add_to_keys(self, whole: Tensor, part: Tensor) -> None:
        """Add to the part of keys or values."""
        whole[self._shared(whole)] += part

    def _shared(self, whole: Tensor) -> tuple[slice, slice, slice]:
        return self.batch, heads_used(self.heads, self.request.query.shape[1], whole.shape[1]), self.keys


def places(request: AttentionRequest, *shared_heads: int) -> Iterator[Place]:
    """The blocks of a request, in order.

    Args:
        request: What is to be cut.
        shared_heads: The head counts of the tensors beside the query; a block lies within one of their heads, or within
            heads that are not shared.
    """
    batch, heads, queries, keys = request.shape
    device = request.query.device.type
    width = keys * request.score.floats_per_cell(request.query.shape[3])
    rows = min(queries, ROWS.get(device, ROWS_ELSEWHERE), max(1, FLOATS.get(device, FLOATS_ELSEWHERE) // width))
    room = max(1, CELLS.get(device, CELLS_ELSEWHERE) // (rows * width))  # so many heads go into one block
    groups = [heads // count for count in shared_heads if count != heads]
    unit = gcd(heads, *groups)
    some_heads = max(size for size in range(1, unit + 1) if unit % size == 0 and size <= room)
    sequences = max(1, min(batch, room // heads)) if some_heads == heads else 1
    for b in slices(batch, sequences):
        for h in slices(heads, some_heads):
            for r in slices(queries, rows):
                cells = request.cells(b, h, r)
                start, stop = (0, keys) if request.mask is None else request.mask.extent(cells)
                if start == stop:  # rows without a key: one masked cell, so that what follows has no empty axis
                    start, stop = (start, start + 1) if start < keys else (keys - 1, keys)
                yield Place(request, b, h, r, slice(start, stop), cells.within((start, stop)))


def slices(count: int, size: int) -> Iterator[slice]:
    """Slices of an axis that has `count` entries, `size` in each but the last."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
