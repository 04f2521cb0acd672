"""Padding mask: keys that no query attends to."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Integer
from torch import Tensor

from regard.checks import Checks, describe
from regard.errors import InvalidType
from regard.ops.masks.base import Mask
from regard.ops.steps import Place, Step
from regard.ops.tile import KeyRange, Shape, Tile


class Padding(Mask):
    """Padding mask: no query attends to a padding key.

    Args:
        lengths_or_mask: Lengths, (batch,) integers: key j of batch entry b is real if j < lengths[b]. Or a bool tensor,
            (batch, keys), True where the key is real: ``attention_mask.bool()`` of transformers.

    Raises:
        InvalidType: If it is neither.

    Examples:
        >>> import regard, torch
        >>> x = torch.ones(2, 1, 3, 4)
        >>> regard.weights(x, x, mask=regard.Padding(torch.tensor([1, 2])))[:, 0, 0]
        tensor([[1.0000, 0.0000, 0.0000],
                [0.5000, 0.5000, 0.0000]])
    """

    lengths_or_mask: Integer[Tensor, " batch"] | Bool[Tensor, "batch keys"]

    def __post_init__(self) -> None:
        value = self.lengths_or_mask
        is_tensor = isinstance(value, Tensor)  # pyright: ignore[reportUnnecessaryIsInstance]
        is_integer = is_tensor and not (value.is_floating_point() or value.is_complex())
        if not is_integer or value.ndim != (2 if value.dtype == torch.bool else 1):
            hint = "; convert an attention_mask with .bool()" if is_tensor and value.ndim == 2 else ""
            raise InvalidType(
                "Padding: expected lengths (batch,) as integers or a bool tensor (batch, keys), True for real keys, "
                f"got {describe(value)}{hint}"
            )

    @property
    def has_lengths(self) -> bool:
        """Whether the mask holds lengths, not a bool per key."""
        return self.lengths_or_mask.dtype != torch.bool

    def allowed(self, tile: Tile) -> Bool[Tensor, "..."]:
        if self.has_lengths:
            return tile.kv_idx < self.lengths_or_mask[tile.b]
        return tile.slice(self.lengths_or_mask[:, None, None, :])

    def summarize(self) -> tuple[list[int], list[int], list[int]]:
        """Per batch entry: the first real key, one past the last, and the number of real keys before any padding."""
        value = self.lengths_or_mask
        if self.has_lengths:
            lengths = value.tolist()
            return [0] * len(lengths), lengths, lengths
        keys = value.shape[1]
        real = value.to(torch.uint8)
        has_real, has_padding = value.any(1), ~value.all(1)
        start = real.argmax(1)
        stop = (keys - real.flip(1).argmax(1)).where(has_real, 0)
        start, stop, leading = torch.stack((start, stop, real.argmin(1).where(has_padding, keys))).tolist()
        return start, stop, leading

    def key_range(self, tile: Tile) -> KeyRange:
        starts, stops, _ = tile.summary(self)
        return tile.clip(min(starts[i] for i in tile.batch_indices), max(stops[i] for i in tile.batch_indices))

    def full_key_range(self, tile: Tile) -> KeyRange:
        _, _, leading = tile.summary(self)
        return tile.clip(0, min(leading[i] for i in tile.batch_indices))

    @property
    def depends_on_query(self) -> bool:
        return False

    def steps(self, place: Place) -> list[Step]:
        value = self.lengths_or_mask
        if self.has_lengths:
            return [Step("ranges", tensors=lambda: (None, value.to(torch.int64)[:, None, None, None]))]
        return [Step("dense", tensors=lambda: (value[:, None, None, :],))]

    def check(self, checks: Checks, shape: Shape, head_dim: int, device: torch.device) -> None:
        batch, _, _, keys = shape
        shapes = {"(batch,)": (batch,)} if self.has_lengths else {"(batch, keys)": (batch, keys)}
        checks.tensor("Padding.lengths_or_mask", self.lengths_or_mask, shapes=shapes, device=device)
