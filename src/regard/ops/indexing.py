"""Plan what an index of the weight matrix needs: its rows, and the cells of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from regard.checks import Checks
from regard.errors import InvalidType, short_repr
from regard.ops.measures.base import Block, Measure, lowest
from regard.ops.steps import Place, Step
from regard.ops.tile import Shape

Source = Literal["weights", "scores"]
Selection = int | Sequence[int] | slice | Tensor | None
"""What `at` takes for an axis."""


class SelectCells(Measure, name="_select_cells"):
    """Some cells of each row, (batch, heads, queries, width).

    Args:
        source: Weights, or scores (−∞ where masked).
        keys: The same range of keys for each row, or (batch, heads, queries, width) keys of each.
    """

    source: Source
    keys: slice | Tensor
    needs_all_keys = False

    def compute(self, block: Block) -> Tensor:
        cells = block.weights if self.source == "weights" else block.scores
        fill = 0.0 if self.source == "weights" else -torch.inf
        start, stop = block.index[3].start, block.index[3].stop
        if isinstance(self.keys, slice):
            outside = (start, block.shape[3] - stop)
            selected = torch.nn.functional.pad(cells, outside, value=fill)[..., self.keys]
        else:
            keys = self.keys[block.index[:3]]
            inside = (keys >= start) & (keys < stop)
            selected = cells.gather(-1, torch.where(inside, keys - start, 0)).masked_fill(~inside, fill)
        return selected if self.source == "weights" else selected.masked_fill(selected <= lowest(cells.dtype), fill)

    def steps(self, place: Place) -> list[Step] | None:
        """The first key of a range of weights."""
        if self.source != "weights" or isinstance(self.keys, Tensor) or self.keys.step not in (None, 1):
            return None
        return [Step("select", (self.keys.indices(place.shape[3])[0],))]

    def result_specs(self, shape: Shape, dtype: torch.dtype) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
        if isinstance(self.keys, Tensor):
            width = self.keys.shape[3]
        elif self.keys == slice(None):
            width = shape[3]  # a symbol while a program is compiled
        else:
            width = len(range(*self.keys.indices(shape[3])))
        return (((*self.result_shape(shape), width), dtype),)


def resolve_index(checks: Checks, name: str, index: Any, size: int, device: torch.device) -> Tensor | None:
    """The entries of an axis that an int, several, bools or a slice select, counted from 0.

    Args:
        checks: Collects the problems with its values.
        name: The argument, as messages call it.
        index: The index.
        size: Number of entries of the axis.
        device: Device of the result.

    Returns:
        Tensor: (selected,) int64; None if the index does not consist of integers or bools.

    Raises:
        InvalidType: If it is not an index.
    """
    try:
        indices = (
            torch.arange(size, device=device)[index]
            if isinstance(index, slice)
            else torch.as_tensor(index, device=device)
        )
    except (TypeError, ValueError, RuntimeError):
        raise InvalidType(
            f"{name}: expected an int, several or a slice with a positive step, got {short_repr(index)}"
        ) from None
    indices = indices.to(device).reshape(-1)
    if indices.dtype == torch.bool and len(indices) == size and not isinstance(index, bool):
        indices = indices.nonzero().flatten()
    if indices.numel() and (indices.dtype == torch.bool or indices.is_floating_point() or indices.is_complex()):
        checks.fail(f"{name}: expected integers or {size} bools, got {short_repr(index)}")
        return None
    indices = indices.to(torch.int64)
    if len(indices) == 0:
        checks.fail(f"{name}: expected at least one of {size}, got {short_repr(index)}, which selects none")
    elif int(indices.min()) < -size or int(indices.max()) >= size:
        checks.fail(f"{name}: expected indices from {-size} to {size - 1}, got {short_repr(index)}")
    return torch.where(indices < 0, indices + size, indices)


def split_index(index: Any, key_count: int) -> tuple[tuple[Any, ...], slice, tuple[Any, ...]] | None:
    """Split an index into its parts for rows and for keys, if it selects the same keys of every row.

    Returns:
        The index of (batch, heads, queries); a range that holds the selected keys; the index of that range. None if
        keys are selected by tensors or lists, or the index cannot be split.
    """
    parts = list(index) if isinstance(index, tuple) else [index]
    if len(parts) <= 4 and {*map(type, parts)} <= {int, slice}:  # as most indices are
        parts += [slice(None)] * (4 - len(parts))
    else:
        consumed = [_axes_consumed(part) for part in parts]
        if None in consumed or sum(part is ... for part in parts) > 1:
            return None
        missing = 4 - sum(count for count in consumed if count is not None)
        if missing < 0:
            return None
        at = next((i for i, part in enumerate(parts) if part is ...), len(parts))
        parts[at : at + 1] = [slice(None)] * missing
    after = len(parts)
    while after and parts[after - 1] is None:
        after -= 1
    key_part = parts[after - 1]
    if isinstance(key_part, int):
        if not -key_count <= key_part < key_count:
            raise IndexError(f"index {key_part} is out of bounds for the axis of keys, which has size {key_count}")
        keys = slice(key_part, key_part + 1 or None)
        return tuple(parts[: after - 1]), keys, (0, *parts[after:])
    if isinstance(key_part, slice):
        return tuple(parts[: after - 1]), key_part, (slice(None), *parts[after:])
    return None


def _axes_consumed(part: Any) -> int | None:
    """The number of axes that a part of an index consumes; None if only torch knows."""
    if part is None or part is ...:
        return 0
    if isinstance(part, bool):
        return None
    if isinstance(part, (int, slice)):
        return 1
    if isinstance(part, Tensor):
        return part.ndim if part.dtype in (torch.bool, torch.uint8) else 1
    is_int_list = isinstance(part, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in part)
    return 1 if is_int_list else None


def rectangle(index: tuple[Any, ...], shape: Shape) -> list[range] | None:
    """The batch entries, heads and queries that ints and slices select; None for other indices, or for no row.

    Raises:
        IndexError: If an int is out of bounds.
    """
    if len(index) != 3:
        return None
    entries: list[range] = []
    for axis, (part, size) in enumerate(zip(index, shape, strict=False)):
        if type(part) is int:
            if not -size <= part < size:
                raise IndexError(f"index {part} is out of bounds for dimension {axis} with size {size}")
            entries.append(range(part % size, part % size + 1))
        elif type(part) is slice and (part.step is None or part.step == 1) and len(selected := range(size)[part]):
            entries.append(selected)
        else:
            return None
    return entries


def rectangles(rows: Tensor, shape: Shape) -> Iterator[tuple[list[Tensor | None], slice]]:
    """Split rows, numbered through the first three axes and ascending, into rectangles of (batch, heads, queries).

    Yields:
        The entries of the three axes (None for all), and which of the rows they are.
    """
    sizes = shape[:3]
    axes = [axis.unique() for axis in torch.unravel_index(rows, sizes)]
    if len(axes[0]) * len(axes[1]) * len(axes[2]) == len(rows):
        yield [None if len(axis) == size else axis for axis, size in zip(axes, sizes, strict=True)], slice(0, len(rows))
        return
    pairs, counts = (rows // sizes[2]).unique_consecutive(return_counts=True)
    start = 0
    for pair, count in zip(pairs, counts.tolist(), strict=True):
        part = slice(start, start + count)
        yield [(pair // sizes[1])[None], (pair % sizes[1])[None], rows[part] % sizes[2]], part
        start += count


def similar_rows(rows: Tensor) -> list[Tensor]:
    """Split cells, of which these are the rows, so that no row of a part has more than twice the cells of another.

    `columns_by_row` pads rows to the longest, and one long row among many short ones would take n × n cells.
    """
    _, row, counts = rows.unique(return_inverse=True, return_counts=True)
    magnitude = counts.log2().to(torch.int64)[row]
    return [(magnitude == each).nonzero().flatten() for each in magnitude.unique()]


def columns_by_row(rows: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Group cells by row: the different rows; the keys of each, (rows, most keys of one); where each cell went."""
    unique, row, counts = rows.unique(return_inverse=True, return_counts=True)
    order = row.argsort(stable=True)
    starts = counts.cumsum(0) - counts
    rank = torch.empty_like(row)
    rank[order] = torch.arange(len(row), device=row.device) - starts[row[order]]
    columns = keys.new_zeros(len(unique), int(counts.max()))
    columns[row, rank] = keys
    return unique, columns, (row, rank)
