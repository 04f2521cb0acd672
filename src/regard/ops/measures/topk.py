"""The strongest keys of each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from regard.ops.measures.base import FORBIDDEN, Block, Measure, Shape


class TopKResult(NamedTuple):
    """The strongest keys of each row, strongest first."""

    values: Float[Tensor, "batch heads queries k"]
    indices: Int[Tensor, "batch heads queries k"]


@dataclass(frozen=True, eq=False)
class TopK(Measure):
    """The k strongest keys of each row: (values, indices), each (batch, heads, queries, k).

    Where a row may see fewer than k keys, the value is 0 and the index −1. The values have a gradient, the indices
    cannot.

    Args:
        k: How many, from 1 to the number of keys.
    """

    k: int
    answer = TopKResult

    @property
    def name(self) -> str:
        """``"topk"``, as torch writes it."""
        return "topk"

    def of(self, block: Block) -> TopKResult:
        count = min(self.k, block.weights.shape[-1])
        # Chosen by score: a tiny weight that rounds to 0 still stands before a masked key.
        scores, at = _top(block.scores.detach(), count)
        values = block.weights.gather(-1, at)
        keys = (
            at + block.index[3].start
            if block.cells.columns is None
            else block.key.expand_as(block.scores).gather(-1, at)
        )
        indices = torch.where(scores > FORBIDDEN, keys, -1)
        missing = (0, self.k - count)
        return TopKResult(pad(values, missing), pad(indices, missing, value=-1))

    def parts(self, shape: Shape, dtype: torch.dtype) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
        whole = *self.whole(shape), self.k
        return (whole, dtype), (whole, torch.int64)

    def objections(self, shape: Shape, device: torch.device) -> list[str]:
        if isinstance(self.k, int) and not isinstance(self.k, bool) and 1 <= self.k <= shape[3]:
            return []
        return [f"topk: k must be from 1 to the number of keys ({shape[3]}), got {self.k!r}"]


def _top(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """As `torch.topk` along the last axis, in less time on a CPU where there are many more than k.

    The entries are laid in columns. The k largest lie in the k columns with the largest maxima, so these columns, and
    what was left over, are all that is searched in.
    """
    width = scores.shape[-1]
    rows = width // (64 * k)  # torch sorts a part of each row in place where k is a 64th of it or less
    if rows < 2 or scores.device.type != "cpu":
        return scores.topk(k, -1)
    columns = width // rows
    table = scores[..., : rows * columns].unflatten(-1, (rows, columns))
    chosen = table.amax(-2).topk(k, -1, sorted=False).indices[..., None, :]
    keys = torch.arange(0, rows * columns, columns)[:, None] + chosen  # (..., rows, k)
    rest = torch.arange(rows * columns, width).expand(*scores.shape[:-1], -1)
    keys = torch.cat((keys.flatten(-2), rest), -1)
    found, at = scores.gather(-1, keys).topk(k, -1)
    return found, keys.gather(-1, at)
