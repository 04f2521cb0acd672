"""One matrix of weights compared with another of the same shape."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from regard.ops.measures import Block, Measure
from regard.ops.request import AttentionRequest


@dataclass(frozen=True, eq=False)
class KLDivergence(Measure):
    """The mean logarithm of another matrix's weights under those of this one: Σⱼ Pᵢⱼ log Qᵢⱼ, (batch, heads, queries).

    It is −∞ where P lies on a key that the other forbids, as in a row of Q that has no key, and 0 in a row of P that
    has none.

    Args:
        other: The matrix Q, of the same shape.
        lse: (batch, heads, queries) The log-sum-exp of its scores.
    """

    other: AttentionRequest
    lse: Float[Tensor, "batch heads queries"]

    def of(self, block: Block) -> Float[Tensor, "batch heads rows"]:
        other, weights = self.other, block.weights
        batch, heads, rows, keys = block.index
        group = other.query.shape[1] // other.key.shape[1]
        shared = torch.arange(heads.start, heads.stop, device=weights.device) // group
        query = other.query[batch, heads, rows].to(weights.dtype)
        key = other.key[batch, :, keys].index_select(1, shared).to(weights.dtype)
        cells = other.cells(batch, heads, rows).within((keys.start, keys.stop))
        scores = other.scores(query, key, cells)
        if other.mask is not None:
            scores = scores.masked_fill(~other.allowed(cells), -torch.inf)
        lse = block.rows_of(self.lse)[..., None]
        logs = (scores - lse).masked_fill(lse == -torch.inf, -torch.inf)  # a row of Q without a key
        return (weights * logs.where(weights > 0, 0.0)).sum(-1)
