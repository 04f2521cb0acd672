"""Where a row looks, counted from its query's own position."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from regard.ops.measures.base import Block, Measure, Shape


@dataclass(frozen=True, eq=False)
class MeanDistance(Measure):
    """How far a row looks: Tᵢ = Σⱼ Pᵢⱼ |pᵢ − j| with pᵢ the query's position, in keys, (batch, heads, queries)."""

    def of(self, block: Block) -> Float[Tensor, "batch heads rows"]:
        weights, dtype = block.weights, block.weights.dtype
        key, position = block.key.to(dtype), block.position.to(dtype)
        if block.cells.columns is not None:
            return torch.linalg.vecdot(weights, (key - position).abs())
        # Beyond the rows' own positions a distance is one to the nearest of these and one from there: no matrix of
        # distances, and sums of what is positive.
        (low, high), (start, stop) = block.cells.ends, block.cells.keys
        first, last = (min(max(end, start), stop) - start for end in (low, high + 1))
        found = torch.linalg.vecdot(weights[..., first:last], (key[first:last] - position).abs())
        for keys, nearest in ((slice(first), low), (slice(last, None), high)):
            part = weights[..., keys]
            if part.shape[-1]:
                near = torch.linalg.vecdot(part, (key[keys] - nearest).abs())  # adds in pairs, as a product does not
                found = found + near + (position[:, 0] - nearest).abs() * part.sum(-1)
        return found


@dataclass(frozen=True, eq=False)
class Diagonal(Measure):
    """The weight on the key at a fixed distance: Pᵢⱼ with j = position + d, (batch, heads, queries); 0 where none is.

    Args:
        d: The distance from the query's position: 0 is the query itself, −1 the token before it.
    """

    d: int

    def of(self, block: Block) -> Float[Tensor, "batch heads rows"]:
        if block.cells.columns is not None:
            return (block.weights * (block.key == block.position + self.d)).sum(-1)
        return on_keys(block, block.position + self.d)[..., 0]

    def objections(self, shape: Shape, device: torch.device) -> list[str]:
        if isinstance(self.d, int) and not isinstance(self.d, bool) and abs(self.d) < 2**62:
            return []
        return [f"diagonal: d must be a number of keys (int), got {self.d!r}"]


@dataclass(frozen=True, eq=False)
class DistanceHistogram(Measure):
    """The weight at each distance, clipped: (batch, heads, queries, 2k + 1).

    Entry k + d holds Σⱼ Pᵢⱼ over the keys with clip(j − position, −k, k) = d. Times a table of 2k + 1 vectors it is
    what relative positions add to the output.

    Args:
        k: The largest distance that is told apart, at least 0.

    Memory: O(queries · k).

    Reference: Shaw, Uszkoreit, Vaswani 2018, "Self-Attention with Relative Position Representations", equations 3
    and 4.
    """

    k: int

    def of(self, block: Block) -> Float[Tensor, "batch heads rows distances"]:
        weights, key, k = block.weights, block.key, self.k
        if block.cells.columns is not None:
            at = ((key - block.position).clamp(-k, k) + k).expand_as(weights)
            return weights.new_zeros(*weights.shape[:3], 2 * k + 1).scatter_add(-1, at, weights)
        if not k:
            return weights.sum(-1, keepdim=True)
        between = block.position + torch.arange(1 - k, k, device=key.device)  # the keys at distances that hold one each
        ends = [self._beyond(block, side) for side in (-1, 1)]
        return torch.cat((ends[0], on_keys(block, between), ends[1]), -1)

    def _beyond(self, block: Block, side: int) -> Tensor:
        """What lies at distance k or more to one side, (batch, heads, rows, 1)."""
        weights, key = block.weights, block.key
        low, high = block.cells.ends
        start, width = block.index[3].start, weights.shape[-1]
        # The keys that lie there for some rows only, and those that do for all.
        first, last = sorted(min(max(end + side * self.k - start, 0), width) for end in (low, high + 1))
        some = torch.where((key[first:last] - block.position) * side >= self.k, weights[..., first:last], 0.0)
        every = weights[..., :first] if side < 0 else weights[..., last:]
        return some.sum(-1, keepdim=True) + every.sum(-1, keepdim=True)

    def parts(self, shape: Shape, dtype: torch.dtype) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
        return (((*self.whole(shape), 2 * self.k + 1), dtype),)

    def objections(self, shape: Shape, device: torch.device) -> list[str]:
        if isinstance(self.k, int) and not isinstance(self.k, bool) and self.k >= 0:
            return []
        return [f"distance_histogram: k must be a number of keys, at least 0; got {self.k!r}"]


def on_keys(block: Block, keys: Tensor) -> Tensor:
    """The weights on keys chosen for each row, (rows, count): (batch, heads, rows, count), 0 where there is none."""
    at = keys - block.index[3].start
    inside = (at >= 0) & (at < block.weights.shape[-1])
    found = block.weights.gather(-1, at.where(inside, 0).expand(*block.weights.shape[:3], -1))
    return torch.where(inside, found, 0.0)
