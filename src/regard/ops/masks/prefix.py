"""The prefix mask: a beginning that all see, and a continuation that sees what came before."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Integer
from torch import Tensor

from regard.errors import InvalidType
from regard.ops.masks.base import Mask, other_device
from regard.ops.tile import Span, Tile


@dataclass(frozen=True, eq=False)
class Prefix(Mask):
    """A query sees the whole prefix, and the keys up to its own position: key j < length or j ≤ position.

    Args:
        lengths: How many keys the prefix has: a number, or (batch,) integers.

    Raises:
        InvalidType: If it is neither.

    Reference: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
    figure 4 ("causal with prefix").

    Example:
        >>> import regard, torch
        >>> x = torch.ones(1, 1, 3, 4)
        >>> regard.weights(x, x, mask=regard.Prefix(2))[0, 0]
        tensor([[0.5000, 0.5000, 0.0000],
                [0.5000, 0.5000, 0.0000],
                [0.3333, 0.3333, 0.3333]])
    """

    lengths: int | Integer[Tensor, " batch"]

    def __post_init__(self) -> None:
        given = self.lengths
        if isinstance(given, Tensor):
            right = given.ndim == 1 and not (given.dtype == torch.bool or given.is_floating_point())
            came = f"{given.dtype} {tuple(given.shape)}"
        else:
            right, came = isinstance(given, int) and not isinstance(given, bool), repr(given)
        if not right:
            raise InvalidType(f"Prefix: lengths is a number of keys (int), or integers (batch,); got {came}")

    def __repr__(self) -> str:
        given = f"lengths {tuple(self.lengths.shape)}" if isinstance(self.lengths, Tensor) else f"{self.lengths}"
        return f"Prefix({given})"

    def allowed(self, cells: Tile) -> Bool[Tensor, "..."]:
        length = self.lengths[cells.sequence] if isinstance(self.lengths, Tensor) else self.lengths
        return (cells.key <= cells.position) | (cells.key < length)

    def read(self) -> list[int]:
        """The length of each sequence's prefix."""
        return self.lengths.tolist() if isinstance(self.lengths, Tensor) else []

    def extent(self, cells: Tile) -> Span:
        return self._up_to(cells, max(cells.ends[1] + 1, max(self._lengths(cells))))

    def certain(self, cells: Tile) -> Span:
        return self._up_to(cells, max(cells.ends[0] + 1, min(self._lengths(cells))))

    def objections(self, shape: tuple[int, int, int, int], device: torch.device) -> list[str]:
        if not isinstance(self.lengths, Tensor):
            return []
        given, expected = tuple(self.lengths.shape), shape[:1]
        wrong = [] if given == expected else [f"mask: Prefix holds lengths (batch,) = {given}, expected {expected}"]
        return wrong + other_device(self.lengths, device)

    def _lengths(self, cells: Tile) -> list[int]:
        return [self.known[i] for i in cells.sequences] if isinstance(self.lengths, Tensor) else [self.lengths]

    @staticmethod
    def _up_to(cells: Tile, end: int) -> Span:
        start, stop = cells.keys
        return start, max(start, min(stop, end))
