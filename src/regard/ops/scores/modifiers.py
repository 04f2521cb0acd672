"""Rules that change what another rule gives: the soft cap, attention sinks, and the choice of heads."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import InvalidArgument, InvalidType
from regard.ops.scores.base import Score, Shape, tensor_objections
from regard.ops.tile import Tile


@dataclass(frozen=True, eq=False)
class _Around(Score):
    score: Score

    def __post_init__(self) -> None:
        if not isinstance(self.score, Score):
            raise InvalidType(
                f"{type(self).__name__}: score must be a rule such as regard.ScaledDotProduct(), but is "
                f"{type(self.score).__name__}"
            )

    def default_scale(self, head_dim: int) -> float | None:
        return self.score.default_scale(head_dim)

    def objections(self, shape: Shape, head_dim: int, device: torch.device) -> list[str]:
        return self.score.objections(shape, head_dim, device)

    @property
    def sinks(self) -> Float[Tensor, " heads"] | None:
        return self.score.sinks

    @property
    def plain(self) -> bool:
        return self.score.plain

    def floats_per_cell(self, head_dim: int) -> int:
        return self.score.floats_per_cell(head_dim)


@dataclass(frozen=True, eq=False)
class SoftCap(_Around):
    """Scores that stay within ±cap: sᵢⱼ = cap · tanh(s'ᵢⱼ / cap), before biases and mask.

    Args:
        score: The rule that gives s', scaled.
        cap: Above 0, and finite.

    Raises:
        InvalidArgument: If the cap is neither.
        InvalidType: If the score is no rule.

    Reference: Gemma Team 2024, "Gemma 2: Improving Open Language Models at a Practical Size", section 2.
    """

    cap: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.cap, bool) or not isinstance(self.cap, (int, float)) or not 0 < self.cap < float("inf"):
            raise InvalidArgument(f"SoftCap: cap must be a number above 0, but is {self.cap!r}")

    def __call__(
        self,
        query: Float[Tensor, "batch heads rows head_dim"],
        key: Float[Tensor, " batch #heads *rows keys head_dim"],
        scale: float,
        cells: Tile,
    ) -> Float[Tensor, "#batch #heads #rows #keys"]:
        return (self.score(query, key, scale, cells) / self.cap).tanh() * self.cap


@dataclass(frozen=True, eq=False)
class Sinks(_Around):
    """An extra logit a head that takes part in the softmax and leads to no key: Pᵢⱼ = exp(sᵢⱼ) / (exp(z) + Σ exp(sᵢₖ)).

    The mass that it takes is part of `lse`, and of neither the weights nor their entropy.

    Args:
        score: The rule that gives s.
        logits: z, (heads,), finite.

    Reference: OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card", section 2.2; Xiao et al. 2024, "Efficient Streaming
    Language Models with Attention Sinks".
    """

    logits: Float[Tensor, " heads"]

    def __call__(
        self,
        query: Float[Tensor, "batch heads rows head_dim"],
        key: Float[Tensor, " batch #heads *rows keys head_dim"],
        scale: float,
        cells: Tile,
    ) -> Float[Tensor, "#batch #heads #rows #keys"]:
        return self.score(query, key, scale, cells)

    @property
    def sinks(self) -> Float[Tensor, " heads"]:
        return self.logits

    def objections(self, shape: Shape, head_dim: int, device: torch.device) -> list[str]:
        found = super().objections(shape, head_dim, device)
        if self.score.sinks is not None:
            found.append("score: Sinks around a rule that has sinks; give them once")
        return found + tensor_objections("the logits of Sinks", self.logits, {"(heads,)": shape[1:2]}, device)


@dataclass(frozen=True, eq=False)
class ScoreOfHeads(_Around):
    """A rule for some of the heads that it was made for.

    Args:
        score: The rule for all heads.
        heads: (heads,) integers: which of them these are.
        count: How many there are in all.
    """

    heads: Int[Tensor, " heads"]
    count: int

    def __call__(
        self,
        query: Float[Tensor, "batch heads rows head_dim"],
        key: Float[Tensor, " batch #heads *rows keys head_dim"],
        scale: float,
        cells: Tile,
    ) -> Float[Tensor, "#batch #heads #rows #keys"]:
        return self.score(query, key, scale, replace(cells, heads=self.heads[cells.heads]))

    @property
    def sinks(self) -> Float[Tensor, " heads"] | None:
        sinks = self.score.sinks
        return None if sinks is None else sinks[self.heads]

    def objections(self, shape: Shape, head_dim: int, device: torch.device) -> list[str]:
        batch, _, queries, keys = shape
        return super().objections((batch, self.count, queries, keys), head_dim, device)
