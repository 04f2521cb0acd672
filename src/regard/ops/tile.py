"""Cells of the weight matrix: what rules for masks and scores are asked about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

Span = tuple[int, int]
"""A range of keys: the first, and one past the last."""


Index = slice | Tensor
"""Some entries of an axis: a slice, or their numbers."""


@dataclass(eq=False)  # not frozen, as blocks make several of them, at three times the price
class Tile:
    """A rectangle of the weight matrix, by the indices of the tensors that the request was first made from.

    `sequence`, `head`, `query`, `position` and `key` broadcast against each other to (batch, heads, rows, keys), so
    that a rule is one expression of them: ``cells.key <= cells.position``.

    Args:
        batch: Which sequences.
        heads: Which heads.
        rows: Which queries.
        keys: The range of keys.
        offset: Query i stands at position i + offset.
        device: Where the tensors of the request lie.
        columns: (rows, keys) Keys that each row has for itself, all within the range; None: each has the whole range.
        whole: Whether the range is that of all keys.
        gradients: In a backward pass, where the gradients of whole tensors are summed up, by the tensors' `id`.
    """

    batch: Index
    heads: Index
    rows: Index
    keys: Span
    offset: int
    device: torch.device
    columns: Int[Tensor, "rows columns"] | None = None
    whole: bool = False
    gradients: Mapping[int, Tensor] | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, rows, keys)."""
        return entries_in(self.batch), entries_in(self.heads), entries_in(self.rows), self.width

    @property
    def width(self) -> int:
        """How many keys each row has."""
        return self.keys[1] - self.keys[0] if self.columns is None else self.columns.shape[1]

    @property
    def sequence(self) -> Int[Tensor, "batch 1 1 1"]:
        """The sequences, (batch, 1, 1, 1)."""
        return _numbers(self.batch, self.device)[:, None, None, None]

    @property
    def head(self) -> Int[Tensor, "heads 1 1"]:
        """The query heads, (heads, 1, 1)."""
        return _numbers(self.heads, self.device)[:, None, None]

    @property
    def query(self) -> Int[Tensor, "rows 1"]:
        """The queries, (rows, 1)."""
        return _numbers(self.rows, self.device)[:, None]

    @property
    def position(self) -> Int[Tensor, "rows 1"]:
        """Where the queries stand among the keys, (rows, 1)."""
        return self.query + self.offset

    @property
    def key(self) -> Int[Tensor, "*rows keys"]:
        """The keys, (keys,); (rows, keys) where each row has its own."""
        return torch.arange(*self.keys, device=self.device) if self.columns is None else self.columns

    @property
    def ends(self) -> tuple[int, int]:
        """The lowest and the highest position of the rows."""
        if isinstance(self.rows, slice):
            return self.rows.start + self.offset, self.rows.stop - 1 + self.offset
        return int(self.rows.min()) + self.offset, int(self.rows.max()) + self.offset

    @property
    def sequences(self) -> list[int]:
        """The numbers of the sequences."""
        return list(range(self.batch.start, self.batch.stop)) if isinstance(self.batch, slice) else self.batch.tolist()

    def within(self, keys: Span) -> Tile:
        """The same rows over another range of keys."""
        if keys == self.keys:
            return self
        batch, heads, rows = self.batch, self.heads, self.rows
        return Tile(batch, heads, rows, keys, self.offset, self.device, self.columns, False, self.gradients)

    def part_of(self, tensor: Shaped[Tensor, "..."]) -> Shaped[Tensor, "#batch #heads #rows #keys"]:
        """What belongs to these cells of a tensor that broadcasts to (batch, heads, queries, keys) of the whole."""
        if self.gradients is not None and self.columns is None and id(tensor) in self.gradients:
            return _Part.apply(tensor, self)  # pyright: ignore[reportReturnType]
        return self._part(tensor)

    def _part(self, tensor: Tensor) -> Tensor:
        part = tensor.reshape((1,) * (4 - tensor.ndim) + tuple(tensor.shape))
        for axis, index in enumerate((self.batch, self.heads, self.rows)):
            if part.shape[axis] > 1:
                part = part[(slice(None),) * axis + (index,)]
        if part.shape[3] == 1:
            return part
        if self.columns is None:
            return part[..., slice(*self.keys)]
        columns = self.columns.expand(*part.shape[:2], *self.columns.shape)
        return part.expand(-1, -1, len(self.columns), -1).gather(3, columns)


class _Part(torch.autograd.Function):
    """The part of a large tensor, whose gradient is added in its place, and never made for the whole."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, cells: Tile) -> Tensor:
        assert cells.gradients is not None
        ctx.total, ctx.cells = cells.gradients[id(tensor)], cells
        return cells._part(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        total, cells = ctx.total, ctx.cells
        if all(isinstance(index, slice) for index in (cells.batch, cells.heads, cells.rows)):
            cells._part(total).add_(gradient)
        else:  # chosen entries, of which several may be one
            with torch.enable_grad():
                leaf = total.detach().requires_grad_()
                (whole,) = torch.autograd.grad(cells._part(leaf), leaf, gradient)
            total.add_(whole)
        return None, None


def entries_in(index: Index) -> int:
    """How many entries an index chooses."""
    return index.stop - index.start if isinstance(index, slice) else index.shape[0]


def _numbers(index: Index, device: torch.device) -> Tensor:
    return torch.arange(index.start, index.stop, device=device) if isinstance(index, slice) else index
