"""Relative positions on the keys: a vector per distance, compared with the query."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from regard.checks import Checks
from regard.ops.scores.base import Key, Query, Score, Scores
from regard.ops.steps import Place, Step, with_four_axes
from regard.ops.tile import Shape, Tile


class RelativeKey(Score):
    """Relative positions on the keys: r_ij = scale * q_i · a[clip(j − p_i, −k, k)], p_i the position of query i.

    Args:
        table: a, (2k + 1, head_dim), or (heads, 2k + 1, head_dim) for one per head, or (batch, heads, 2k + 1,
            head_dim); row k + d is for distance d.

    The paper's vectors b on the values are added to the output: Σ_j P_ij b[clip(j − p_i, −k, k)] is the measure
    `DistanceHistogram(k)` times b, computed in the same pass.

    Memory:
        O(keys) per row of a block; no vector is stored per cell.

    Reference:
        Shaw, Uszkoreit, Vaswani 2018, "Self-Attention with Relative Position Representations", equations 3 to 5;
        transformers calls it ``relative_key``.

    Examples:
        >>> import regard, torch
        >>> query, key, value = torch.randn(3, 1, 2, 5, 4).unbind()
        >>> on_keys, on_values = torch.randn(2, 7, 4)  # k = 3
        >>> score = regard.ScaledDotProduct() + regard.RelativeKey(on_keys)
        >>> att = regard.attend(query, key, value, score=score, measure=regard.DistanceHistogram(3))
        >>> (att.output + att.measured["distance_histogram"] @ on_values).shape
        torch.Size([1, 2, 5, 4])
    """

    table: Float[Tensor, "*heads distances head_dim"]
    is_bias = True

    def __call__(self, query: Query, key: Key, scale: float, tile: Tile) -> Scores:
        table = self.table if self.table.ndim < 4 else self.table[tile.batch]
        table = table[..., tile.heads, :, :] if table.ndim > 2 else table
        by_distance = (query * scale) @ table.to(query.dtype).mT  # (batch, heads, rows, 2k + 1)
        reach = self.table.shape[-2] // 2
        if tile.row_keys is not None:
            return _gather(by_distance, tile.kv_idx - tile.q_pos, reach)
        first, last = tile.position_range
        near = tile.clip(first - reach, last + reach + 1)  # outside, all keys of all rows have distance −k or k
        before, after = near.start - tile.keys.start, tile.keys.stop - near.stop
        middle = _gather(by_distance, torch.arange(*near, device=tile.device) - tile.q_pos, reach)
        lead = tuple(by_distance.shape[:3])
        return torch.cat(
            (by_distance[..., :1].expand(*lead, before), middle, by_distance[..., -1:].expand(*lead, after)), -1
        )

    def steps(self, place: Place) -> list[Step] | None:
        if self.table.ndim == 4:
            return None
        reach = self.table.shape[-2] // 2
        return [Step("add_relative", (reach,), lambda: (with_four_axes(self.table.to(place.dtype)),))]

    @property
    def is_fresh_and_finite(self) -> bool:
        return True

    def check(self, checks: Checks, shape: Shape, head_dim: int, device: torch.device) -> None:
        distances = self.table.shape[-2] if isinstance(self.table, Tensor) and self.table.ndim > 1 else 0  # pyright: ignore[reportUnnecessaryIsInstance]
        shapes = {
            "(2k + 1, head_dim)": (distances, head_dim),
            "(heads, 2k + 1, head_dim)": (shape[1], distances, head_dim),
            "(batch, heads, 2k + 1, head_dim)": (*shape[:2], distances, head_dim),
        }
        if checks.tensor("RelativeKey.table", self.table, "floating-point", shapes=shapes, device=device):
            checks.that(
                distances % 2 == 1,
                f"RelativeKey.table: expected an odd number of distances, from −k to k, got {distances}",
            )


def _gather(by_distance: Tensor, distance: Tensor, reach: int) -> Tensor:
    index = distance.clamp(-reach, reach) + reach
    return by_distance.gather(-1, index.expand(*by_distance.shape[:3], -1))
