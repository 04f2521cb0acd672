"""One number for each row, or two: entropy, log-sum-exp, the maximum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from regard.ops.measures.base import FORBIDDEN, Block, Measure, Shape

SMALL = 16
"""Scores up to here may be added up as they are: in float32 the last of their digits are worth 10⁻⁶."""


@dataclass(frozen=True, eq=False)
class Entropy(Measure):
    """How spread a row is: Hᵢ = −Σⱼ Pᵢⱼ log Pᵢⱼ, in nats, (batch, heads, queries); 0 for a row with no key.

    The mass that a sink takes is not part of the sum.
    """

    def of(self, block: Block) -> Float[Tensor, "batch heads rows"]:
        if block.sunk_lse is not None:
            return _sunk_entropy(block, block.sunk_lse)
        small = block.concrete and bool(block.highest.abs().amax() < SMALL)
        if block.scores.requires_grad or block.weights.requires_grad:
            return _EntropyOfRows.apply(block.scores, block.weights, small)  # pyright: ignore[reportReturnType]
        return _entropy(block.scores, block.weights, block.strongest, block.highest, small)


class _EntropyOfRows(torch.autograd.Function):
    """H = −Σ P log P with log P = score − maximum + log P at the maximum, which loses no digits where scores are large.

    Its gradient with respect to the scores, the way through P included, is −P (log P + H).
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, weights: Tensor, small: bool) -> Tensor:
        return _entropy(scores, weights, weights.amax(-1), scores.amax(-1), small)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, bool], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2], output)
        ctx.small = inputs[2]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        scores, weights, entropy = ctx.saved_tensors
        below, log_strongest = _logs(scores, weights.amax(-1), scores.amax(-1), ctx.small)
        of_logs = below + (log_strongest + entropy)[..., None]
        if torch.is_grad_enabled():  # a second derivative may be wanted, which needs what would be overwritten
            return of_logs * weights * -gradient[..., None], None, None
        return of_logs.mul_(weights).mul_(-gradient[..., None]), None, None


def _entropy(scores: Tensor, weights: Tensor, strongest: Tensor, highest: Tensor, small: bool) -> Tensor:
    below, log_strongest = _logs(scores, strongest, highest, small)
    return (torch.linalg.vecdot(weights, below) + log_strongest).abs()  # −H, but for rounding at 0


def _logs(scores: Tensor, strongest: Tensor, highest: Tensor, small: bool) -> tuple[Tensor, Tensor]:
    """Log P as a sum: a tensor of the scores' shape, not to be changed, and a number for each row."""
    log_strongest = strongest.where(strongest > 0, 1.0).log()  # of a row with no key 0: its entropy is 0
    if small:
        return scores, log_strongest - highest
    return scores - highest[..., None], log_strongest


def _sunk_entropy(block: Block, lse: Tensor) -> Tensor:
    """The entropy of weights that do not sum to one; written so that autograd finds its way."""
    seen = block.highest > FORBIDDEN
    highest = block.highest.where(seen, 0.0)
    logs = (block.scores - highest[..., None]) + (highest - lse)[..., None]
    return -torch.linalg.vecdot(block.weights, logs).where(seen, 0.0)


@dataclass(frozen=True, eq=False)
class Lse(Measure):
    """The logarithm of softmax's denominator, sinks included: log Σⱼ exp(Sᵢⱼ), (batch, heads, queries).

    It is −∞ for a row with neither key nor sink.
    """

    def of(self, block: Block) -> Float[Tensor, "batch heads rows"]:
        return block.lse


class Strongest(NamedTuple):
    """The strongest key of each row."""

    weight: Float[Tensor, "batch heads queries"]
    score: Float[Tensor, "batch heads queries"]


@dataclass(frozen=True, eq=False)
class Max(Measure):
    """The largest weight and the highest score of each row, each (batch, heads, queries); 0 and −∞ where it has no key.

    Where several keys are equally strong, one of them gets the gradient.
    """

    answer = Strongest

    def of(self, block: Block) -> Strongest:
        if block.scores.requires_grad or block.weights.requires_grad:
            at = block.scores.detach().argmax(-1, keepdim=True)
            weight, score = block.weights.gather(-1, at)[..., 0], block.scores.gather(-1, at)[..., 0]
        else:
            weight, score = block.strongest, block.highest
        return Strongest(weight, score.masked_fill(score <= FORBIDDEN, -torch.inf))

    def parts(self, shape: Shape, dtype: torch.dtype) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
        return ((self.whole(shape), dtype),) * 2
