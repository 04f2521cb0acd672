"""Where the blocks of rows lie: few enough cells to stay in a cache, and only keys that some row may see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

from torch import Tensor

from regard.ops.cells import Cells
from regard.ops.masks import Mask
from regard.ops.request import AttentionRequest

ROWS = {"cpu": 128}
"""Rows of a block by device: enough for a matrix product at its full rate, few enough to skip what a mask forbids."""

CELLS = {"cpu": 2**19}
"""Cells of a block by device: 2 MiB in float32 stay in a CPU's cache; an accelerator wants work for all its
processors."""

ROWS_ELSEWHERE, CELLS_ELSEWHERE = 1024, 2**25


@dataclass(frozen=True, eq=False)
class Place:
    """Where a block lies in the matrix."""

    batch: slice
    heads: slice
    rows: slice
    keys: slice
    cells: Cells

    @property
    def index(self) -> tuple[slice, slice, slice, slice]:
        """The four slices."""
        return self.batch, self.heads, self.rows, self.keys

    @property
    def queries(self) -> tuple[slice, slice, slice]:
        """The slices of the query and of the output."""
        return self.index[:3]


def places(request: AttentionRequest, *shared_heads: int) -> Iterator[Place]:
    """The blocks of a request, in order.

    Args:
        request: What is to be cut.
        shared_heads: The head counts of the tensors beside the query; a block lies within one of their heads, or within
            heads that are not shared.
    """
    batch, heads, queries, keys = request.shape
    device = request.query.device.type
    rows = min(queries, ROWS.get(device, ROWS_ELSEWHERE))
    room = max(1, CELLS.get(device, CELLS_ELSEWHERE) // (rows * keys))  # so many heads go into one block
    groups = [heads // count for count in shared_heads if count != heads]
    unit = gcd(heads, *groups)
    some_heads = max(size for size in range(1, unit + 1) if unit % size == 0 and size <= room)
    sequences = max(1, min(batch, room // heads)) if some_heads == heads else 1
    for b in _slices(batch, sequences):
        for h in _slices(heads, some_heads):
            for r in _slices(queries, rows):
                cells = request.cells(b, h, r)
                start, stop = (0, keys) if request.mask is None else request.mask.extent(cells)
                if start == stop:  # rows without a key: one masked cell, so that what follows has no empty axis
                    start, stop = (start, start + 1) if start < keys else (keys - 1, keys)
                yield Place(b, h, r, slice(start, stop), cells.within((start, stop)))


def masked_parts(mask: Mask | None, cells: Cells) -> list[tuple[slice, Tensor]]:
    """Which cells of a block are masked: ranges of its keys, each with a bool that broadcasts to it."""
    if mask is None:
        return []
    start, stop = cells.keys
    first, last = mask.certain(cells) if any_certain(mask, cells) else (start, start)
    parts = [span for span in ((start, first), (last, stop)) if span[0] < span[1]]
    return [(slice(low - start, high - start), ~mask.allowed(cells.within((low, high)))) for low, high in parts]


def any_certain(mask: Mask | None, cells: Cells) -> bool:
    """Whether there is a key that every row may see, so that no row is without a key."""
    if mask is None:
        return True
    first, last = mask.certain(cells)
    return first < last


def _slices(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
