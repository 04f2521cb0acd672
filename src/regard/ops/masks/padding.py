"""Padding: keys that fill a sequence up, and are seen by nobody."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Integer
from torch import Tensor

from regard.errors import InvalidType
from regard.ops.masks.base import Mask, other_device
from regard.ops.tile import Span, Tile


@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """Keys that are padding are seen by nobody.

    Args:
        keys: Either the lengths, (batch,) integers: key j of sequence b is real where j < lengths[b]; or a bool tensor,
            (batch, keys), True where the key is real.

    Raises:
        InvalidType: If it is neither.

    Example:
        >>> import regard, torch
        >>> x = torch.ones(2, 1, 3, 4)
        >>> regard.weights(x, x, mask=regard.Padding(torch.tensor([1, 2])))[:, 0, 0]
        tensor([[1.0000, 0.0000, 0.0000],
                [0.5000, 0.5000, 0.0000]])
    """

    keys: Integer[Tensor, " batch"] | Bool[Tensor, "batch keys"]

    def __post_init__(self) -> None:
        dtype = self.keys.dtype if isinstance(self.keys, Tensor) else type(self.keys).__name__
        integer = isinstance(self.keys, Tensor) and not (self.keys.is_floating_point() or self.keys.is_complex())
        if not integer or self.keys.ndim != (2 if self.keys.dtype == torch.bool else 1):
            came = f"{dtype} {tuple(self.keys.shape)}" if isinstance(self.keys, Tensor) else f"{dtype}"
            raise InvalidType(
                f"Padding: expected lengths (batch,) as integers, or a bool tensor (batch, keys); got {came}"
            )

    def __repr__(self) -> str:
        return f"Padding({'lengths' if self.lengths else 'bool'} {tuple(self.keys.shape)})"

    @property
    def lengths(self) -> bool:
        """Whether the rule holds lengths and not a bool for each key."""
        return self.keys.dtype != torch.bool

    def allowed(self, cells: Tile) -> Bool[Tensor, "..."]:
        if self.lengths:
            return cells.key < self.keys[cells.sequence]
        return cells.part_of(self.keys[:, None, None, :])

    def read(self) -> tuple[list[int], list[int], list[int]]:
        """For each sequence: its first real key, one past the last, and how many keys are real from its start on."""
        if self.lengths:
            lengths = self.keys.tolist()
            return [0] * len(lengths), lengths, lengths
        count = torch.arange(1, self.keys.shape[1] + 1, device=self.keys.device)
        ends = (self.keys * count).amax(1)
        starts = self.keys.to(torch.uint8).argmax(1)
        return starts.tolist(), ends.tolist(), self.keys.cumprod(1).sum(1).tolist()

    def extent(self, cells: Tile) -> Span:
        starts, stops, _ = self.known
        start = max(cells.keys[0], min(starts[i] for i in cells.sequences))
        return start, max(start, min(cells.keys[1], max(stops[i] for i in cells.sequences)))

    def certain(self, cells: Tile) -> Span:
        _, _, prefix = self.known
        start, stop = cells.keys
        return start, max(start, min(stop, min(prefix[i] for i in cells.sequences)))

    def objections(self, shape: tuple[int, int, int, int], device: torch.device) -> list[str]:
        batch, _, _, keys = shape
        expected = (batch,) if self.lengths else (batch, keys)
        found = []
        if tuple(self.keys.shape) != expected:
            what = "lengths (batch,)" if self.lengths else "bool (batch, keys)"
            found.append(f"mask: Padding holds {what} = {tuple(self.keys.shape)}, expected {expected}")
        return found + other_device(self.keys, device)

    @property
    def per_query(self) -> bool:
        return False
