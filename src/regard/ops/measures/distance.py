"""Where each row attends to, relative to its query's position."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from regard.checks import Checks
from regard.ops.measures.base import Block, Measure, Spec
from regard.ops.steps import Place, Step
from regard.ops.tile import Shape


class MeanDistance(Measure):
    """Mean attention distance in keys: T_i = Σ_j P_ij |p_i − j|, p_i the query's position, (batch, heads, queries)."""

    needs_all_keys = False

    def compute(self, block: Block) -> Float[Tensor, "batch heads rows"]:
        weights, dtype = block.weights, block.weights.dtype
        key, position = block.kv_idx.to(dtype), block.q_pos.to(dtype)
        if block.tile.row_keys is not None:
            return torch.linalg.vecdot(weights, (key - position).abs())
        # Keys beyond the positions of all rows: the distance to the nearest of these positions, and the rest from
        # there. So no matrix of distances is made, and all terms are positive.
        (low, high), (start, stop) = block.tile.position_range, block.tile.keys
        first, last = (min(max(end, start), stop) - start for end in (low, high + 1))
        total = torch.linalg.vecdot(weights[..., first:last], (key[first:last] - position).abs())
        for keys, edge in ((slice(first), low), (slice(last, None), high)):
            outside = weights[..., keys]
            if outside.shape[-1]:
                to_edge = torch.linalg.vecdot(outside, (key[keys] - edge).abs())  # sums pairwise, unlike a product
                total = total + to_edge + (position[:, 0] - edge).abs() * outside.sum(-1)
        return total

    def steps(self, place: Place) -> list[Step]:
        return [Step("mean_distance")]


class Diagonal(Measure):
    """The weight at a fixed distance: P_ij with j = p_i + offset, (batch, heads, queries); 0 if there is no such key.

    Args:
        offset: Distance from the query's position, as in `torch.diagonal`: 0 is the query's own key, −1 the one before.
    """

    offset: int
    needs_all_keys = False

    def __post_init__(self) -> None:
        with Checks() as checks:
            checks.integer("Diagonal.offset", self.offset, low=1 - 2**62, below=2**62)

    def compute(self, block: Block) -> Float[Tensor, "batch heads rows"]:
        if block.tile.row_keys is not None:
            return torch.where(block.kv_idx == block.q_pos + self.offset, block.weights, 0.0).sum(-1)
        return gather_keys(block, block.q_pos + self.offset)[..., 0]

    def steps(self, place: Place) -> list[Step]:
        return [Step("diagonal", (self.offset,))]


class DistanceHistogram(Measure):
    """The weight at each distance, clipped: (batch, heads, queries, 2 * max_distance + 1).

    Entry max_distance + d holds Σ_j P_ij over the keys with clip(j − p_i, −max_distance, max_distance) = d. Times a
    table of as many vectors it is what relative positions add to the output.

    Args:
        max_distance: Largest distance with a bin of its own, at least 0.

    Memory:
        O(queries * max_distance).

    Reference:
        Shaw, Uszkoreit, Vaswani 2018, "Self-Attention with Relative Position Representations", equations 3 and 4.
    """

    max_distance: int
    needs_all_keys = False

    def __post_init__(self) -> None:
        with Checks() as checks:
            checks.integer("DistanceHistogram.max_distance", self.max_distance, low=0)

    def compute(self, block: Block) -> Float[Tensor, "batch heads rows distances"]:
        weights, key, reach = block.weights, block.kv_idx, self.max_distance
        if block.tile.row_keys is not None:
            bins = ((key - block.q_pos).clamp(-reach, reach) + reach).expand_as(weights)
            return weights.new_zeros(*weights.shape[:3], 2 * reach + 1).scatter_add(-1, bins, weights)
        if not reach:
            return weights.sum(-1, keepdim=True)
        single = block.q_pos + torch.arange(1 - reach, reach, device=key.device)  # keys with a bin of their own
        before, after = (self._beyond(block, side) for side in (-1, 1))
        return torch.cat((before, gather_keys(block, single), after), -1)

    def steps(self, place: Place) -> list[Step]:
        return [Step("histogram", (self.max_distance,))]

    def _beyond(self, block: Block, side: int) -> Tensor:
        """The weight at distance max_distance or more to one side, (batch, heads, rows, 1)."""
        weights, key = block.weights, block.kv_idx
        low, high = block.tile.position_range
        start, width = block.index[3].start, weights.shape[-1]
        # Keys that are that far from some rows only, and those that are from all.
        first, last = sorted(min(max(end + side * self.max_distance - start, 0), width) for end in (low, high + 1))
        is_far = (key[first:last] - block.q_pos) * side >= self.max_distance
        from_some = torch.where(is_far, weights[..., first:last], 0.0)
        from_all = weights[..., :first] if side < 0 else weights[..., last:]
        return from_some.sum(-1, keepdim=True) + from_all.sum(-1, keepdim=True)

    def result_specs(self, shape: Shape, dtype: torch.dtype) -> tuple[Spec, ...]:
        return (((*self.result_shape(shape), 2 * self.max_distance + 1), dtype),)


def gather_keys(block: Block, keys: Tensor) -> Tensor:
    """The weights of keys chosen per row, (rows, count): (batch, heads, rows, count), 0 where there is no such key."""
    at = keys - block.index[3].start
    inside = (at >= 0) & (at < block.weights.shape[-1])
    gathered = block.weights.gather(-1, at.where(inside, 0).expand(*block.weights.shape[:3], -1))
    return torch.where(inside, gathered, 0.0)
