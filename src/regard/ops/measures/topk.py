"""The strongest keys of each row."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from regard.checks import Checks
from regard.ops.measures.base import Block, Measure, Spec, lowest
from regard.ops.steps import Place, Step
from regard.ops.tile import Shape


class MaxResult(NamedTuple):
    """The largest weight and the highest score of each row."""

    weight: Float[Tensor, "batch heads queries"]
    score: Float[Tensor, "batch heads queries"]

    def weights_of(
        self, scores: Float[Tensor, "batch heads queries keys"]
    ) -> Float[Tensor, "batch heads queries keys"]:
        """The weights of any keys of these rows: P_ij = exp(s_ij − s_im) P_im, where m is the strongest key of row i.

        Unlike exp(s_ij − lse_i), this loses no digits where scores are large.

        Args:
            scores: (batch, heads, queries, keys) Scores of some keys of each row, −∞ where masked.
        """
        exponent = scores - self.score.masked_fill(self.score == -torch.inf, 0.0)[..., None]  # −∞: a row without keys
        weights = exponent.exp() * self.weight[..., None]
        return weights.masked_fill(scores == -torch.inf, 0.0)  # also in a row of NaN


class Max(Measure):
    """Largest weight and highest score of each row, each (batch, heads, queries); 0 and −∞ for a row without keys.

    Both are NaN where a score is NaN or +∞.

    Where several keys are equally strong, one of them gets the gradient.
    """

    result_type = MaxResult
    needs_all_keys = False

    def compute(self, block: Block) -> MaxResult:
        if block.is_differentiated:
            at = block.scores.detach().argmax(-1, keepdim=True)
            weight, score = block.weights.gather(-1, at)[..., 0], block.scores.gather(-1, at)[..., 0]
        else:
            weight, score = block.max_weight, block.max_score
        score = score.masked_fill(score <= lowest(score.dtype), -torch.inf)
        return MaxResult(weight, score.masked_fill(weight.isnan(), torch.nan))

    def steps(self, place: Place) -> list[Step]:
        return [Step("max")]

    def result_specs(self, shape: Shape, dtype: torch.dtype) -> tuple[Spec, ...]:
        return ((self.result_shape(shape), dtype),) * 2


class TopKResult(NamedTuple):
    """The strongest keys of each row, strongest first."""

    values: Float[Tensor, "batch heads queries k"]
    indices: Int[Tensor, "batch heads queries k"]


class TopK(Measure, name="topk"):
    """The k strongest keys of each row: their weights and indices, each (batch, heads, queries, k).

    Where a row attends to fewer than k keys, the rest has value 0 and index −1. Values are differentiable.

    Args:
        k: Number of keys, at least 1.
    """

    k: int
    result_type = TopKResult
    needs_all_keys = False

    def __post_init__(self) -> None:
        with Checks() as checks:
            checks.integer("TopK.k", self.k, low=1)

    def compute(self, block: Block) -> TopKResult:
        count = min(self.k, block.weights.shape[-1])
        # By score: a tiny weight that rounds to 0 still comes before a masked key.
        scores, at = block.scores.detach().topk(count, -1)
        values = block.weights.gather(-1, at)
        if block.tile.row_keys is None:
            keys = at + block.index[3].start
        else:
            keys = block.kv_idx.expand_as(block.scores).gather(-1, at)
        is_nan = values.detach()[..., :1].isnan()
        indices = torch.where((scores > lowest(scores.dtype)) & ~is_nan, keys, -1)
        missing = (0, self.k - count)
        return TopKResult(pad(values, missing).masked_fill(is_nan, torch.nan), pad(indices, missing, value=-1))

    def steps(self, place: Place) -> list[Step]:
        return [Step("topk", (self.k,))]

    def result_specs(self, shape: Shape, dtype: torch.dtype) -> tuple[Spec, ...]:
        whole = *self.result_shape(shape), self.k
        return (whole, dtype), (whole, torch.int64)
