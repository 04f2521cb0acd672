"""Sliding-window and causal masks."""

from __future__ import annotations

import torch
from jaxtyping import Bool
from torch import Tensor

from regard.checks import Checks
from regard.ops.masks.base import Mask
from regard.ops.steps import Place, Step
from regard.ops.tile import KeyRange, Tile


class Window(Mask):
    """Sliding-window mask: a query at position p attends to keys p - left, ..., p + right.

    Query i has position i + offset, where ``offset`` is an argument of `attend`.

    Args:
        left: Number of keys before the query's position that it attends to; None for no limit.
        right: Number of keys after it; None for no limit. ``Window(None, -1)`` hides the query's own position.

    Raises:
        InvalidType: If a limit is neither an int nor None.
        InvalidArgument: If a limit is 2**62 or more.

    Memory:
        Computes O(queries * (left + right + rows per block)) scores.

    Examples:
        >>> import regard, torch
        >>> x = torch.ones(1, 1, 4, 8)
        >>> regard.weights(x, x, mask=regard.Window(1, 0))[0, 0]
        tensor([[1.0000, 0.0000, 0.0000, 0.0000],
                [0.5000, 0.5000, 0.0000, 0.0000],
                [0.0000, 0.5000, 0.5000, 0.0000],
                [0.0000, 0.0000, 0.5000, 0.5000]])
    """

    left: int | None
    right: int | None

    def __post_init__(self) -> None:
        checks = Checks()
        for name, limit in (("left", self.left), ("right", self.right)):
            checks.integer(f"Window.{name}", limit, low=1 - 2**62, below=2**62, optional=True)
        checks.raise_problems()

    def allowed(self, tile: Tile) -> Bool[Tensor, "..."]:
        if tile.is_consecutive:  # the window is between two diagonals
            first = tile.rows.start + tile.offset - tile.keys.start  # pyright: ignore[reportAttributeAccessIssue]
            allowed = torch.ones(*tile.shape[2:], dtype=torch.bool, device=tile.device)
            allowed = allowed if self.left is None else allowed.triu_(first - self.left)
            return allowed if self.right is None else allowed.tril_(first + self.right)
        position = tile.q_pos
        allowed = torch.ones(1, dtype=torch.bool, device=tile.device)
        if self.left is not None:
            allowed = tile.kv_idx >= position - self.left
        if self.right is not None:
            allowed = allowed & (tile.kv_idx <= position + self.right)
        return allowed

    def key_range(self, tile: Tile) -> KeyRange:
        """From the left edge of the first position's window to the right edge of the last one's."""
        first, last = tile.position_range
        return self._between(tile, first, last)

    def full_key_range(self, tile: Tile) -> KeyRange:
        """From the left edge of the last position's window to the right edge of the first one's."""
        first, last = tile.position_range
        return self._between(tile, last, first)

    def steps(self, place: Place) -> list[Step]:
        return [Step("window", (self.left, self.right))]

    def _between(self, tile: Tile, left_of: int, right_of: int) -> KeyRange:
        start = tile.keys.start if self.left is None else left_of - self.left
        return tile.clip(start, tile.keys.stop if self.right is None else right_of + self.right + 1)


class Causal(Window):
    """Causal mask: a query at position p attends to keys 0, ..., p, where query i has position i + offset.

    Memory:
        With as many queries as keys, half of the scores are computed.

    Examples:
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
