"""Where the blocks of rows lie: few enough cells to stay in a cache, and only keys that some row may see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd, lcm

from torch import Tensor

from regard.ops.grouped_query import kv_heads_of
from regard.ops.masks.base import no_keys
from regard.ops.request import AttentionRequest
from regard.ops.tile import Index, Span, Tile

ROWS = {"cpu": 128}
"""Rows of a block by device: enough for a matrix product at its full rate, few enough to skip what a mask forbids."""

MOST_ROWS = {"cpu": 1024}
"""Rows of a block by device where no mask forbids anything: as many as fit, and up to twice as many, since each block
takes time besides."""

CELLS = {"cpu": 2**19}
"""Cells of a block by device: 2 MiB in float32 stay in a CPU's cache, and twice as many in those of cores that work on
a block together; an accelerator wants work for all its processors."""

FLOATS = {"cpu": 2**22}
"""Numbers of the rows of one head by device, from which on a block has fewer rows: 16 MiB in float32."""

ROWS_ELSEWHERE, MOST_ROWS_ELSEWHERE, CELLS_ELSEWHERE, FLOATS_ELSEWHERE = 1024, 2048, 2**25, 2**28


@dataclass(eq=False)
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
    cells: Tile

    @property
    def index(self) -> tuple[slice, slice, Index, slice]:
        """Which entries of each axis."""
        return self.batch, self.heads, self.rows, self.keys

    @property
    def width(self) -> int:
        """How many keys each row of the block has."""
        return self.keys.stop - self.keys.start

    def certain(self) -> Span:
        """Keys that every row may see; an empty range where none are known."""
        if self.request.mask is None:
            return self.cells.keys
        first, last = self.request.mask.certain(self.cells)
        return (first, last) if first < last else no_keys(self.cells)

    def masked(self, certain: Span) -> list[tuple[slice, Tensor]]:
        """Which cells beside certain keys are masked: ranges of the block's, each with a bool that broadcasts to it."""
        found, start = [], self.keys.start
        for low, high in ((start, certain[0]), (certain[1], self.keys.stop)):
            if low < high:
                allowed = self.request.allowed(self.cells.within((low, high)))
                found.append((slice(low - start, high - start), ~allowed))
        return found

    def of_queries(self, whole: Tensor) -> Tensor:
        """The part of a tensor (batch, heads, queries, ...)."""
        return whole[self.batch, self.heads, self.rows]

    def add_to_queries(self, whole: Tensor, part: Tensor) -> None:
        """Add to the part of a tensor (batch, heads, queries, ...)."""
        whole[self.batch, self.heads, self.rows] += part

    def of_keys(self, whole: Tensor) -> Tensor:
        """The part of keys or values: (batch, heads or 1, keys, dim), in the dtype of sums."""
        return whole[self._shared(whole)].to(self.request.dtype)

    def has_keys_of(self, other: Place) -> bool:
        """Whether `of_keys` gives the same as at another place."""
        return (self.keys, self.heads, self.batch) == (other.keys, other.heads, other.batch)

    def add_to_keys(self, whole: Tensor, part: Tensor) -> None:
        """Add to the part of keys or values."""
        whole[self._shared(whole)] += part

    def _shared(self, whole: Tensor) -> tuple[slice, slice, slice]:
        return self.batch, kv_heads_of(self.heads, self.request.query.shape[1], whole.shape[1]), self.keys


def streams(request: AttentionRequest, parts: int, *shared_heads: int) -> list[Iterator[Place]]:
    """The blocks of a request, in streams that share neither queries nor keys nor any entry of an answer.

    Args:
        request: What is to be cut.
        parts: How many streams there should be at least, where it is large enough and has so many heads; with 1, all
            cores may work on a block together.
        shared_heads: The head counts of the tensors beside the query; a block lies within one of their heads, or within
            heads that are not shared.
    """
    batch, heads, queries, keys = request.shape
    device = request.query.device.type
    per_cell = request.score.floats_per_cell(request.query.shape[3])
    most = FLOATS.get(device, FLOATS_ELSEWHERE) // (keys * per_cell)
    rows, room = ROWS.get(device, ROWS_ELSEWHERE), CELLS.get(device, CELLS_ELSEWHERE)
    if parts == 1 and device == "cpu":
        room *= 2
    most_rows = MOST_ROWS.get(device, MOST_ROWS_ELSEWHERE) if request.mask is None else rows
    while rows < most_rows and rows * keys * per_cell <= room:
        rows *= 2
    rows = min(queries, rows, max(1, most))
    groups = [heads // count for count in shared_heads if count != heads]
    everything = slice(0, batch), slice(0, heads)
    together: dict[int, list[slice]] = {}  # rows, by how many heads with as many keys go into one block
    for r in slices(slice(0, queries), rows):
        start, stop = _extent(request, request.cells(*everything, r))
        cells = max(1, (stop - start) * per_cell) * rows
        together.setdefault(max(1, room // cells), []).append(r)
    lanes = batch * heads
    parts = max(1, min(parts, 2 * lanes * queries * keys // room))
    width = min(max(together), max(1, lanes // parts))
    shared = lcm(*groups)  # heads that share keys or values are in one stream, which adds up their gradients
    wide = shared * _divisor(heads // shared, max(1, width // shared))
    unit = gcd(wide, *groups)
    sequences = max(1, min(batch, width // heads)) if wide == heads else 1

    def stream(some: slice, several: slice) -> Iterator[Place]:
        for count, some_rows in together.items():
            size = _divisor(unit, count)
            for b in slices(some, max(1, count // heads) if size == heads else 1):
                for h in slices(several, size):
                    for r in some_rows:
                        cells = request.cells(b, h, r)
                        start, stop = _extent(request, cells)
                        yield Place(request, b, h, r, slice(start, stop), cells.within((start, stop)))

    return [stream(b, h) for b in slices(everything[0], sequences) for h in slices(everything[1], wide)]


def _divisor(of: int, most: int) -> int:
    """The largest divisor that is not larger than so much."""
    return max(size for size in range(1, of + 1) if of % size == 0 and size <= most)


def _extent(request: AttentionRequest, cells: Tile) -> Span:
    """The keys that any row of some cells may see; one masked key where there is none, so that no axis is empty."""
    keys = request.shape[3]
    start, stop = (0, keys) if request.mask is None else request.mask.extent(cells)
    if start == stop:
        return (start, start + 1) if start < keys else (keys - 1, keys)
    return start, stop


def slices(whole: slice, size: int) -> Iterator[slice]:
    """Slices of a range, `size` entries in each but the last."""
    return (slice(start, min(start + size, whole.stop)) for start in range(whole.start, whole.stop, size))
