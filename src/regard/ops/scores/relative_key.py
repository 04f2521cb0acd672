"""Relative positions on the keys: a vector for each distance, which the query is compared with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from regard.ops.scores.base import Score, Shape, tensor_objections
from regard.ops.tile import Tile


@dataclass(frozen=True, eq=False)
class RelativeKey(Score):
    """What relative positions add to the scores: rᵢⱼ = qᵢ · a[clip(j − position, −k, k)] · scale.

    Args:
        table: a, (2k + 1, head_dim), or (heads, 2k + 1, head_dim) for one a head; row k + d is for distance d.

    The vectors b that the same paper adds to the values come in with the output: Σⱼ Pᵢⱼ b[clip(j − position, −k, k)]
    is the measure `DistanceHistogram(k)` times b, in the same pass.

    Memory: O(keys) for each row of a block: no vector is made for a cell.

    Reference: Shaw, Uszkoreit, Vaswani 2018, "Self-Attention with Relative Position Representations", equations 3
    to 5.

    Example:
        >>> import regard, torch
        >>> query, key, value = torch.randn(3, 1, 2, 5, 4).unbind()
        >>> of_keys, of_values = torch.randn(2, 7, 4)  # k = 3
        >>> score = regard.ScaledDotProduct() + regard.RelativeKey(of_keys)
        >>> att = regard.attend(query, key, value, score=score, measure=regard.DistanceHistogram(3))
        >>> (att.output + att.measured["distance_histogram"] @ of_values).shape
        torch.Size([1, 2, 5, 4])
    """

    table: Float[Tensor, "*heads distances head_dim"]

    def __call__(
        self,
        query: Float[Tensor, "batch heads rows head_dim"],
        key: Float[Tensor, " batch #heads *rows keys head_dim"],
        scale: float,
        cells: Tile,
    ) -> Float[Tensor, "batch heads rows keys"]:
        table = self.table[cells.heads] if self.table.ndim == 3 else self.table
        of_distance = (query * scale) @ table.to(query.dtype).mT  # (batch, heads, rows, 2k + 1)
        reach = self.table.shape[-2] // 2
        start, stop = cells.keys
        if cells.columns is not None:
            return _pick(of_distance, cells.key - cells.position, reach)
        low, high = cells.ends
        before = min(max(low - reach, start), stop)  # up to here all keys of all rows lie beyond the first distance
        after = min(max(high + reach + 1, before), stop)
        near = _pick(of_distance, torch.arange(before, after, device=cells.device) - cells.position, reach)
        lead = tuple(of_distance.shape[:3])
        ends = of_distance[..., :1].expand(*lead, before - start), of_distance[..., -1:].expand(*lead, stop - after)
        return torch.cat((ends[0], near, ends[1]), -1)

    @property
    def plain(self) -> bool:
        return True

    def objections(self, shape: Shape, head_dim: int, device: torch.device) -> list[str]:
        distances = self.table.shape[-2] if isinstance(self.table, Tensor) and self.table.ndim > 1 else 0
        if isinstance(self.table, Tensor) and not distances % 2:
            return [
                f"score: the table of Relative must have an odd number of distances, from −k to k; it has {distances}"
            ]
        shapes = {
            "(2k + 1, head_dim)": (distances, head_dim),
            "(heads, 2k + 1, head_dim)": (shape[1], distances, head_dim),
        }
        return tensor_objections("the table of Relative", self.table, shapes, device)


def _pick(of_distance: Tensor, distance: Tensor, reach: int) -> Tensor:
    at = distance.clamp(-reach, reach) + reach
    return of_distance.gather(-1, at.expand(*of_distance.shape[:3], -1))
