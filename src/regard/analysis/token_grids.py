"""Token grids: layers of windows of an image, and stages between which tokens are merged, as in Swin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.ops import WeightMatrix
from regard.recordings.batch_axis import Windows
from regard.recordings.layer import Layer


@dataclass(frozen=True)
class PatchMerging:
    """Joins 2 × 2 tokens of a grid to one, which counts as the mean of those that are there.

    Args:
        height: Rows of tokens before.
        width: Columns of tokens before.
    """

    height: int
    width: int

    @cached_property
    def _merged(self) -> Int[Tensor, " tokens"]:
        """(tokens,) The index of the token that each token becomes a part of."""
        rows, columns = torch.arange(self.height, device="cpu") // 2, torch.arange(self.width, device="cpu") // 2
        return (rows[:, None] * -(-self.width // 2) + columns).flatten()

    @cached_property
    def _counts(self) -> Int[Tensor, " merged"]:
        return self._merged.bincount()

    def times(self, columns: Float[Tensor, "batch tokens columns"]) -> Float[Tensor, "batch merged columns"]:
        """The product with columns."""
        counts = self._counts.to(columns.device)
        total = columns.new_zeros(len(columns), len(counts), columns.shape[2])
        return total.index_add(1, self._merged.to(columns.device), columns) / counts[:, None]

    def transposed_times(self, columns: Float[Tensor, "batch merged columns"]) -> Float[Tensor, "batch tokens columns"]:
        """The product of the transpose with columns."""
        return (columns / self._counts.to(columns.device)[:, None])[:, self._merged.to(columns.device)]


def windows_of(layer: Layer | WeightMatrix) -> Windows | None:
    """How the images of a layer were cut into the entries of its batch, if they were."""
    axis = layer.batch_axis if isinstance(layer, Layer) else None
    return None if axis is None else axis.windows


def image_shape(layer: Layer | WeightMatrix) -> tuple[int, int]:
    """The batch and the number of queries of a layer; of one of windows, those of its images."""
    batch, _, rows, _ = (layer.weights if isinstance(layer, Layer) else layer).shape
    windows = windows_of(layer)
    return (batch, rows) if windows is None else (batch // windows.count, windows.height * windows.width)


def result_shape(layers: Sequence[Layer | WeightMatrix]) -> tuple[int, int]:
    """The batch and the number of tokens after the last of several layers, whose tokens fit each other."""
    return image_shape(layers[-1] if windows_of(layers[-1]) is not None else layers[0])


def merging_before(layers: Sequence[Layer | WeightMatrix], number: int) -> PatchMerging | None:
    """What merges the tokens of the layers before into those of a layer of windows; None if they are the same."""
    windows = windows_of(layers[number])
    if windows is None:
        return None
    before = next((found for layer in reversed(layers[:number]) if (found := windows_of(layer)) is not None), None)
    if before is None or (before.height, before.width) == (windows.height, windows.width):
        return None
    is_halved = (-(-before.height // 2), -(-before.width // 2)) == (windows.height, windows.width)
    return PatchMerging(before.height, before.width) if is_halved else None
