"""The attention that each key receives: sums of columns."""

from __future__ import annotations

from copy import copy

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from regard.checks import Checks
from regard.ops.measures.base import Block, Measure, Spec
from regard.ops.steps import Place, Step, with_four_axes
from regard.ops.tile import Shape, index_rows


class Received(Measure):
    """Attention that each key receives: r_j = Σ_i w_i P_ij, (batch, heads, keys).

    Args:
        row_weights: w_i, broadcastable to (batch, heads, queries). Default: 1 for each row. Give padding queries 0,
            unless the matrix knows them (`WeightMatrix.valid_queries`).
    """

    row_weights: Shaped[Tensor, "..."] | None = None
    axis = "keys"
    needs_all_keys = False

    def compute(self, block: Block) -> Float[Tensor, "batch heads keys"]:
        if self.row_weights is not None:
            return transposed_product(block.slice_rows(self.row_weights)[..., None], block)[..., 0]
        if block.tile.row_keys is not None:
            return transposed_product(block.weights.new_ones(1, 1, 1, 1), block)[..., 0]
        return (block.weights.new_ones(1, block.weights.shape[2]) @ block.weights)[..., 0, :]

    def steps(self, place: Place) -> list[Step]:
        """The weight of each row, (batch or 1, heads or 1, queries or 1, 1); None for 1."""
        weights = self.row_weights
        if weights is None:
            return [Step("received", tensors=lambda: (None,))]
        return [Step("received", tensors=lambda: (with_four_axes(weights.to(place.dtype)[..., None]),))]

    def for_valid_queries(self, valid: Bool[Tensor, "batch queries"]) -> Received:
        measure, valid = copy(self), valid[:, None]
        measure.row_weights = valid if self.row_weights is None else self.row_weights * valid
        return measure

    def check(self, checks: Checks, shape: Shape, head_dim: int, device: torch.device) -> None:
        if self.row_weights is not None and checks.tensor("Received.row_weights", self.row_weights, device=device):
            checks.broadcastable("Received.row_weights", self.row_weights, "(batch, heads, queries)", shape[:3])


class TransposedProduct(Measure, name="_transposed_product"):
    """Pᵀ Y, (batch, heads, keys, columns); see `WeightMatrix.mT`.

    Args:
        rows: Y, (batch or 1, heads or 1, queries, columns).
    """

    rows: Float[Tensor, "#batch #heads queries columns"]
    axis = "keys"
    needs_all_keys = False

    def compute(self, block: Block) -> Float[Tensor, "batch heads keys columns"]:
        return transposed_product(index_rows(self.rows, block.index[:3]), block)

    def steps(self, place: Place) -> list[Step]:
        """Y, in its own dtype."""
        return [Step("transposed", tensors=lambda: (self.rows,))]

    def result_specs(self, shape: Shape, dtype: torch.dtype) -> tuple[Spec, ...]:
        return (((*self.result_shape(shape), self.rows.shape[3]), dtype),)


def transposed_product(rows: Tensor, block: Block) -> Tensor:
    """Pᵀ Y of a block: (batch, heads, keys, columns), from (1 or batch, 1 or heads, 1 or rows, columns)."""
    weights = block.weights
    rows = rows.to(weights.dtype).expand(*weights.shape[:3], -1)
    if block.tile.row_keys is None:
        return (rows.mT @ weights).mT  # in this order the weights are read along their rows
    keys = block.index[3].stop - block.index[3].start
    sums = weights.new_zeros(*weights.shape[:2], keys, rows.shape[3])
    at = (block.tile.row_keys - block.index[3].start).flatten()
    return sums.index_add(2, at, (weights[..., None] * rows[..., None, :]).flatten(2, 3))
