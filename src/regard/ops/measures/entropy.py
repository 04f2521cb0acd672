"""One number for each row, or two: entropy, log-sum-exp, the maximum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from regard.ops.measures.base import FORBIDDEN, Block, Measure, Shape, _LogSumExp


@dataclass(frozen=True, eq=False)
class Entropy(Measure):
    """How spread a row is: Hᵢ = −Σⱼ Pᵢⱼ log Pᵢⱼ, in nats, (batch, heads, queries); 0 for a row with no key.

    The mass that a sink takes is not part of the sum.
    """

    def of(self, block: Block) -> Float[Tensor, "batch heads rows"]:
        if block.sunk_lse is not None:
            return _sunk_entropy(block, block.sunk_lse)
        found = _entropy(block)
        if block.scores.requires_grad or block.weights.requires_grad:
            return _Entropy.apply(block.scores, block.weights, *found)  # pyright: ignore[reportReturnType]
        return found[0]


def _entropy(block: Block) -> tuple[Tensor, Tensor | None, Tensor]:
    """Entropy, shift and lse, each a number for each row, with log P = (score − shift) − lse; None is no shift."""
    scores, weights = block.scores.detach(), block.weights.detach()
    if block.concrete and block.anchor is not None:
        score = scores[..., block.anchor]
        lse = score - weights[..., block.anchor].log()
        entropy = lse - _dot(weights, scores)
        if bool((torch.hypot(score, lse) < 1.5 * entropy).all()):  # finite, and little was lost by the difference
            return entropy, None, lse
    # From the strongest key, so that no digits are lost where scores are large. A row with no key has the entropy 0.
    lse = -block.strongest.where(block.strongest > 0, 1.0).log()
    entropy = (lse - _dot(weights, scores - block.highest[..., None])).abs()  # H, but for rounding at 0
    return entropy, block.highest, lse


def _dot(one: Tensor, other: Tensor) -> Tensor:
    """Sums of products along the rows; the product by itself would go through memory, at twice the time."""
    return torch.einsum("bhrk,bhrk->bhr", one, other)


class _Entropy(torch.autograd.Function):
    """H = −Σ P log P; its gradient with respect to the scores, the way through P included, is −P (log P + H)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, weights: Tensor, entropy: Tensor, shift: Tensor | None, lse: Tensor) -> Tensor:
        return entropy.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor | None, ...], output: Tensor) -> None:
        scores, weights, _, shift, lse = inputs
        ctx.save_for_backward(scores, weights, output, shift, lse)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        scores, weights, entropy, shift, lse = ctx.saved_tensors
        shifted = scores if shift is None else scores - shift[..., None]
        if not torch.is_grad_enabled():
            of_scores = (shifted + (entropy - lse)[..., None]).mul_(weights).mul_(-gradient[..., None])
        else:  # a second derivative may be wanted, which needs what would be overwritten, and how the lse came about
            lse = _LogSumExp.apply(shifted, weights)  # pyright: ignore[reportAssignmentType]
            lse = lse.masked_fill(lse.isneginf(), 0.0)
            of_scores = (shifted + (entropy - lse)[..., None]) * weights * -gradient[..., None]
        return of_scores, None, None, None, None


def _sunk_entropy(block: Block, lse: Tensor) -> Tensor:
    """The entropy of weights that do not sum to one; written so that autograd finds its way."""
    seen = block.highest > FORBIDDEN
    highest = block.highest.where(seen, 0.0)
    logs = (block.scores - highest[..., None]) + (highest - lse)[..., None]
    return -_dot(block.weights, logs).where(seen, 0.0)


@dataclass(frozen=True, eq=False)
class LogSumExp(Measure):
    """The logarithm of softmax's denominator, sinks included: log Σⱼ exp(Sᵢⱼ), (batch, heads, queries).

    It is −∞ for a row with neither key nor sink.
    """

    def of(self, block: Block) -> Float[Tensor, "batch heads rows"]:
        return block.lse


class MaxResult(NamedTuple):
    """The strongest key of each row."""

    weight: Float[Tensor, "batch heads queries"]
    score: Float[Tensor, "batch heads queries"]


@dataclass(frozen=True, eq=False)
class Max(Measure):
    """The largest weight and the highest score of each row, each (batch, heads, queries); 0 and −∞ where it has no key.

    Where several keys are equally strong, one of them gets the gradient.
    """

    answer = MaxResult

    def of(self, block: Block) -> MaxResult:
        if block.scores.requires_grad or block.weights.requires_grad:
            at = block.scores.detach().argmax(-1, keepdim=True)
            weight, score = block.weights.gather(-1, at)[..., 0], block.scores.gather(-1, at)[..., 0]
        else:
            weight, score = block.strongest, block.highest
        return MaxResult(weight, score.masked_fill(score <= FORBIDDEN, -torch.inf))

    def parts(self, shape: Shape, dtype: torch.dtype) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
        return ((self.whole(shape), dtype),) * 2
