"""How the matrix is cut into blocks of rows: small enough for a cache, and only keys that some row may attend to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
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
        waits: Whether to read a value means to wait for the device. Then the ranges of keys of all blocks are read
            before the first one, and nothing is read later.
    """

    rows: int
    max_rows: int
    elements: int
    elements_per_head: int
    waits: bool = False

    def __post_init__(self) -> None:
        with Checks() as checks:
            for name in ("rows", "max_rows", "elements", "elements_per_head"):
                checks.integer(f"BlockSizes.{name}", getattr(self, name), low=1)


CPU = BlockSizes(rows=128, max_rows=1024, elements=2**19, elements_per_head=2**22)

UNKNOWN_MEMORY = 2**33
"""Bytes of a device that does not say how many it has."""


@lru_cache(maxsize=64)
def accelerator_sizes(memory: int = UNKNOWN_MEMORY) -> BlockSizes:
    """Sizes for a device with so many bytes: a matrix of a block's cells in float32 takes 1/128 of them.

    A pass forward and backward holds about ten such matrices. From 64 GiB on blocks do not grow: starting an operation
    takes far less time than computing it.
    """
    elements = min(max(memory // 512, 2**20), 2**27)
    return BlockSizes(rows=1024, max_rows=2048, elements=elements, elements_per_head=4 * elements, waits=True)


@lru_cache(maxsize=64)
def sizes_on(device: torch.device) -> BlockSizes:
    """The sizes that suit a device."""
    if device.type == "cpu":
        return CPU
    if device.type in ("cuda", "xpu"):
        return accelerator_sizes(torch.get_device_module(device).get_device_properties(device).total_memory)
    return accelerator_sizes(torch.mps.recommended_max_memory() if device.type == "mps" else UNKNOWN_MEMORY)


@dataclass(eq=False)
class BlockLocation:
    """Where a block is in the matrix, and how its part of whole tensors is read and written.

    Args:
        request: The matrix.
        batch: Batch entries of the matrix; the tile has those that mask and score were made for.
        heads: Query heads; within one head of keys, or of values, where these are shared.
        rows: Queries.
        tile: The block's tile, over its range of keys.
        full_keys: Keys that every row may attend to; an empty range if none are known.
        waits: See `BlockSizes`.
    """

    request: AttentionRequest
    batch: slice
    heads: slice
    rows: Index
    tile: Tile
    full_keys: KeyRange
    waits: bool

    @property
    def index(self) -> BlockIndex:
        """The entries of each axis."""
        return self.batch, self.heads, self.rows, slice(*self.tile.keys)

    def masked_ranges(self) -> list[tuple[slice, Tensor]]:
        """The cells outside the full range that are masked: ranges of the block's keys, each with a bool tensor."""
        ranges: list[tuple[slice, Tensor]] = []
        start, stop = self.tile.keys
        for low, high in ((start, self.full_keys.start), (self.full_keys.stop, stop)):
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
    ranges = _BlockRanges(request, rows, sizes.waits)
    for block_rows in slices(slice(0, queries), rows):
        key_range = ranges.find_keys(
            request.tile(*everything, block_rows, summaries=summaries), *everything, block_rows
        )
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
                        tile = tile.with_keys(ranges.find_keys(tile, b, h, r))
                        full = ranges.find_full_keys(tile, b, h, r)
                        yield BlockLocation(request, b, h, r, tile, full, sizes.waits)

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


class _BlockRanges:
    """Which keys the rows of blocks may attend to.

    Args:
        request: The matrix.
        rows: Queries of a block.
        waits: See `BlockSizes`.
    """

    def __init__(self, request: AttentionRequest, rows: int, waits: bool) -> None:
        self._mask, self._num_keys, self._rows = request.mask, request.shape[3], rows
        self._table: Any = None  # (4, batch or 1, heads or 1, blocks)
        steps = None if self._mask is None or not waits else self._mask.steps(request.place)
        if steps is not None and (request.full_shape is not None or any(step.tensors is not tuple for step in steps)):
            self._table = torch.stack(block_key_ranges(request, rows)).cpu().numpy()

    def find_keys(self, tile: Tile, batch: slice, heads: slice, rows: slice) -> KeyRange:
        """The keys that any row may attend to; one masked key if there is none, so that no axis is empty."""
        keys = self._num_keys
        if self._mask is None:
            return KeyRange(0, keys)
        if self._table is None:
            start, stop = tile.clip(*self._mask.key_range(tile))
        else:
            starts, stops, _, _ = self._of(batch, heads, rows)
            some = starts < stops
            start, stop = (int(starts[some].min()), int(stops.max())) if some.any() else (0, 0)
        if start < stop:
            return KeyRange(start, stop)
        return KeyRange(start, start + 1) if start < keys else KeyRange(keys - 1, keys)

    def find_full_keys(self, tile: Tile, batch: slice, heads: slice, rows: slice) -> KeyRange:
        """The keys that every row may attend to; an empty range if none are known."""
        if self._mask is None:
            return tile.keys
        if self._table is None:
            return tile.clip(*self._mask.full_key_range(tile))
        _, _, starts, stops = self._of(batch, heads, rows)
        return tile.clip(int(starts.max()), int(stops.min()))

    def _of(self, batch: slice, heads: slice, rows: slice) -> Any:
        """The part of the table for a block."""
        table = self._table[..., rows.start // self._rows]
        return table[:, batch if table.shape[1] > 1 else slice(None), heads if table.shape[2] > 1 else slice(None)]


def slices(whole: slice, size: int) -> Iterator[slice]:
    """Slices of a range with `size` entries each but the last."""
    return (slice(start, min(start + size, whole.stop)) for start in range(whole.start, whole.stop, size))
