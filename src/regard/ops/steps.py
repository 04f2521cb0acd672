"""Steps: what a rule computes, for kernels that cannot run its Python code. Rules write them, kernels read them.

The kinds of steps, their numbers and their tensors. A position is that of a query, p_i.

Of a mask, in postfix order:
    window: left, right; keys from p_i − left to p_i + right; None for no limit.
    ranges: first, stop, int64 (…, queries, 1); keys from first, or None for 0, up to but not including stop.
    same_document: of queries (…, queries, 1), of keys (…, 1, keys), int64; keys whose number is the query's.
    dense: bool (…, queries, keys).
    and, or, not: combine the steps before.
Of a score, in the order in which they apply:
    dot_product: always the first.
    add_bias: + tensor (…, queries, keys).
    add_distances: shift; + tensor (1, heads, 1, distances) at j − p_i + shift.
    add_relative_key: reach k; + scale * q_i · tensor (batch, heads, 2k + 1, head_dim) at clip(j − p_i, −k, k) + k.
    add_relative_query: the same with k_j in place of q_i.
    soft_cap: cap; cap * tanh(s / cap).
Of a measure one, named as the measure or its formula; the classes of measures say what it holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from regard.ops.tile import Shape

StepTensors = tuple[Tensor | None, ...]
"""The tensors of a step: each (batch, heads, queries, keys) or with other axes in place of the last two; axes of size 1
are broadcast."""


class Step(NamedTuple):
    """A step of a mask, a score or a measure.

    Args:
        kind: What the step does. A kernel supports a rule if it knows the kinds of all its steps.
        numbers: What the kind says.
        tensors: Computes the tensors, by differentiable operations on those of the rule, on the request's device. It is
            not called before a kernel is chosen.
        mask: The steps of a mask that a measure holds.
        other: The request of the matrix that a measure compares with.
    """

    kind: str
    numbers: tuple[Any, ...] = ()
    tensors: Callable[[], StepTensors] = tuple
    mask: list[Step] | None = None
    other: Any = None


class RuleSteps(NamedTuple):
    """The steps of the rules of a call; None for a rule that cannot be written as steps.

    Args:
        mask: Of the mask; empty if there is none.
        score: Of the score.
        measures: Of each measure.
    """

    mask: list[Step] | None
    score: list[Step] | None
    measures: list[list[Step] | None]


class Place(NamedTuple):
    """Where the steps of a rule apply.

    Args:
        shape: (batch, heads, queries, keys) that the rule was made for.
        offset: Query i has position i + offset.
        rows: (queries,) Numbers of the queries, if they are not 0, 1, ...
        device: Of the tensors.
        dtype: Of floating-point tensors: that of scores and sums.
    """

    shape: Shape
    offset: int
    rows: Int[Tensor, " queries"] | None
    device: torch.device
    dtype: torch.dtype

    @property
    def positions(self) -> Int[Tensor, " queries"]:
        """The positions of the queries, (queries,)."""
        rows = torch.arange(self.shape[2], device=self.device) if self.rows is None else self.rows
        return rows + self.offset

    @property
    def last_position(self) -> int:
        """The position of the last query."""
        return self.offset + self.shape[2] - 1

    @property
    def distances(self) -> Int[Tensor, " distances"]:
        """All distances j − p_i, ascending, (queries + keys − 1,); add `last_position` to one for its index."""
        return torch.arange(-self.last_position, self.shape[3] - self.offset, device=self.device)


def with_four_axes(tensor: Shaped[Tensor, "..."]) -> Shaped[Tensor, "batch heads queries keys"]:
    """A tensor with axes of size 1 in front, up to four."""
    return tensor[(None,) * (4 - tensor.ndim)]
