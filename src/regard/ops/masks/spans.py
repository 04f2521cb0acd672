"""Masks of which each row is a few ranges of keys: most masks that there are, in memory linear in the queries."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Integer
from torch import Tensor

from regard.errors import InvalidType
from regard.ops.masks.base import Mask, MaskLike, no_keys, other_device, overlap
from regard.ops.masks.convert import Shape, fitting
from regard.ops.tile import Index, Span, Tile

BLOCK = 2**22
"""How many cells of a mask are looked at together."""


@dataclass(frozen=True, eq=False)
class Spans(Mask):
    """Each query sees the keys of a few ranges, from a first one up to the one before ``stops``.

    Args:
        starts: (batch or 1, heads or 1, queries, spans) integers: the first key of each range.
        stops: The same: one past its last. A range that stops where it starts, or before, holds nothing.

    Raises:
        InvalidType: If they are no integers, or have other or different axes.

    Memory: O(queries · spans), where the mask itself has queries × keys cells.

    Example:
        >>> import regard, torch
        >>> starts, stops = torch.tensor([[0], [1]]), torch.tensor([[2], [4]])
        >>> x = torch.ones(1, 1, 4, 8)
        >>> mask = regard.ops.masks.Spans(starts[None, None], stops[None, None])
        >>> regard.weights(x[:, :, :2], x, mask=mask)[0, 0]
        tensor([[0.5000, 0.5000, 0.0000, 0.0000],
                [0.0000, 0.3333, 0.3333, 0.3333]])
    """

    starts: Integer[Tensor, "#batch #heads queries spans"]
    stops: Integer[Tensor, "#batch #heads queries spans"]

    def __post_init__(self) -> None:
        for name in ("starts", "stops"):
            given = getattr(self, name)
            if not isinstance(given, Tensor) or given.dtype == torch.bool or given.is_floating_point():
                came = given.dtype if isinstance(given, Tensor) else type(given).__name__
                raise InvalidType(f"Spans: {name} holds numbers of keys as integers, not {came}")
        if self.starts.ndim != 4 or self.starts.shape != self.stops.shape or not self.starts.shape[3]:
            came = f"{tuple(self.starts.shape)} and {tuple(self.stops.shape)}"
            axes = "(batch or 1, heads or 1, queries, spans), of at least one span"
            raise InvalidType(f"Spans: starts and stops are both {axes}, not {came}")

    def __repr__(self) -> str:
        return f"Spans(starts and stops {tuple(self.starts.shape)})"

    def allowed(self, cells: Tile) -> Bool[Tensor, "..."]:
        starts, stops = _rows(self.starts, cells), _rows(self.stops, cells)
        found = torch.zeros((), dtype=torch.bool, device=starts.device)
        for start, stop in zip(starts.unbind(-1), stops.unbind(-1), strict=True):
            found = found | ((cells.key >= start[..., None]) & (cells.key < stop[..., None]))
        return found

    def read(self) -> tuple[Int[Tensor, " queries"], ...]:
        """For each query, on the CPU: its first key, one past its last, and the same of what all heads see whole."""
        starts, stops = self.starts.cpu().to(torch.int64), self.stops.cpu().to(torch.int64)
        empty = stops <= starts
        first = starts.masked_fill(empty, torch.iinfo(torch.int64).max).amin((0, 1, 3))
        last = stops.masked_fill(empty, 0).amax((0, 1, 3))
        whole = (stops - starts).argmax(3, keepdim=True)  # the longest range of each row
        return first, last, starts.gather(3, whole).amax((0, 1, 3)), stops.gather(3, whole).amin((0, 1, 3))

    def extent(self, cells: Tile) -> Span:
        first, last, _, _ = (each[_on_cpu(cells.rows)] for each in self.known)
        start, stop = int(first.min()), int(last.max())
        return overlap(cells.keys, (start, stop)) if start < stop else no_keys(cells)

    def certain(self, cells: Tile) -> Span:
        _, _, first, last = (each[_on_cpu(cells.rows)] for each in self.known)
        start, stop = int(first.max()), int(last.min())
        return overlap(cells.keys, (start, stop)) if start < stop else no_keys(cells)

    def objections(self, shape: Shape, device: torch.device) -> list[str]:
        batch, heads, queries, _ = shape
        given = self.starts.shape[:3]
        fits = given[0] in (1, batch) and given[1] in (1, heads) and given[2] == queries
        wrong = [] if fits else [f"mask: Spans holds {tuple(given)} rows, expected (batch or 1, heads or 1, queries)"]
        return [*[f"{each} of {(batch, heads, queries)}" for each in wrong], *other_device(self.starts, device)]


def to_spans(
    mask: MaskLike, shape: Shape, offset: int | None = None, device: str | torch.device = "cpu", most: int = 64
) -> Spans | None:
    """The mask as ranges of keys.

    Args:
        mask: A rule, or what becomes one.
        shape: (batch, heads, queries, keys).
        offset: Query i stands at position i + offset; keys − queries if not given.
        device: Where the tensors of the mask lie.
        most: So many ranges a row may have.

    Returns:
        Spans: For one sequence or head where all are alike; None where a row has more ranges.

    Raises:
        InvalidArgument: If the mask does not fit the shape.
        InvalidType: If shape or offset are no integers, or the mask is none.

    Memory: O(queries), and a block of the mask at a time.

    Example:
        >>> import regard
        >>> from regard.ops.masks import to_spans
        >>> to_spans(regard.Causal(), (2, 8, 3, 3)).stops.tolist()
        [[[[1], [2], [3]]]]
    """
    rule, offset = fitting(mask, shape, offset, torch.device(device))
    batch, heads, queries, keys = shape
    rows = max(1, BLOCK // (batch * heads * keys))
    found: list[tuple[Tensor, Tensor]] = []
    for first in range(0, queries, rows):
        part = slice(first, min(first + rows, queries))
        cells = Tile(slice(0, batch), slice(0, heads), part, (0, keys), offset, torch.device(device))
        allowed = rule.allowed(cells)
        lead = (1,) * (4 - allowed.ndim) + tuple(allowed.shape)
        edges = allowed.reshape(lead).expand(*lead[:2], part.stop - part.start, keys).to(torch.int8)
        steps = torch.nn.functional.pad(edges, (1, 1)).diff()  # 1 where a range starts, −1 where it stops
        count = int((steps > 0).sum(-1).max())
        if count > most:
            return None
        found.append((_places(steps > 0, count), _places(steps < 0, count)))
    width = max(1, *(starts.shape[-1] for starts, _ in found))
    sides = (torch.cat([_wide(each, width) for each in side], 2) for side in zip(*found, strict=True))
    return Spans(*sides)


def _places(marked: Tensor, count: int) -> Tensor:
    """The keys at which each row is marked, (..., count), filled up with 0."""
    at = marked.nonzero()
    places = torch.zeros(*marked.shape[:-1], count, dtype=torch.int32, device=marked.device)
    rank = marked.cumsum(-1)[tuple(at.T)] - 1
    places[(*at[:, :-1].T, rank)] = at[:, -1].to(torch.int32)
    return places


def _wide(places: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(places, (0, width - places.shape[-1]))


def _rows(sides: Tensor, cells: Tile) -> Tensor:
    """What belongs to the rows of these cells, (batch or 1, heads or 1, rows, spans)."""
    for axis, index in enumerate((cells.batch, cells.heads, cells.rows)):
        if sides.shape[axis] > 1 or axis == 2:
            sides = sides[(slice(None),) * axis + (index,)]
    return sides


def _on_cpu(index: Index) -> Index:
    return index if isinstance(index, slice) else index.cpu()
