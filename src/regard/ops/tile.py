"""Tile: the indices of a rectangle of the weight matrix, which masks and scores are evaluated on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from regard.ops.autograd import AutogradFunction

Shape = tuple[int, int, int, int]
"""(batch, heads, queries, keys)."""

Index = slice | Tensor
"""Entries of an axis: a slice, or their numbers."""


class KeyRange(NamedTuple):
    """A range of keys, from `start` up to but not including `stop`."""

    start: int
    stop: int

    @property
    def width(self) -> int:
        """Number of keys."""
        return self.stop - self.start

    def intersect(self, other: KeyRange) -> KeyRange:
        """The keys in both ranges."""
        start = max(self.start, other.start)
        return KeyRange(start, max(start, min(self.stop, other.stop)))


class Summarizable(Protocol):
    """A rule that reads what it needs from the values of its tensors once per pass."""

    def summarize(self) -> Any: ...


@dataclass(eq=False)  # not frozen: blocks make several, and frozen ones take three times as long
class Tile:
    """A rectangle of the weight matrix, indexed along the axes that mask and score were made for.

    `WeightMatrix.at` does not renumber these axes: a tile of ``W.at(heads=3)`` has head 3.

    `b`, `h`, `q_idx`, `q_pos` and `kv_idx` broadcast against each other to (batch, heads, rows, keys), so a rule is one
    expression of them: ``tile.kv_idx <= tile.q_pos``. The names are those of FlexAttention's `mask_mod`.

    Args:
        batch: Batch entries.
        heads: Query heads.
        rows: Queries.
        keys: The range of keys.
        offset: Query i has position i + offset.
        device: Device of the query.
        row_keys: (rows, columns) Keys of each row, where rows have their own, as on a sparse graph; all lie in `keys`.
        positions: (rows,) The positions of the rows, where these are not ``rows + offset``.
        gradients: In a backward pass, the tensors in which gradients are summed, by the `id` of the rule's tensor.
        summaries: What rules have read from the values of their tensors in this pass; see `summary`.
    """

    batch: Index
    heads: Index
    rows: Index
    keys: KeyRange
    offset: int
    device: torch.device
    row_keys: Int[Tensor, "rows columns"] | None = None
    positions: Int[Tensor, " rows"] | None = None
    gradients: Mapping[int, Tensor] | None = None
    summaries: dict[int, Any] = field(default_factory=dict)

    @property
    def shape(self) -> Shape:
        """(batch, heads, rows, keys)."""
        return index_size(self.batch), index_size(self.heads), index_size(self.rows), self.width

    @property
    def width(self) -> int:
        """Number of keys per row."""
        return self.keys.stop - self.keys.start if self.row_keys is None else self.row_keys.shape[1]

    @property
    def b(self) -> Int[Tensor, "batch 1 1 1"]:
        """Batch indices, (batch, 1, 1, 1)."""
        return _as_tensor(self.batch, self.device)[:, None, None, None]

    @property
    def h(self) -> Int[Tensor, "heads 1 1"]:
        """Head indices, (heads, 1, 1)."""
        return _as_tensor(self.heads, self.device)[:, None, None]

    @property
    def q_idx(self) -> Int[Tensor, "rows 1"]:
        """Query indices, (rows, 1)."""
        return _as_tensor(self.rows, self.device)[:, None]

    @property
    def q_pos(self) -> Int[Tensor, "rows 1"]:
        """Positions of the queries among the keys, (rows, 1)."""
        return self.q_idx + self.offset if self.positions is None else self.positions[:, None]

    @property
    def kv_idx(self) -> Int[Tensor, "*rows keys"]:
        """Key indices, (keys,), or (rows, columns) where each row has its own."""
        return torch.arange(*self.keys, device=self.device) if self.row_keys is None else self.row_keys

    @property
    def is_consecutive(self) -> bool:
        """Whether the rows are consecutive positions and share all keys, so the tile is a rectangle of a grid."""
        return isinstance(self.rows, slice) and self.row_keys is None and self.positions is None

    @property
    def position_range(self) -> tuple[int, int]:
        """The lowest and the highest position of the rows."""
        if self.positions is not None:
            return int(self.positions.min()), int(self.positions.max())
        if isinstance(self.rows, slice):
            return self.rows.start + self.offset, self.rows.stop - 1 + self.offset
        return int(self.rows.min()) + self.offset, int(self.rows.max()) + self.offset

    @property
    def batch_indices(self) -> list[int]:
        """The batch entries as a list."""
        return list(range(self.batch.start, self.batch.stop)) if isinstance(self.batch, slice) else self.batch.tolist()

    @property
    def no_keys(self) -> KeyRange:
        """An empty range."""
        return KeyRange(self.keys.start, self.keys.start)

    def clip(self, start: int, stop: int) -> KeyRange:
        """The part of a range inside the tile's keys; empty if there is none."""
        start = min(max(start, self.keys.start), self.keys.stop)
        return KeyRange(start, max(start, min(stop, self.keys.stop)))

    def with_keys(self, keys: KeyRange) -> Tile:
        """The same rows over another range of keys."""
        if keys == self.keys:
            return self
        batch, heads, rows, offset, device = self.batch, self.heads, self.rows, self.offset, self.device
        rest = self.row_keys, self.positions, self.gradients, self.summaries
        return Tile(batch, heads, rows, keys, offset, device, *rest)  # replace() takes three times as long

    def summary(self, rule: Summarizable) -> Any:
        """What ``rule.summarize()`` returns, read once per pass, forward or backward.

        It is never kept longer: a tensor may change through NumPy, ``.data`` or a copy without torch counting it.
        """
        if id(rule) not in self.summaries:
            self.summaries[id(rule)] = rule.summarize()
        return self.summaries[id(rule)]

    def slice(self, tensor: Shaped[Tensor, "..."]) -> Shaped[Tensor, "#batch #heads #rows #keys"]:
        """The part of a tensor broadcastable to (batch, heads, queries, keys) that belongs to this tile."""
        if self.gradients is not None and self.row_keys is None and id(tensor) in self.gradients:
            return _Slice.apply(tensor, self)
        return _slice(self, tensor)

    def slice_rows(self, tensor: Shaped[Tensor, "..."]) -> Shaped[Tensor, "#batch #heads #rows ..."]:
        """The part of a tensor whose first axes are (batch or 1, heads or 1, queries or 1)."""
        return index_rows(tensor, (self.batch, self.heads, self.rows))


def _slice(tile: Tile, tensor: Tensor) -> Tensor:
    part = tile.slice_rows(tensor.reshape((1,) * (4 - tensor.ndim) + tuple(tensor.shape)))
    if part.shape[3] == 1:
        return part
    if tile.row_keys is None:
        return part[..., slice(*tile.keys)]
    columns = tile.row_keys.expand(*part.shape[:2], *tile.row_keys.shape)
    return part.expand(-1, -1, len(tile.row_keys), -1).gather(3, columns)


class _Slice(AutogradFunction):
    """A slice of a large tensor whose gradient is added in place, and never allocated for the whole tensor."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, tile: Tile) -> Tensor:
        assert tile.gradients is not None
        ctx.total, ctx.tile = tile.gradients[id(tensor)], tile
        return _slice(tile, tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        total, tile = ctx.total, ctx.tile
        if all(isinstance(index, slice) for index in (tile.batch, tile.heads, tile.rows)):
            _slice(tile, total).add_(gradient)
        else:  # indices may repeat, so their gradients must be accumulated
            with torch.enable_grad():
                leaf = total.detach().requires_grad_()
                (whole,) = torch.autograd.grad(_slice(tile, leaf), leaf, gradient)
            total.add_(whole)
        return None, None


def index_rows(tensor: Tensor, indices: tuple[Index, Index, Index]) -> Tensor:
    """Index (batch, heads, queries) of a tensor; axes of size 1 broadcast and stay."""
    for axis, index in enumerate(indices):
        if tensor.shape[axis] > 1:
            tensor = tensor[(slice(None),) * axis + (index,)]
    return tensor


def index_size(index: Index) -> int:
    """The number of entries that an index selects."""
    return index.stop - index.start if isinstance(index, slice) else index.shape[0]


def _as_tensor(index: Index, device: torch.device) -> Tensor:
    return torch.arange(index.start, index.stop, device=device) if isinstance(index, slice) else index
