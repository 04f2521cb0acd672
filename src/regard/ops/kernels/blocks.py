"""How the matrix is cut into blocks of rows: small enough for a cache, and only keys that some row may attend to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd, lcm
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.checks import Checks
from regard.ops.grouped_query import kv_heads_of
from regard.ops.masks.key_ranges import UNKNOWN, KeyRanges, key_ranges
from regard.ops.measures.base import BlockIndex
from regard.ops.request import AttentionRequest
from regard.ops.steps import Step
from regard.ops.tile import Index, KeyRange, Tile


@dataclass(frozen=True)
class BlockSizes:
    """Sizes of blocks on a type of device.

    Args:
        rows: Rows of a block under a mask: enough for a matrix product at its full rate, few enough to skip what the
            mask forbids.
        max_rows: Largest number of rows without a mask, where more rows mean less overhead per block.
        elements: Cells of a block. 2 MiB in float32 stay in a CPU core's cache; an accelerator needs work for all its
            processors.
        elements_per_head: Numbers held for the rows of one head; beyond, a block has fewer rows.
    """

    rows: int
    max_rows: int
    elements: int
    elements_per_head: int

    def __post_init__(self) -> None:
        with Checks() as checks:
            for name, value in vars(self).items():
                checks.integer(f"BlockSizes.{name}", value, low=1)


CPU = BlockSizes(rows=128, max_rows=1024, elements=2**19, elements_per_head=2**22)
ACCELERATOR = BlockSizes(rows=1024, max_rows=2048, elements=2**25, elements_per_head=2**28)


@dataclass(eq=False)
class BlockLocation:
    """Where a block is in the matrix, and how its part of whole tensors is read and written.

    Args:
        request: The matrix.
        batch: Batch entries of the matrix; the tile has those that mask and score were made for.
        heads: Query heads; within one head of keys, or of values, where these are shared.
        rows: Queries.
        tile: The block's tile, over its range of keys.
    """

    request: AttentionRequest
    batch: slice
    heads: slice
    rows: Index
    tile: Tile

    @property
    def index(self) -> BlockIndex:
        """The entries of each axis."""
        return self.batch, self.heads, self.rows, slice(*self.tile.keys)

    def full_key_range(self) -> KeyRange:
        """Keys that every row may attend to; an empty range if none are known."""
        if self.request.mask is None:
            return self.tile.keys
        return self.tile.clip(*self.request.mask.full_key_range(self.tile))

    def masked_ranges(self, full: KeyRange) -> list[tuple[slice, Tensor]]:
        """The cells outside the full range that are masked: ranges of the block's keys, each with a bool tensor."""
        ranges: list[tuple[slice, Tensor]] = []
        start, stop = self.tile.keys
        for low, high in ((start, full.start), (full.stop, stop)):
            if low < high:
                allowed = self.request.allowed(self.tile.with_keys(KeyRange(low, high)))
                ranges.append((slice(low - start, high - start), ~allowed))
        return ranges

    def slice_queries(self, whole: Tensor) -> Tensor:
        """The part of a tensor (batch, heads, queries, ...)."""
        return whole[self.batch, self.heads, self.rows]

    def accumulate_queries(self, whole: Tensor, part: Tensor) -> None:
        """Add to the part of a tensor (batch, heads, queries, ...)."""
        whole[self.batch, self.heads, self.rows] += part

    def slice_keys(self, whole: Tensor) -> Tensor:
        """The part of keys or values, (batch, heads or 1, keys, dim), in the dtype of sums."""
        return whole[self._kv_index(whole)].to(self.request.dtype)

    def shares_keys_with(self, other: BlockLocation) -> bool:
        """Whether `slice_keys` returns the same for another block."""
        return (self.tile.keys, self.heads, self.batch) == (other.tile.keys, other.heads, other.batch)

    def accumulate_keys(self, whole: Tensor, part: Tensor) -> None:
        """Add to the part of keys or values."""
        whole[self._kv_index(whole)] += part

    def _kv_index(self, whole: Tensor) -> tuple[slice, slice, slice]:
        return self.batch, kv_heads_of(self.heads, self.request.query.shape[1], whole.shape[1]), slice(*self.tile.keys)


def partition(
    request: AttentionRequest, sizes: BlockSizes, parts: int, *head_counts: int
) -> list[Iterator[BlockLocation]]:
    """Cut a matrix into streams of blocks. Blocks of different streams share no query, key or entry of a result.

    It aims for `parts` streams; with 1, all cores may work on a block together. A block is within one head of the
    tensors with these `head_counts`, or within heads that are not shared.
    """
    batch, heads, queries, keys = request.shape
    is_cpu = request.query.device.type == "cpu"
    per_cell = request.score.workspace_per_cell(request.query.shape[3])
    limit = sizes.elements_per_head // (keys * per_cell)
    room = 2 * sizes.elements if parts == 1 and is_cpu else sizes.elements
    rows, max_rows = sizes.rows, sizes.max_rows if request.mask is None else sizes.rows
    while rows < max_rows and rows * keys * per_cell <= room:
        rows *= 2
    rows = min(queries, rows, max(1, limit))
    groups = [heads // count for count in head_counts if count != heads]
    everything = slice(0, batch), slice(0, heads)
    summaries: dict[int, Any] = {}
    by_count: dict[int, list[slice]] = {}  # rows, by the number of heads with as many keys that fit into a block
    for block_rows in slices(slice(0, queries), rows):
        key_range = _key_range(request, request.tile(*everything, block_rows, summaries=summaries))
        cells = max(1, key_range.width * per_cell) * rows
        by_count.setdefault(max(1, room // cells), []).append(block_rows)
    lanes = batch * heads
    parts = max(1, min(parts, 2 * lanes * queries * keys // room))
    width = min(max(by_count), max(1, lanes // parts))
    shared = lcm(*groups)  # heads that share keys or values are in one stream, which adds up their gradients
    wide = shared * _largest_divisor(heads // shared, max(1, width // shared))
    unit = gcd(wide, *groups)
    batch_step = max(1, min(batch, width // heads)) if wide == heads else 1

    def stream(batches: slice, stream_heads: slice) -> Iterator[BlockLocation]:
        for count, row_blocks in by_count.items():
            size = _largest_divisor(unit, count)
            for b in slices(batches, max(1, count // heads) if size == heads else 1):
                for h in slices(stream_heads, size):
                    for r in row_blocks:
                        tile = request.tile(b, h, r, summaries=summaries)
                        yield BlockLocation(request, b, h, r, tile.with_keys(_key_range(request, tile)))

    return [stream(b, h) for b in slices(everything[0], batch_step) for h in slices(everything[1], wide)]


def block_key_ranges(request: AttentionRequest, rows: int) -> KeyRanges:
    """For each block of queries, the keys that some of them may attend to, and those that all of them may.

    It computes all blocks at once and reads no value of a tensor on the CPU, so it does not wait for a GPU. A mask
    without steps may allow any key.

    Args:
        request: The matrix.
        rows: Queries of a block; the last one may have fewer.

    Returns:
        KeyRanges: (batch or 1, heads or 1, blocks) int32, on the request's device; empty ranges are from 0 to 0.
    """
    _, _, queries, keys = request.shape
    place, mask = request.place, request.mask
    steps = [Step("window", (None, None))] if mask is None else mask.steps(place)
    ranges = key_ranges([UNKNOWN] if steps is None else steps, place)
    parts: list[Tensor] = []
    for part, is_lowest in zip(ranges, (True, False, False, True), strict=True):
        for axis, index in enumerate((request.batch, request.heads, request.rows)):
            if index is not None and part.shape[axis] > 1:
                part = part.index_select(axis, index)
        part = part.expand(*part.shape[:2], queries)
        padded = pad(part, (0, -queries % rows), value=keys if is_lowest else 0)
        by_block = padded.unflatten(2, (-1, rows))
        parts.append(by_block.amin(3) if is_lowest else by_block.amax(3))
    starts, stops, full_starts, full_stops = (part.to(torch.int32) for part in torch.broadcast_tensors(*parts))
    some, full = starts < stops, full_starts < full_stops
    return KeyRanges(starts * some, stops * some, full_starts * full, full_stops * full)


def _largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of a number up to a limit."""
    return max(size for size in range(1, number + 1) if number % size == 0 and size <= limit)


def _key_range(request: AttentionRequest, tile: Tile) -> KeyRange:
    """The keys that any row of a tile may attend to; one masked key if there is none, so that no axis is empty."""
    keys = request.shape[3]
    if request.mask is None:
        return KeyRange(0, keys)
    start, stop = tile.clip(*request.mask.key_range(tile))
    if start < stop:
        return KeyRange(start, stop)
    return KeyRange(start, start + 1) if start < keys else KeyRange(keys - 1, keys)


def slices(whole: slice, size: int) -> Iterator[slice]:
    """Slices of a range with `size` entries each but the last."""
    return (slice(start, min(start + size, whole.stop)) for start in range(whole.start, whole.stop, size))
