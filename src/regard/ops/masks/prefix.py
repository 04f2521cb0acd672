"""Prefix mask: full attention within a prefix, causal attention after it."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Integer
from torch import Tensor

from regard.checks import Checks, describe
from regard.errors import InvalidType
from regard.ops.masks.base import Mask
from regard.ops.steps import Place, Step
from regard.ops.tile import KeyRange, Shape, Tile


class Prefix(Mask):
    """Prefix-LM mask: a query at position p attends to key j if j < length or j <= p.

    Args:
        lengths: Length of the prefix: an int, or (batch,) integers.

    Raises:
        InvalidType: If it is neither.

    Reference:
        Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
        figure 4 ("causal with prefix").

    Examples:
        >>> import regard, torch
        >>> x = torch.ones(1, 1, 3, 4)
        >>> regard.weights(x, x, mask=regard.Prefix(2))[0, 0]
        tensor([[0.5000, 0.5000, 0.0000],
                [0.5000, 0.5000, 0.0000],
                [0.3333, 0.3333, 0.3333]])
    """

    lengths: int | Integer[Tensor, " batch"]

    def __post_init__(self) -> None:
        value = self.lengths
        if isinstance(value, Tensor):
            valid = value.ndim == 1 and not (value.dtype == torch.bool or value.is_floating_point())
        else:
            valid = isinstance(value, int) and not isinstance(value, bool)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not valid:
            actual = describe(value) if isinstance(value, Tensor) else repr(value)
            raise InvalidType(f"Prefix.lengths: expected an int or integers (batch,), got {actual}")

    def allowed(self, tile: Tile) -> Bool[Tensor, "..."]:
        length = self.lengths[tile.b] if isinstance(self.lengths, Tensor) else self.lengths
        return (tile.kv_idx <= tile.q_pos) | (tile.kv_idx < length)

    def summarize(self) -> list[int]:
        """The length of each batch entry's prefix."""
        return self.lengths.tolist() if isinstance(self.lengths, Tensor) else []

    def key_range(self, tile: Tile) -> KeyRange:
        return tile.clip(tile.keys.start, max(tile.position_range[1] + 1, *self._lengths(tile)))

    def full_key_range(self, tile: Tile) -> KeyRange:
        return tile.clip(tile.keys.start, max(tile.position_range[0] + 1, min(self._lengths(tile))))

    def steps(self, place: Place) -> list[Step]:
        def lengths() -> tuple[None, Tensor]:
            return None, torch.as_tensor(self.lengths, dtype=torch.int64, device=place.device).reshape(-1, 1, 1, 1)

        return [Step("ranges", tensors=lengths), Step("window", (None, 0)), Step("or")]

    def check(self, checks: Checks, shape: Shape, head_dim: int, device: torch.device) -> None:
        if isinstance(self.lengths, Tensor):
            checks.tensor("Prefix.lengths", self.lengths, shapes={"(batch,)": shape[:1]}, device=device)

    def _lengths(self, tile: Tile) -> list[int]:
        if not isinstance(self.lengths, Tensor):
            return [self.lengths]
        lengths = tile.summary(self)
        return [lengths[i] for i in tile.batch_indices]
