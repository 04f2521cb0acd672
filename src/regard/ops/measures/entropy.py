"""Entropy and log-sum-exp of each row."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.ops.autograd import AutogradFunction, check_forward_mode
from regard.ops.measures.base import Block, LogSumExpOfWeights, Measure
from regard.ops.steps import Place, Step

LOG_OF_ZERO = -1e30
"""Stands for log P where P is 0: P log P is 0, and gradients of log P stay finite. No P above 0 has a log below it."""


class Entropy(Measure):
    """Entropy of each row: H_i = −Σ_j P_ij log P_ij, in nats, (batch, heads, queries); 0 for a row without keys.

    The weight of a sink is not part of the sum.
    """

    needs_all_keys = False

    def compute(self, block: Block) -> Float[Tensor, "batch heads rows"]:
        if block.lse_with_sink is not None:
            return _entropy_with_sink(block)
        result = _entropy(block)
        if block.is_differentiated:
            return _Entropy.apply(block.scores, block.weights, *result)
        return result[0]

    def steps(self, place: Place) -> list[Step]:
        return [Step("entropy")]


def _entropy(block: Block) -> tuple[Tensor, Tensor, Tensor]:
    """Entropy, highest score and lse of each row, where log P = (score − highest) − lse."""
    scores, weights = block.scores.detach(), block.weights.detach()
    # Relative to the highest score, so that large scores cost no digits. A row without keys has entropy 0.
    lse = -block.max_weight.where(block.max_weight > 0, 1.0).log()
    entropy = (lse - _row_dot(weights, _shifted(scores, block.max_score))).abs()  # of H, up to rounding at 0
    return entropy, block.max_score, lse


def _shifted(scores: Tensor, shift: Tensor) -> Tensor:
    """The difference score − shift, bounded where the weight is 0."""
    return (scores - shift[..., None]).clamp_(min=LOG_OF_ZERO)


def _row_dot(left: Tensor, right: Tensor) -> Tensor:
    """Sums of products along the rows; multiplying first would write a whole block, in twice the time."""
    return torch.einsum("bhrk,bhrk->bhr", left, right)


class _Entropy(AutogradFunction):
    """H = −Σ P log P, with gradient −P (log P + H) with respect to the scores, through P included."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, weights: Tensor, entropy: Tensor, shift: Tensor, lse: Tensor) -> Tensor:
        return entropy.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        scores, weights, _, shift, lse = inputs
        ctx.save_for_backward(scores, weights, output, shift, lse)
        ctx.save_for_forward(scores, weights, output, shift, lse)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        scores, weights, entropy, shift, lse = ctx.saved_tensors
        if torch.is_grad_enabled():  # for a second derivative: nothing is overwritten, and the lse has a gradient
            shifted = (scores - shift[..., None]).clamp(min=LOG_OF_ZERO)
            lse = LogSumExpOfWeights.apply(shifted, weights)
            lse = lse.masked_fill(lse.isneginf(), 0.0)
            grad_scores = (shifted + (entropy - lse)[..., None]) * weights * -gradient[..., None]
        else:
            grad_scores = (
                (_shifted(scores, shift) + (entropy - lse)[..., None]).mul_(weights).mul_(-gradient[..., None])
            )
        return grad_scores, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        check_forward_mode()
        scores, weights, entropy, shift, _ = ctx.saved_tensors
        logs = (scores - shift[..., None]).clamp(min=LOG_OF_ZERO)
        lse = LogSumExpOfWeights.apply(logs, weights)
        lse = lse.masked_fill(lse.isneginf(), 0.0)
        return -_row_dot((logs + (entropy - lse)[..., None]) * weights, tangent)


def _entropy_with_sink(block: Block) -> Tensor:
    """The entropy of weights that do not sum to one, differentiable by autograd.

    With the strongest key m: log P_j = (s_j − s_m) + log P_m, which loses no digits where scores and sink are large.
    """
    strongest = block.scores.detach().argmax(-1, keepdim=True)
    max_score, max_weight = block.scores.gather(-1, strongest), block.weights.gather(-1, strongest)
    logs = (block.scores - max_score).clamp(min=LOG_OF_ZERO)
    logs = logs + max_weight.where(max_weight > 0, 1.0).log()
    return -_row_dot(block.weights, logs).masked_fill(max_weight[..., 0] == 0, 0.0)


class LogSumExp(Measure, name="lse"):
    """Log of the softmax denominator, sinks included: log Σ_j exp(S_ij), (batch, heads, queries).

    It is −∞ for a row with neither key nor sink.
    """

    needs_all_keys = False

    def compute(self, block: Block) -> Float[Tensor, "batch heads rows"]:
        return block.lse

    def steps(self, place: Place) -> list[Step]:
        return [Step("lse")]
