"""Biases: scores that depend on where query and key are, added to those that depend on their content."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.checks import Checks
from regard.ops.scores.base import Key, Query, Score, Scores
from regard.ops.steps import Place, Step, with_four_axes
from regard.ops.tile import Shape, Tile

MAX_DISTANCE = 2**20
"""Largest `max_distance` of `T5RelativeBias`, which computes a table of all distances up to it."""


class Bias(Score):
    """A tensor added to the scores, b_ij. It is learned if it requires grad.

    Alone it depends on neither query nor key: add it to a score that does, ``ScaledDotProduct() + Bias(tensor)``.

    Args:
        tensor: Broadcastable to (batch, heads, queries, keys). −∞ forbids a cell.

    Examples:
        >>> import regard, torch
        >>> query, key = torch.randn(2, 1, 2, 5, 4).unbind()
        >>> bias = torch.randn(2, 5, 5)
        >>> W = regard.weights(query, key, score=regard.ScaledDotProduct() + regard.Bias(bias))
        >>> torch.allclose(W.scores.dense(), query @ key.mT / 2 + bias, atol=1e-6)
        True
    """

    tensor: Float[Tensor, "..."]
    is_bias = True

    def __post_init__(self) -> None:
        with Checks() as checks:
            checks.tensor("Bias.tensor", self.tensor, "floating-point")

    def __call__(self, query: Query, key: Key, scale: float, tile: Tile) -> Scores:
        return tile.slice(self.tensor).to(query.dtype)

    def steps(self, place: Place) -> list[Step]:
        return [Step("add_bias", tensors=lambda: (with_four_axes(self.tensor.to(place.dtype)),))]

    def check(self, checks: Checks, shape: Shape, head_dim: int, device: torch.device) -> None:
        if checks.tensor("Bias.tensor", self.tensor, "floating-point", device=device):
            checks.broadcastable("Bias.tensor", self.tensor, "(batch, heads, queries, keys)", shape)


class Alibi(Score):
    """Attention with linear biases: b_ij = −slope * |p_i − j|, where p_i is the position of query i.

    Alone it depends on neither query nor key: add it to a score that does, ``ScaledDotProduct() + Alibi(slopes)``.

    Args:
        slopes: (heads,); `Alibi.for_heads` returns those of the paper.

    Reference:
        Press, Smith, Lewis 2022, "Train Short, Test Long: Attention with Linear Biases Enables Input Length
        Extrapolation", section 3.

    Examples:
        >>> import regard, torch
        >>> x = torch.zeros(1, 2, 3, 4)
        >>> regard.weights(x, x, score=regard.ScaledDotProduct() + regard.Alibi.for_heads(2)).scores[0, :, 2]
        tensor([[-0.1250, -0.0625,  0.0000],
                [-0.0078, -0.0039,  0.0000]])
    """

    slopes: Float[Tensor, " heads"]
    is_bias = True

    @classmethod
    def for_heads(cls, num_heads: int) -> Alibi:
        """With the paper's slopes: 2^(−8/n), 2^(−16/n), ... for n heads.

        If n is not a power of two: those of the next lower power, then every other one of twice as many.

        Raises:
            InvalidType: If num_heads is not an int.
            InvalidArgument: If it is below 1.
        """
        checks = Checks()
        checks.integer("num_heads", num_heads, low=1)
        checks.raise_problems()
        power = 2 ** int(math.log2(num_heads))
        steps = [(i + 1) / power for i in range(power)] + [(2 * i + 1) / (2 * power) for i in range(num_heads - power)]
        return cls(torch.tensor([2.0 ** (-8 * step) for step in steps]))

    def __call__(self, query: Query, key: Key, scale: float, tile: Tile) -> Scores:
        slopes = self.slopes[tile.heads].to(query.dtype)[:, None, None]
        return (tile.kv_idx - tile.q_pos).abs().to(query.dtype) * -slopes[None]

    def steps(self, place: Place) -> list[Step]:
        def tensors() -> tuple[Tensor]:
            bias = self.slopes.to(place.dtype)[:, None] * -place.distances.abs()
            return (bias[None, :, None],)

        return [Step("add_distances", (place.last_position,), tensors)]

    def check(self, checks: Checks, shape: Shape, head_dim: int, device: torch.device) -> None:
        checks.tensor("Alibi.slopes", self.slopes, "floating-point", shapes={"(heads,)": shape[1:2]}, device=device)

    @property
    def is_fresh_and_finite(self) -> bool:
        return True


class T5RelativeBias(Score):
    """T5's relative bias: b_ij = table[bucket(j − p_i)], one number per head and bucket of distances.

    Half of the buckets of a direction hold one distance each, from 0. The others grow logarithmically up to
    max_distance, and the last holds everything beyond it. Alone the bias depends on neither query nor key:
    ``ScaledDotProduct() + T5RelativeBias(table)``.

    Args:
        table: (buckets, heads).
        bidirectional: Whether half of the buckets are for keys after the query. False: those share the bucket of
            distance 0.
        max_distance: Distance up to which the logarithmic buckets are spread, at most 2**20.

    Raises:
        InvalidType: If max_distance is not an int.
        InvalidArgument: If it leaves no distance for the logarithmic buckets, or is too large.

    Reference:
        Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
        section 2.1.
    """

    table: Float[Tensor, "buckets heads"]
    bidirectional: bool = True
    max_distance: int = 128
    is_bias = True

    def __post_init__(self) -> None:
        checks = Checks()
        if checks.tensor("T5RelativeBias.table", self.table, "floating-point"):
            needed = 4 if self.bidirectional else 2
            if self._exact < 1:
                checks.fail(f"T5RelativeBias.table: expected at least {needed} buckets, got {len(self.table)}")
            low = self._exact + 1
            checks.integer("T5RelativeBias.max_distance", self.max_distance, low=low, below=MAX_DISTANCE + 1)
        checks.raise_problems()

    def __call__(self, query: Query, key: Key, scale: float, tile: Tile) -> Scores:
        reach = self.max_distance  # distances beyond it share its bucket: one logarithm per distance, none per cell
        bucket = self.bucket(torch.arange(-reach, reach + 1, device=tile.device))
        table = self.table[bucket][:, tile.heads].mT.to(query.dtype)  # (heads, distances)
        return table[None, :, (tile.kv_idx - tile.q_pos).clamp(-reach, reach) + reach]

    def steps(self, place: Place) -> list[Step]:
        def tensors() -> tuple[Tensor]:
            bias = self.table[self.bucket(place.distances)].mT.to(place.dtype)
            return (bias[None, :, None],)

        return [Step("add_distances", (place.last_position,), tensors)]

    def bucket(self, distance: Int[Tensor, "*axes"]) -> Int[Tensor, "*axes"]:
        """The bucket of each distance j − p_i."""
        count, exact = len(self.table), self._exact
        first = torch.zeros_like(distance)
        if self.bidirectional:
            count //= 2
            first = first.masked_fill(distance > 0, count)
            distance = distance.abs()
        else:
            distance = (-distance).clamp(min=0)
        far = torch.log(distance.clamp(min=1).float() / exact) / math.log(self.max_distance / exact) * (count - exact)
        return first + torch.where(distance < exact, distance, (exact + far.long()).clamp(max=count - 1))

    def check(self, checks: Checks, shape: Shape, head_dim: int, device: torch.device) -> None:
        shapes = {"(buckets, heads)": (len(self.table), shape[1])}
        checks.tensor("T5RelativeBias.table", self.table, "floating-point", shapes=shapes, device=device)

    @property
    def _exact(self) -> int:
        """Number of distances per direction that have a bucket of their own."""
        return len(self.table) // (4 if self.bidirectional else 2)
