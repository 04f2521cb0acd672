"""A rectangle of the weight matrix: what rules for masks and scores are asked about."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Int
from torch import Tensor

Span = tuple[int, int]
"""A range of keys: the first, and one past the last."""


Index = slice | Tensor
"""Some entries of an axis: a slice, or their numbers."""


@dataclass(frozen=True, eq=False)
class Cells:
    """A rectangle of the weight matrix, by the indices of the tensors that the request was first made from.

    Args:
        batch: Which sequences.
        heads: Which heads.
        rows: Which queries.
        keys: The range of keys.
        offset: Query i stands at position i + offset.
        device: Where the tensors of the request lie.
    """

    batch: Index
    heads: Index
    rows: Index
    keys: Span
    offset: int
    device: torch.device

    @cached_property
    def positions(self) -> Int[Tensor, " rows"]:
        """Where the queries stand, (rows,)."""
        return _numbers(self.rows, self.device) + self.offset

    @cached_property
    def key(self) -> Int[Tensor, " keys"]:
        """The keys, (keys,)."""
        return torch.arange(*self.keys, device=self.device)

    @cached_property
    def ends(self) -> tuple[int, int]:
        """The lowest and the highest position of the rows."""
        if isinstance(self.rows, slice):
            return self.rows.start + self.offset, self.rows.stop - 1 + self.offset
        return int(self.rows.min()) + self.offset, int(self.rows.max()) + self.offset

    @cached_property
    def sequences(self) -> list[int]:
        """The numbers of the sequences."""
        return list(range(self.batch.start, self.batch.stop)) if isinstance(self.batch, slice) else self.batch.tolist()

    def within(self, keys: Span) -> Cells:
        """The same rows over another range of keys."""
        return Cells(self.batch, self.heads, self.rows, keys, self.offset, self.device)


def _numbers(index: Index, device: torch.device) -> Tensor:
    return torch.arange(index.start, index.stop, device=device) if isinstance(index, slice) else index
