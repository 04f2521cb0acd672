"""Scores that modify another score: soft-capping and attention sinks."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from regard.checks import Checks
from regard.ops.scores.base import Key, Query, Score, Scores, check_inner
from regard.ops.steps import Place, Step
from regard.ops.tile import Shape, Tile


class ScoreModifier(Score, abstract=True):
    """Base of scores that modify another one, whose scale, sinks and checks they take over."""

    score: Score

    def __post_init__(self) -> None:
        check_inner(self, self.score)

    def default_scale(self, head_dim: int) -> float | None:
        return self.score.default_scale(head_dim)

    def check(self, checks: Checks, shape: Shape, head_dim: int, device: torch.device) -> None:
        self.score.check(checks, shape, head_dim, device)

    @property
    def sinks(self) -> Float[Tensor, " heads"] | None:
        return self.score.sinks

    def workspace_per_cell(self, head_dim: int) -> int:
        return self.score.workspace_per_cell(head_dim)


class SoftCap(ScoreModifier):
    """Soft-capped scores, within ±cap: s_ij = cap * tanh(s'_ij / cap), before the mask.

    Args:
        score: The score s'.
        cap: Finite and above 0.

    Raises:
        InvalidArgument: If cap is infinite or not above 0.
        InvalidType: If score is not a score, or cap not a number.

    Reference:
        Gemma Team 2024, "Gemma 2: Improving Open Language Models at a Practical Size", section 2.
    """

    cap: float

    def __post_init__(self) -> None:
        super().__post_init__()
        checks = Checks()
        checks.number("SoftCap.cap", self.cap, above=0)
        checks.raise_problems()

    def __call__(self, query: Query, key: Key, scale: float, tile: Tile) -> Scores:
        return (self.score(query, key, scale, tile) / self.cap).tanh() * self.cap

    def steps(self, place: Place) -> list[Step] | None:
        steps = self.score.steps(place)
        if steps is None or steps[0].kind != "dot_product":
            return None
        return [*steps, Step("soft_cap", (self.cap,))]

    @property
    def is_fresh_and_finite(self) -> bool:
        return self.score.is_fresh_and_finite


class Sinks(ScoreModifier):
    """Attention sinks: one extra logit z per head in the softmax, P_ij = exp(s_ij) / (exp(z) + Σ_k exp(s_ik)).

    The sink counts in `lse` and in the denominator of the weights, but has no column: rows sum to less than 1, and the
    entropy leaves it out.

    Args:
        score: The score s.
        logits: z, (heads,), finite.

    Reference:
        OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card", section 2.2; Xiao et al. 2024, "Efficient Streaming
        Language Models with Attention Sinks".
    """

    logits: Float[Tensor, " heads"]

    def __call__(self, query: Query, key: Key, scale: float, tile: Tile) -> Scores:
        return self.score(query, key, scale, tile)

    def steps(self, place: Place) -> list[Step] | None:
        """Those of the score within; kernels add `sinks` to the softmax."""
        return self.score.steps(place)

    @property
    def is_fresh_and_finite(self) -> bool:
        return self.score.is_fresh_and_finite

    @property
    def sinks(self) -> Float[Tensor, " heads"]:
        return self.logits

    def check(self, checks: Checks, shape: Shape, head_dim: int, device: torch.device) -> None:
        super().check(checks, shape, head_dim, device)
        if self.score.sinks is not None:
            checks.fail("Sinks.score: expected a score without sinks, got one that has them")
        checks.tensor("Sinks.logits", self.logits, "floating-point", shapes={"(heads,)": shape[1:2]}, device=device)
