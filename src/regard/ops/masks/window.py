"""Bands around a query's position: the window, and the causal mask."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from regard.errors import InvalidArgument, InvalidType
from regard.ops.masks.base import Mask
from regard.ops.tile import Span, Tile, entries_in


@dataclass(frozen=True, eq=False)
class Window(Mask):
    """A band: a query sees keys from ``position - left`` to ``position + right``.

    Args:
        left: How many keys before its own position a query sees; None is no bound.
        right: How many keys after it; None is no bound.

    Raises:
        InvalidArgument: If a bound is 2⁶² or more.
        InvalidType: If a bound is neither None nor an integer. Negative bounds are allowed: ``Window(None, -1)`` is
            the past alone.

    Memory: A window of w keys computes O(queries · (w + 128)) cells, and no more.

    Example:
        >>> import regard, torch
        >>> x = torch.ones(1, 1, 5, 4)
        >>> regard.weights(x, x, mask=regard.Window(1, 0))[0, 0]
        tensor([[1.0000, 0.0000, 0.0000, 0.0000, 0.0000],
                [0.5000, 0.5000, 0.0000, 0.0000, 0.0000],
                [0.0000, 0.5000, 0.5000, 0.0000, 0.0000],
                [0.0000, 0.0000, 0.5000, 0.5000, 0.0000],
                [0.0000, 0.0000, 0.0000, 0.5000, 0.5000]])
    """

    left: int | None
    right: int | None

    def __post_init__(self) -> None:
        for name in ("left", "right"):
            bound = getattr(self, name)
            if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int)):
                raise InvalidType(f"Window: {name} is a number of keys (int) or None for no bound, not {bound!r}")
            if bound is not None and abs(bound) >= 2**62:
                raise InvalidArgument(f"Window: {name} = {bound} is beyond any key; None is no bound")

    def __repr__(self) -> str:  # a compiler can follow it, which that of dataclasses it cannot
        return f"Window(left={self.left!r}, right={self.right!r})"

    def allowed(self, cells: Tile) -> Bool[Tensor, "..."]:
        if isinstance(cells.rows, slice) and cells.columns is None:  # in order: the band lies between diagonals
            first = cells.rows.start + cells.offset - cells.keys[0]
            seen = torch.ones(entries_in(cells.rows), cells.width, dtype=torch.bool, device=cells.device)
            seen = seen if self.left is None else seen.triu_(first - self.left)
            return seen if self.right is None else seen.tril_(first + self.right)
        position = cells.position
        seen = torch.ones(1, dtype=torch.bool, device=cells.device)
        if self.left is not None:
            seen = cells.key >= position - self.left
        if self.right is not None:
            seen = seen & (cells.key <= position + self.right)
        return seen

    def extent(self, cells: Tile) -> Span:
        return self._clip(cells, *cells.ends)

    def certain(self, cells: Tile) -> Span:
        return self._clip(cells, *cells.ends[::-1])

    def _clip(self, cells: Tile, from_position: int, to_position: int) -> Span:
        """The keys from the left end of one position's window to the right end of another's."""
        start, stop = cells.keys
        lowest = start if self.left is None else min(max(start, from_position - self.left), stop)
        highest = stop if self.right is None else max(min(stop, to_position + self.right + 1), start)
        return lowest, max(lowest, highest)


class Causal(Window):
    """A query sees the keys up to its own position: key j ≤ position, where query i stands at i + offset.

    Memory: With as many queries as keys, half of the cells are computed.

    Example:
        >>> import regard, torch
        >>> x = torch.ones(1, 1, 3, 4)
        >>> regard.weights(x, x, mask=regard.Causal())[0, 0]
        tensor([[1.0000, 0.0000, 0.0000],
                [0.5000, 0.5000, 0.0000],
                [0.3333, 0.3333, 0.3333]])
    """

    def __init__(self) -> None:
        super().__init__(None, 0)

    def __repr__(self) -> str:
        return "Causal()"
