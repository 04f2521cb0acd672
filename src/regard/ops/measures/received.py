"""What the keys receive: sums down the columns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from regard.ops.measures.base import Block, Measure, Shape
from regard.ops.tree import broadcasts


@dataclass(frozen=True, eq=False)
class Received(Measure):
    """What each key receives: cⱼ = Σᵢ wᵢ Pᵢⱼ, (batch, heads, keys).

    Args:
        row_weights: wᵢ, broadcastable to (batch, heads, queries); None is 1 for each row. A query is a query also
            where it is padding: weigh it out with 0.
    """

    row_weights: Shaped[Tensor, "..."] | None = None
    axis = "keys"

    def of(self, block: Block) -> Float[Tensor, "batch heads keys"]:
        if self.row_weights is not None:
            return pull(block.rows_of(self.row_weights)[..., None], block)[..., 0]
        if block.cells.columns is not None:
            return pull(block.weights.new_ones(1, 1, 1, 1), block)[..., 0]
        return (block.weights.new_ones(1, block.weights.shape[2]) @ block.weights)[..., 0, :]

    def objections(self, shape: Shape, device: torch.device) -> list[str]:
        given = self.row_weights
        if given is None:
            return []
        if not isinstance(given, Tensor):
            return [f"received: row_weights must be a tensor, but is {type(given).__name__}"]
        found = (
            [] if given.device == device else [f"received: row_weights lie on {given.device}, the query on {device}"]
        )
        if not broadcasts(given, shape[:3]):
            found.append(
                f"received: row_weights {tuple(given.shape)} do not broadcast to (batch, heads, queries) = {shape[:3]}"
            )
        return found


@dataclass(frozen=True, eq=False)
class TransposedProduct(Measure):
    """Pᵀ Y, (batch, heads, keys, columns), with Y (batch or 1, heads or 1, queries, columns)."""

    rows: Float[Tensor, "#batch #heads queries columns"]
    axis = "keys"

    def of(self, block: Block) -> Float[Tensor, "batch heads keys columns"]:
        at = (slice(None) if size == 1 else at for at, size in zip(block.index[:2], self.rows.shape[:2], strict=True))
        return pull(self.rows[(*at, block.index[2])], block)

    def parts(self, shape: Shape, dtype: torch.dtype) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
        return (((*self.whole(shape), self.rows.shape[3]), dtype),)


def pull(rows: Tensor, block: Block) -> Tensor:
    """Pᵀ Y of a block: (batch, heads, keys, columns), from (1 or batch, 1 or heads, 1 or rows, columns)."""
    weights = block.weights
    rows = rows.to(weights.dtype).expand(*weights.shape[:3], -1)
    if block.cells.columns is None:
        return (rows.mT @ weights).mT  # so the weights are read along their rows
    keys = block.index[3].stop - block.index[3].start
    sums = weights.new_zeros(*weights.shape[:2], keys, rows.shape[3])
    at = (block.cells.columns - block.index[3].start).flatten()
    return sums.index_add(2, at, (weights[..., None] * rows[..., None, :]).flatten(2, 3))
