"""Relative positions: a vector per distance, compared with the query or with the key."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from regard.checks import Checks
from regard.ops.scores.base import Key, Query, Score, Scores
from regard.ops.steps import Place, Step, with_four_axes
from regard.ops.tile import Shape, Tile


class RelativeScore(Score, abstract=True):
    """Base of scores with a table of vectors: row k + d is for distance d, and those beyond ± k are clipped."""

    table: Float[Tensor, "*batch_heads distances head_dim"]
    is_bias = True

    @property
    def reach(self) -> int:
        """The distance k beyond which all have the same vector."""
        return self.table.shape[-2] // 2

    def table_of(self, tile: Tile) -> Float[Tensor, "*batch_heads distances head_dim"]:
        """The table of the batch entries and heads of a tile."""
        table = self.table if self.table.ndim < 4 else self.table[tile.batch]
        return table[..., tile.heads, :, :] if table.ndim > 2 else table

    def step(self, kind: str, place: Place) -> Step:
        """The step of a kind, with the distances that occur."""
        farthest = max(abs(place.last_position), abs(place.shape[3] - 1 - place.offset))
        reach = min(self.reach, farthest)
        occurring = slice(self.reach - reach, self.reach + reach + 1)
        return Step(kind, (reach,), lambda: (with_four_axes(self.table[..., occurring, :].to(place.dtype)),))

    def check(self, checks: Checks, shape: Shape, head_dim: int, device: torch.device) -> None:
        distances = self.table.shape[-2] if isinstance(self.table, Tensor) and self.table.ndim > 1 else 0  # pyright: ignore[reportUnnecessaryIsInstance]
        shapes = {
            "(2k + 1, head_dim)": (distances, head_dim),
            "(heads, 2k + 1, head_dim)": (shape[1], distances, head_dim),
            "(batch, heads, 2k + 1, head_dim)": (*shape[:2], distances, head_dim),
        }
        name = f"{type(self).__name__}.table"
        if checks.tensor(name, self.table, "floating-point", shapes=shapes, device=device):
            checks.that(
                distances % 2 == 1, f"{name}: expected an odd number of distances, from −k to k, got {distances}"
            )


class RelativeKey(RelativeScore):
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

    def __call__(self, query: Query, key: Key, scale: float, tile: Tile) -> Scores:
        by_distance = (query * scale) @ self.table_of(tile).to(query.dtype).mT  # (batch, heads, rows, 2k + 1)
        if tile.row_keys is not None:
            return _gather(by_distance, tile.kv_idx - tile.q_pos, self.reach)
        first, last = tile.position_range
        near = tile.clip(first - self.reach, last + self.reach + 1)  # outside, all keys of all rows have −k or k
        before, after = near.start - tile.keys.start, tile.keys.stop - near.stop
        middle = _gather(by_distance, torch.arange(*near, device=tile.device) - tile.q_pos, self.reach)
        lead = tuple(by_distance.shape[:3])
        return torch.cat(
            (by_distance[..., :1].expand(*lead, before), middle, by_distance[..., -1:].expand(*lead, after)), -1
        )

    @property
    def is_fresh_and_finite(self) -> bool:
        return True

    def steps(self, place: Place) -> list[Step]:
        return [self.step("add_relative_key", place)]


class RelativeQuery(RelativeScore):
    """Relative positions on the queries: r_ij = scale * a[clip(j − p_i, −k, k)] · k_j, p_i the position of query i.

    With `RelativeKey` it is disentangled attention: ``ScaledDotProduct() + RelativeKey(b) + RelativeQuery(a)`` adds
    content-to-position and position-to-content scores to those of the contents.

    Args:
        table: a, (2k + 1, head_dim), or (heads, 2k + 1, head_dim) for one per head, or (batch, heads, 2k + 1,
            head_dim); row k + d is for distance d.

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

    def __call__(self, query: Query, key: Key, scale: float, tile: Tile) -> Scores:
        table = self.table_of(tile).to(query.dtype) * scale
        distance = tile.kv_idx - tile.q_pos  # (rows, keys)
        if tile.row_keys is not None:
            return (key * table[..., distance.clamp(-self.reach, self.reach) + self.reach, :]).sum(-1)
        first, last = tile.position_range
        near = tile.clip(first - self.reach, last + self.reach + 1)  # outside, all keys of all rows have −k or k
        start, stop = near.start - tile.keys.start, near.stop - tile.keys.start
        by_distance = table @ key[:, :, start:stop].mT  # (batch, heads, 2k + 1, near keys)
        index = distance[:, start:stop].clamp(-self.reach, self.reach) + self.reach
        middle = by_distance.gather(2, index.expand(*by_distance.shape[:2], -1, -1))
        lead = middle.shape[:3]
        before = table[..., :1, :] @ key[:, :, :start].mT
        after = table[..., -1:, :] @ key[:, :, stop:].mT
        return torch.cat((before.expand(*lead, -1), middle, after.expand(*lead, -1)), -1)

    @property
    def is_fresh_and_finite(self) -> bool:
        return True

    def steps(self, place: Place) -> list[Step]:
        return [self.step("add_relative_query", place)]


def _gather(by_distance: Tensor, distance: Tensor, reach: int) -> Tensor:
    index = distance.clamp(-reach, reach) + reach
    return by_distance.gather(-1, index.expand(*by_distance.shape[:3], -1))
