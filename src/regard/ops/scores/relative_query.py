"""Relative positions on the queries: a vector per distance, compared with the key."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from regard.checks import Checks
from regard.ops.scores.base import Key, Query, Score, Scores
from regard.ops.tile import Shape, Tile


class RelativeQuery(Score):
    """Relative positions on the queries: r_ij = scale * a[clip(j − p_i, −k, k)] · k_j, p_i the position of query i.

    With `RelativeKey` it is disentangled attention: ``ScaledDotProduct() + RelativeKey(b) + RelativeQuery(a)`` adds
    content-to-position and position-to-content scores to those of the contents.

    Args:
        table: a, (2k + 1, head_dim), or (heads, 2k + 1, head_dim) for one per head; row k + d is for distance d.

    Memory:
        O(k * (k + rows)) per block; no vector is stored per cell.

    Reference:
        He, Liu, Gao, Chen 2021, "DeBERTa: Decoding-enhanced BERT with Disentangled Attention", equation 4.

    Examples:
        >>> import regard, torch
        >>> query, key = torch.randn(2, 1, 2, 5, 4).unbind()
        >>> on_keys, on_queries = torch.randn(2, 7, 4)  # k = 3
        >>> score = regard.ScaledDotProduct() + regard.RelativeKey(on_keys) + regard.RelativeQuery(on_queries)
        >>> regard.weights(query, key, score=score, scale=12**-0.5).shape
        torch.Size([1, 2, 5, 5])
    """

    table: Float[Tensor, "*heads distances head_dim"]
    is_bias = True

    def __call__(self, query: Query, key: Key, scale: float, tile: Tile) -> Scores:
        table = (self.table[tile.heads] if self.table.ndim == 3 else self.table[None]).to(query.dtype) * scale
        reach = self.table.shape[-2] // 2
        distance = tile.kv_idx - tile.q_pos  # (rows, keys)
        if tile.row_keys is not None:
            return (key * table[:, distance.clamp(-reach, reach) + reach]).sum(-1)
        first, last = tile.position_range
        near = tile.clip(first - reach, last + reach + 1)  # outside, all keys of all rows have distance −k or k
        start, stop = near.start - tile.keys.start, near.stop - tile.keys.start
        by_distance = table @ key[:, :, start:stop].mT  # (batch, heads, 2k + 1, near keys)
        index = distance[:, start:stop].clamp(-reach, reach) + reach
        middle = by_distance.gather(2, index.expand(*by_distance.shape[:2], -1, -1))
        lead = middle.shape[:3]
        before = table[:, :1] @ key[:, :, :start].mT
        after = table[:, -1:] @ key[:, :, stop:].mT
        return torch.cat((before.expand(*lead, -1), middle, after.expand(*lead, -1)), -1)

    @property
    def is_fresh_and_finite(self) -> bool:
        return True

    def check(self, checks: Checks, shape: Shape, head_dim: int, device: torch.device) -> None:
        distances = self.table.shape[-2] if isinstance(self.table, Tensor) and self.table.ndim > 1 else 0  # pyright: ignore[reportUnnecessaryIsInstance]
        shapes = {
            "(2k + 1, head_dim)": (distances, head_dim),
            "(heads, 2k + 1, head_dim)": (shape[1], distances, head_dim),
        }
        if checks.tensor("RelativeQuery.table", self.table, "floating-point", shapes=shapes, device=device):
            checks.that(
                distances % 2 == 1,
                f"RelativeQuery.table: expected an odd number of distances, from −k to k, got {distances}",
            )
