"""Biases: scores that follow from where a cell stands, to be added to those that follow from query and key."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import InvalidArgument, count_problems, raise_problems
from regard.ops.scores.base import Score, Shape, tensor_objections
from regard.ops.tile import Tile

FARTHEST = 2**20
"""The largest `max_distance` of `T5RelativeBias`, which make a table of all distances up to it."""


@dataclass(frozen=True, eq=False)
class Bias(Score):
    """A tensor that is added to the scores, bᵢⱼ; it is part of what is learned where it wants a gradient.

    By itself it knows neither query nor key: add it to a rule that does, ``ScaledDotProduct() + Bias(tensor)``.

    Args:
        tensor: Broadcastable to (batch, heads, queries, keys); −∞ forbids a cell.

    Example:
        >>> import regard, torch
        >>> query, key = torch.randn(2, 1, 2, 5, 4).unbind()
        >>> bias = torch.randn(2, 5, 5)
        >>> W = regard.weights(query, key, score=regard.ScaledDotProduct() + regard.Bias(bias))
        >>> torch.allclose(W.scores.dense(), query @ key.mT / 2 + bias, atol=1e-6)
        True
    """

    tensor: Float[Tensor, "..."]

    def __call__(
        self,
        query: Float[Tensor, "batch heads rows head_dim"],
        key: Float[Tensor, " batch #heads *rows keys head_dim"],
        scale: float,
        cells: Tile,
    ) -> Float[Tensor, "#batch #heads #rows #keys"]:
        return cells.part_of(self.tensor).to(query.dtype)

    def objections(self, shape: Shape, head_dim: int, device: torch.device) -> list[str]:
        given = self.tensor
        if not isinstance(given, Tensor) or not given.is_floating_point():
            came = given.dtype if isinstance(given, Tensor) else type(given).__name__
            return [f"score: Bias holds a floating-point tensor, not {came}"]
        found = []
        sizes = zip(tuple(given.shape)[::-1], shape[::-1], strict=False)
        if given.ndim > 4 or not all(mine in (1, size) for mine, size in sizes):
            found.append(
                f"score: Bias {tuple(given.shape)} does not broadcast to (batch, heads, queries, keys) = {shape}"
            )
        if given.device != device:
            found.append(f"score: Bias lies on {given.device}, the query on {device}; move it with .to()")
        return found


@dataclass(frozen=True, eq=False)
class Alibi(Score):
    """Attention with linear biases: bᵢⱼ = −slope · |position − j|.

    By itself it knows neither query nor key: add it to a rule that does, ``ScaledDotProduct() + Alibi(slopes)``.

    Args:
        slopes: One for each head, (heads,); `Alibi.for_heads` makes those of the paper.

    Reference: Press, Smith, Lewis 2022, "Train Short, Test Long: Attention with Linear Biases Enables Input Length
    Extrapolation", section 3.

    Example:
        >>> import regard, torch
        >>> x = torch.zeros(1, 2, 3, 4)
        >>> regard.weights(x, x, score=regard.ScaledDotProduct() + regard.Alibi.for_heads(2)).scores[0, :, 2]
        tensor([[-0.1250, -0.0625,  0.0000],
                [-0.0078, -0.0039,  0.0000]])
    """

    slopes: Float[Tensor, " heads"]

    @classmethod
    def for_heads(cls, count: int) -> Alibi:
        """The paper's slopes: 2^(−8/n), 2^(−16/n), ... for n heads.

        Where n is no power of two, those of the next lower power, and then every other one of twice as many.
        """
        raise_problems(count_problems(count=count))
        power = 2 ** int(math.log2(count))
        steps = [(i + 1) / power for i in range(power)] + [(2 * i + 1) / (2 * power) for i in range(count - power)]
        return cls(torch.tensor([2.0 ** (-8 * step) for step in steps]))

    def __call__(
        self,
        query: Float[Tensor, "batch heads rows head_dim"],
        key: Float[Tensor, " batch #heads *rows keys head_dim"],
        scale: float,
        cells: Tile,
    ) -> Float[Tensor, "1 heads rows keys"]:
        slopes = self.slopes[cells.heads].to(query.dtype)[:, None, None]
        return (cells.key - cells.position).abs().to(query.dtype) * -slopes[None]

    @property
    def plain(self) -> bool:
        return True

    def objections(self, shape: Shape, head_dim: int, device: torch.device) -> list[str]:
        return tensor_objections("the slopes of Alibi", self.slopes, {"(heads,)": shape[1:2]}, device)


@dataclass(frozen=True, eq=False)
class T5RelativeBias(Score):
    """T5's relative bias: bᵢⱼ = table[bucket(j − position)], one number for each head and bucket of distances.

    Half of a direction's buckets hold one distance each, from 0; the others grow logarithmically up to max_distance,
    and the last holds all beyond it. By itself it knows neither query nor key: ``ScaledDotProduct() + T5RelativeBias(table)``.

    Args:
        table: (buckets, heads).
        bidirectional: Half of the buckets are for keys after the query; if False, these all share the bucket of
            distance 0.
        max_distance: Where the last bucket begins, at most 2²⁰.

    Raises:
        InvalidArgument: If max_distance leaves no distance for the logarithmic buckets, or is too large.

    Reference: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
    section 2.1.
    """

    table: Float[Tensor, "buckets heads"]
    bidirectional: bool = True
    max_distance: int = 128

    def __post_init__(self) -> None:
        exact = self._exact
        if type(self.max_distance) is not int or exact < 1 or not exact < self.max_distance <= FARTHEST:
            raise InvalidArgument(
                f"T5RelativeBias: with {len(self.table)} buckets, max_distance must be above {exact}, at most {FARTHEST}, and "
                f"there must be at least {4 if self.bidirectional else 2} buckets; got max_distance "
                f"{self.max_distance!r}"
            )

    def __call__(
        self,
        query: Float[Tensor, "batch heads rows head_dim"],
        key: Float[Tensor, " batch #heads *rows keys head_dim"],
        scale: float,
        cells: Tile,
    ) -> Float[Tensor, "1 heads rows keys"]:
        reach = self.max_distance  # all beyond it share its bucket: one logarithm a distance, none a cell
        of_distance = self.bucket(torch.arange(-reach, reach + 1, device=cells.device))
        table = self.table[of_distance][:, cells.heads].mT.to(query.dtype)  # (heads, distances)
        return table[None, :, (cells.key - cells.position).clamp(-reach, reach) + reach]

    def bucket(self, distance: Int[Tensor, "*axes"]) -> Int[Tensor, "*axes"]:
        """The bucket of each distance j − position."""
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

    def objections(self, shape: Shape, head_dim: int, device: torch.device) -> list[str]:
        return tensor_objections(
            "the table of T5RelativeBias", self.table, {"(buckets, heads)": (len(self.table), shape[1])}, device
        )

    @property
    def _exact(self) -> int:
        """How many distances of a direction have a bucket of their own."""
        return len(self.table) // (4 if self.bidirectional else 2)
