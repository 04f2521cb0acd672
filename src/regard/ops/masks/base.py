"""Masks as index rules: which key may a query see? Nothing here has the size of the weight matrix.

A rule answers three questions about a rectangle of cells: which are allowed, outside which keys none is (so that they
are not computed), and inside which keys all are (so that nothing is masked there). Rules combine with ``&``, ``|`` and
``~``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from regard.errors import InvalidType
from regard.ops.tile import Span, Tile
from regard.ops.tree import map_tensors, tensors_in

MaskModFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(batch, head, query, key) → bool, as FlexAttention's `mask_mod`."""


class Mask:
    """Base of all masks. A new rule needs `allowed`; `extent` and `certain` make it fast.

    A mask that holds tensors is a dataclass with these as fields, so that they are moved with it, and a change in place
    is seen.
    """

    def allowed(self, cells: Tile) -> Bool[Tensor, "..."]:
        """Which cells may be attended to: bool, broadcastable to (batch, heads, rows, keys)."""
        raise NotImplementedError

    def extent(self, cells: Tile) -> Span:
        """Keys outside of which no cell is allowed."""
        return cells.keys

    def certain(self, cells: Tile) -> Span:
        """Keys inside of which every cell is allowed; an empty range where that is not known."""
        return no_keys(cells)

    def objections(self, shape: tuple[int, int, int, int], device: torch.device) -> list[str]:
        """Why the mask does not fit a weight matrix of this shape on this device."""
        return []

    def to(self, device: torch.device) -> Mask:
        """The same mask with its tensors on a device."""
        return map_tensors(self, lambda tensor: tensor.to(device))

    @property
    def per_query(self) -> bool:
        """Whether the rule says different things to different queries."""
        return True

    def read(self) -> Any:
        """What `extent` and `certain` need of the tensors' contents; ask for it by `known`."""
        return None

    @property
    def known(self) -> Any:
        """What `read` gives: read off the device once, and again after a change in place."""
        versions = [object() if tensor.is_inference() else tensor._version for tensor in tensors_in(self)]
        if self.__dict__.get("_known", (None,))[0] != versions:
            object.__setattr__(self, "_known", (versions, self.read()))
        return self.__dict__["_known"][1]

    def __and__(self, other: Mask | Tensor | MaskModFunction) -> Mask:
        return And(self, as_mask(other))

    def __or__(self, other: Mask | Tensor | MaskModFunction) -> Mask:
        return Or(self, as_mask(other))

    def __invert__(self) -> Mask:
        return Not(self)

    __rand__, __ror__ = __and__, __or__


@dataclass(frozen=True, eq=False)
class _Pair(Mask):
    left: Mask
    right: Mask

    def objections(self, shape: tuple[int, int, int, int], device: torch.device) -> list[str]:
        return self.left.objections(shape, device) + self.right.objections(shape, device)

    @property
    def per_query(self) -> bool:
        return self.left.per_query or self.right.per_query


class And(_Pair):
    """What both rules allow."""

    def allowed(self, cells: Tile) -> Bool[Tensor, "..."]:
        return self.left.allowed(cells) & self.right.allowed(cells)

    def extent(self, cells: Tile) -> Span:
        return overlap(self.left.extent(cells), self.right.extent(cells))

    def certain(self, cells: Tile) -> Span:
        return overlap(self.left.certain(cells), self.right.certain(cells))

    def __repr__(self) -> str:
        return f"{self.left!r} & {self.right!r}"


class Or(_Pair):
    """What either rule allows."""

    def allowed(self, cells: Tile) -> Bool[Tensor, "..."]:
        return self.left.allowed(cells) | self.right.allowed(cells)

    def extent(self, cells: Tile) -> Span:
        spans = [span for span in (self.left.extent(cells), self.right.extent(cells)) if span[0] < span[1]]
        if not spans:
            return no_keys(cells)
        return min(start for start, _ in spans), max(stop for _, stop in spans)

    def certain(self, cells: Tile) -> Span:
        return max(self.left.certain(cells), self.right.certain(cells), key=_length)

    def __repr__(self) -> str:
        return f"({self.left!r} | {self.right!r})"


@dataclass(frozen=True, eq=False)
class Not(Mask):
    """What a rule forbids."""

    rule: Mask

    def allowed(self, cells: Tile) -> Bool[Tensor, "..."]:
        return ~self.rule.allowed(cells)

    def objections(self, shape: tuple[int, int, int, int], device: torch.device) -> list[str]:
        return self.rule.objections(shape, device)

    @property
    def per_query(self) -> bool:
        return self.rule.per_query

    def extent(self, cells: Tile) -> Span:
        before, after = _beside(cells, self.rule.certain(cells))
        return cells.keys if _length(before) and _length(after) else max(before, after, key=_length)

    def certain(self, cells: Tile) -> Span:
        return max(_beside(cells, self.rule.extent(cells)), key=_length)

    def __repr__(self) -> str:
        return f"~({self.rule!r})" if isinstance(self.rule, And) else f"~{self.rule!r}"


@dataclass(frozen=True, eq=False)
class DenseMask(Mask):
    """A mask given whole: bool, broadcastable to (batch, heads, queries, keys), True where a cell is allowed."""

    cells: Bool[Tensor, "..."]

    def __post_init__(self) -> None:
        if self.cells.dtype != torch.bool:
            hint = "; what is added to scores is a regard.Bias" if self.cells.is_floating_point() else ""
            raise InvalidType(
                f"mask: expected a bool tensor, True where a query may attend; got {self.cells.dtype}{hint}"
            )

    def __repr__(self) -> str:
        return f"Dense(bool {tuple(self.cells.shape)})"

    def allowed(self, cells: Tile) -> Bool[Tensor, "..."]:
        return cells.part_of(self.cells)

    def objections(self, shape: tuple[int, int, int, int], device: torch.device) -> list[str]:
        given = tuple(self.cells.shape)
        fits = len(given) <= 4 and all(
            mine in (1, theirs) for mine, theirs in zip(given[::-1], shape[::-1], strict=False)
        )
        wrong = [] if fits else [f"mask: {given} does not broadcast to (batch, heads, queries, keys) = {shape}"]
        return wrong + other_device(self.cells, device)

    @property
    def per_query(self) -> bool:
        return self.cells.ndim > 1 and self.cells.shape[-2] > 1


@dataclass(frozen=True, eq=False)
class MaskMod(Mask):
    """A function of indices, ``(batch, head, query, key) -> bool``, as FlexAttention's `mask_mod`.

    Args:
        function: Called with four int64 tensors that broadcast against each other, and must work cell by cell: in place
            of ``and``, ``or`` and ``not`` it uses ``&``, ``|`` and ``~``. The query is its number and not its position.
            Tensors that it reads from outside are neither moved by `to` nor watched for changes.

    Every cell is computed, also those that the rule forbids; combined with a rule that knows its range, as in
    ``Window(256, 0) & rule``, only those of the range.

    Example:
        >>> import regard, torch
        >>> x = torch.ones(1, 1, 4, 8)
        >>> W = regard.weights(x, x, mask=lambda batch, head, query, key: (query - key) % 2 == 0)
        >>> W[0, 0, 3]
        tensor([0.0000, 0.5000, 0.0000, 0.5000])
    """

    function: MaskModFunction

    def __repr__(self) -> str:
        return f"MaskMod({getattr(self.function, '__name__', type(self.function).__name__)})"

    def allowed(self, cells: Tile) -> Bool[Tensor, "..."]:
        return self.function(cells.sequence, cells.head, cells.query, cells.key)

    def objections(self, shape: tuple[int, int, int, int], device: torch.device) -> list[str]:
        if torch.compiler.is_compiling():  # which cannot look at what the function gives
            return []
        corners = [torch.tensor([0, size - 1], device=device) for size in shape]
        batch, heads, queries, keys = corners
        cells = Tile(batch, heads, queries, (0, shape[3]), 0, device, keys.expand(2, 2))
        found = self.allowed(cells)
        if not isinstance(found, Tensor) or found.dtype != torch.bool:
            came = str(found.dtype) if isinstance(found, Tensor) else type(found).__name__
            return [f"mask: {self!r} must give a bool tensor, but gave {came}"]
        vmap_by_loop = [self.function(*cell) for cell in torch.cartesian_prod(*corners).unbind()]
        if found.ndim > 4 or not torch.equal(found.expand(2, 2, 2, 2).flatten(), torch.stack(vmap_by_loop)):
            return [f"mask: {self!r} must work cell by cell, for index tensors that broadcast against each other"]
        return []


MaskLike = Mask | Bool[Tensor, "..."] | MaskModFunction | BlockMask
"""What becomes a mask: a rule, a bool tensor, a function of indices, FlexAttention's `BlockMask`."""


def as_mask(mask: MaskLike) -> Mask:
    """A rule from what a user gave.

    Raises:
        InvalidType: If it is none of `MaskLike`.
    """
    if isinstance(mask, Mask):
        return mask
    if isinstance(mask, Tensor):
        return DenseMask(mask)
    if isinstance(mask, BlockMask):
        from regard.ops.masks.convert import from_block_mask  # which is made of what is defined here

        return from_block_mask(mask)
    if callable(mask) and not isinstance(mask, type):
        return MaskMod(mask)
    if isinstance(mask, type) and issubclass(mask, Mask):
        raise InvalidType(f"mask: got the class {mask.__name__}; make one of it: {mask.__name__}(...)")
    raise InvalidType(
        f"mask: expected a bool tensor, a rule such as regard.Causal() or regard.Padding(lengths), or a function "
        f"(batch, head, query, key) -> bool; got {type(mask).__name__}"
    )


def no_keys(cells: Tile) -> Span:
    """An empty range."""
    return cells.keys[0], cells.keys[0]


def overlap(one: Span, other: Span) -> Span:
    """The keys that lie in both ranges."""
    start = max(one[0], other[0])
    return start, max(start, min(one[1], other[1]))


def other_device(tensor: Tensor, device: torch.device) -> list[str]:
    """An objection if the tensor lies elsewhere."""
    return (
        [] if tensor.device == device else [f"mask: lies on {tensor.device}, the query on {device}; move it with .to()"]
    )


def _length(span: Span) -> int:
    return span[1] - span[0]


def _beside(cells: Tile, span: Span) -> tuple[Span, Span]:
    """The keys before a range, and those after it."""
    (first, last), (start, stop) = cells.keys, span
    return (first, min(max(first, start), last)), (max(first, min(stop, last)), last)
