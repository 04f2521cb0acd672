"""Scores: what softmax is applied to, from a query and a key, before the mask. Scores add up.

They apply in the order in which they are written: ``SoftCap(ScaledDotProduct(), 50.0) + Bias(tensor)`` scales, then
caps, then adds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from regard.checks import Checks
from regard.errors import InvalidType
from regard.ops.rules import Rule, resolve
from regard.ops.steps import Place, Step
from regard.ops.tile import Shape, Tile
from regard.ops.tree import subtrees

Query = Float[Tensor, "batch heads rows head_dim"]
Key = Float[Tensor, " batch #heads *rows keys head_dim"]
Scores = Float[Tensor, "#batch #heads #rows #keys"]

ScoreModFunction = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""(score, b, h, q_idx, kv_idx) -> score, FlexAttention's `score_mod`."""


class Score(Rule):
    """Base of all scores. A subclass defines `__call__`, and `default_scale` if that is not 1/√head_dim.

    A subclass that overrides `__call__` does not inherit `is_fresh_and_finite` and `steps`.
    """

    hints: ClassVar = {"__call__": ("is_fresh_and_finite", "steps")}

    def __call__(self, query: Query, key: Key, scale: float, tile: Tile) -> Scores:
        """The scores of a block.

        Args:
            query: (batch, heads, rows, head_dim).
            key: (batch, heads or 1, keys, head_dim); 1 where the heads of the block share a key head. On a sparse graph
                each row has its own keys: (batch, heads or 1, rows, keys, head_dim).
            scale: Factor of the raw scores.
            tile: The indices of the block.

        Returns:
            Broadcastable to (batch, heads, rows, keys). A score of −∞ forbids a cell, as a mask does.
        """
        raise NotImplementedError(f"{type(self).__name__} must define __call__(query, key, scale, tile)")

    def default_scale(self, head_dim: int) -> float | None:
        """The scale if the caller passes none. None: that of the rest of a sum, and 1/√head_dim if no part has one."""
        return None

    @property
    def sinks(self) -> Float[Tensor, " heads"] | None:
        """Attention sinks: a logit per head that takes part in the softmax and belongs to no key. None for none."""
        return None

    @property
    def is_fresh_and_finite(self) -> bool:
        """Whether every score is finite and in a new tensor, which may be overwritten."""
        return False

    def workspace_per_cell(self, head_dim: int) -> int:
        """How many numbers are held at once per cell of a block."""
        return 1

    def steps(self, place: Place) -> list[Step] | None:
        """The score as steps in order of application, for kernels in other languages; None if it has none.

        See `regard.ops.steps` for the kinds. A score that depends on the content starts with ``Step("dot_product")``; a
        bias gives what it adds. Such a kernel then computes this score without calling it.
        """
        return None

    def __add__(self, other: Score) -> Score:
        return Sum(self, other) if isinstance(other, Score) else NotImplemented  # pyright: ignore[reportUnnecessaryIsInstance]


class Sum(Score, name="_sum"):  # made by +, not by name
    """The sum of two scores."""

    left: Score
    right: Score

    def __call__(self, query: Query, key: Key, scale: float, tile: Tile) -> Scores:
        return self.left(query, key, scale, tile) + self.right(query, key, scale, tile)

    def default_scale(self, head_dim: int) -> float | None:
        left = self.left.default_scale(head_dim)
        return self.right.default_scale(head_dim) if left is None else left

    def check(self, checks: Checks, shape: Shape, head_dim: int, device: torch.device) -> None:
        self.left.check(checks, shape, head_dim, device)
        self.right.check(checks, shape, head_dim, device)
        if self.left.sinks is not None and self.right.sinks is not None:
            checks.fail("score: expected Sinks at most once, got them on both sides of a sum")

    @property
    def sinks(self) -> Float[Tensor, " heads"] | None:
        return self.right.sinks if self.left.sinks is None else self.left.sinks

    @property
    def is_fresh_and_finite(self) -> bool:
        return self.left.is_fresh_and_finite and self.right.is_fresh_and_finite

    def steps(self, place: Place) -> list[Step] | None:
        first, second = self.left.steps(place), self.right.steps(place)
        if first is None or second is None:
            return None
        if _has_product(second):
            first, second = second, first
        return None if _has_product(second) else [*first, *second]

    def workspace_per_cell(self, head_dim: int) -> int:
        # The left scores are held while the right ones are computed.
        return max(self.left.workspace_per_cell(head_dim), 1 + self.right.workspace_per_cell(head_dim))

    def __repr__(self) -> str:
        return f"{self.left!r} + {self.right!r}"


def _has_product(steps: list[Step]) -> bool:
    return steps[0].kind == "dot_product"


ScoreLike = Score | str | ScoreModFunction
"""What `score=` takes: a score, the name of one, FlexAttention's `score_mod`."""


def as_score(score: Any) -> Score:
    """The score that an argument means.

    Args:
        score: A score, the name of one, FlexAttention's `score_mod`, a function (score, b, h, q_idx, kv_idx) -> score
            of the scaled dot product, or None for the scaled dot product itself.

    Raises:
        InvalidArgument: If the name is unknown or its class needs arguments, or the function cannot be used.
        InvalidType: If it is something else.
    """
    if isinstance(score, Tensor):
        raise InvalidType(
            "score: expected a name or a Score, got a tensor; to add it to the scores, use "
            "score=regard.ScaledDotProduct() + regard.Bias(tensor)"
        )
    if callable(score) and not isinstance(score, (type, Rule)):  # a mask or a measure may be callable, too
        from regard.ops.scores.dot_product import ScaledDotProduct  # which build on this module
        from regard.ops.scores.score_mod import ScoreMod

        function: Any = score
        return ScoreMod(ScaledDotProduct(), function)
    return resolve(Score, "scaled_dot_product" if score is None else score, "score")


def has_bias(score: Score) -> bool:
    """Whether a part of a score is a bias, which is added to the others."""
    return any(isinstance(part, Score) and part.is_bias for part in subtrees(score))


def check_inner(owner: Score, score: Any) -> None:
    """Raise unless a score that modifies another one has got one.

    Raises:
        InvalidType: If it is something else.
    """
    if not isinstance(score, Score):
        raise InvalidType(
            f"{type(owner).__name__}.score: expected a score such as regard.ScaledDotProduct(), "
            f"got {type(score).__name__}"
        )
