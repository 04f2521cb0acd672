"""Parts of a matrix that is not there: which rows an index needs, and the measure that hands out their cells."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from regard.ops.measures import FORBIDDEN, Block, Measure, Shape

Shown = Literal["weights", "scores"]


@dataclass(frozen=True, eq=False)
class SelectCells(Measure):
    """Some cells of each row, (batch, heads, queries, width).

    Args:
        shown: The cells after softmax, or before it (−∞ where masked).
        keys: The same range of keys for each row, or (batch, heads, queries, width) keys of its own.
    """

    shown: Shown
    keys: slice | Tensor

    def of(self, block: Block) -> Tensor:
        cells = block.weights if self.shown == "weights" else block.scores
        nothing = 0.0 if self.shown == "weights" else -torch.inf
        start, stop = block.index[3].start, block.index[3].stop
        if isinstance(self.keys, slice):
            outside = (start, block.shape[3] - stop)
            found = torch.nn.functional.pad(cells, outside, value=nothing)[..., self.keys]
        else:
            keys = self.keys[block.index[:3]]
            inside = (keys >= start) & (keys < stop)
            found = cells.gather(-1, torch.where(inside, keys - start, 0)).masked_fill(~inside, nothing)
        return found if self.shown == "weights" else found.masked_fill(found <= FORBIDDEN, nothing)

    def parts(self, shape: Shape, dtype: torch.dtype) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
        width = self.keys.shape[3] if isinstance(self.keys, Tensor) else len(range(*self.keys.indices(shape[3])))
        return (((*self.whole(shape), width), dtype),)


def split_index(index: Any, key_count: int) -> tuple[tuple[Any, ...], slice, tuple[Any, ...]] | None:
    """Cut an index into what it does to rows and what it does to keys, where it does the same to the keys of every row.

    Returns:
        The index of (batch, heads, queries); a range that holds the keys it asks for; what to do with that range. None
        where the index picks keys by tensors or lists, or is not one that can be cut.
    """
    parts = list(index) if isinstance(index, tuple) else [index]
    takes = [_axes_taken(part) for part in parts]
    if None in takes or sum(part is ... for part in parts) > 1:
        return None
    missing = 4 - sum(taken for taken in takes if taken is not None)
    if missing < 0:
        return None
    at = next((i for i, part in enumerate(parts) if part is ...), len(parts))
    parts[at : at + 1] = [slice(None)] * missing
    after = len(parts)
    while after and parts[after - 1] is None:
        after -= 1
    of_keys = parts[after - 1]
    if isinstance(of_keys, int):
        if not -key_count <= of_keys < key_count:
            raise IndexError(f"index {of_keys} is out of bounds for the axis of keys, which has size {key_count}")
        keys = slice(of_keys, of_keys + 1 or None)
        return tuple(parts[: after - 1]), keys, (0, *parts[after:])
    if isinstance(of_keys, slice):
        return tuple(parts[: after - 1]), of_keys, (slice(None), *parts[after:])
    return None


def _axes_taken(part: Any) -> int | None:
    """How many axes a part of an index stands for; None where only torch can tell."""
    if part is None or part is ...:
        return 0
    if isinstance(part, bool):
        return None
    if isinstance(part, (int, slice)):
        return 1
    if isinstance(part, Tensor):
        return part.ndim if part.dtype in (torch.bool, torch.uint8) else 1
    return (
        1
        if isinstance(part, list) and all(isinstance(each, int) and not isinstance(each, bool) for each in part)
        else None
    )


def groups(rows: Tensor, shape: Shape) -> Iterator[tuple[list[Tensor | None], slice]]:
    """Cut rows into rectangles of (batch, heads, queries), so that none is computed that was not asked for.

    Args:
        rows: Different numbers of rows, rising, of a matrix whose rows are counted through its first three axes.
        shape: The shape of the matrix.

    Returns:
        For each rectangle the entries of its three axes (None for all), and which of the rows it holds.
    """
    sizes = shape[:3]
    axes = [axis.unique() for axis in torch.unravel_index(rows, sizes)]
    if len(axes[0]) * len(axes[1]) * len(axes[2]) == len(rows):
        yield [None if len(axis) == size else axis for axis, size in zip(axes, sizes, strict=True)], slice(0, len(rows))
        return
    pairs, counts = (rows // sizes[2]).unique_consecutive(return_counts=True)
    start = 0
    for pair, count in zip(pairs, counts.tolist(), strict=True):
        held = slice(start, start + count)
        yield [(pair // sizes[1])[None], (pair % sizes[1])[None], rows[held] % sizes[2]], held
        start += count


def columns_by_row(rows: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Order cells by rows: the different rows; each one's keys, (rows, most keys of one); and where each cell went."""
    unique, row, counts = rows.unique(return_inverse=True, return_counts=True)
    order = row.argsort(stable=True)
    starts = counts.cumsum(0) - counts
    rank = torch.empty_like(row)
    rank[order] = torch.arange(len(row), device=row.device) - starts[row[order]]
    columns = keys.new_zeros(len(unique), int(counts.max()))
    columns[row, rank] = keys
    return unique, columns, (row, rank)
