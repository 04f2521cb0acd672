"""Masks: which keys each query may attend to.

A mask says which cells of a tile are allowed. Two optional methods make it fast: `key_range` bounds the keys that any
row may see, so the rest is skipped; `full_key_range` gives keys that every row may see, so no masking is needed there.
A mask that is the same for all queries says so by `depends_on_query`, and SDPA then needs no dense mask.
Nothing has the size of the weight matrix. Masks combine with ``&``, ``|`` and ``~``.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, ClassVar, TypeVar
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from regard.checks import Checks, broadcastable_to, describe, warn
from regard.errors import InvalidArgument, InvalidType
from regard.ops.autograd import is_traced
from regard.ops.rules import Rule
from regard.ops.steps import Place, Step, with_four_axes
from regard.ops.tile import KeyRange, Shape, Tile

MaskModFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(b, h, q_idx, kv_idx) -> bool, FlexAttention's `mask_mod`."""


MaskOfClass = TypeVar("MaskOfClass", bound="Mask")


class Mask(Rule):
    """Base of all masks. A subclass defines `allowed`; `key_range` and `full_key_range` make it fast.

    A subclass that overrides `allowed` alone gets the slow, safe defaults of the others, never its parent's.
    """

    hints: ClassVar = {"allowed": ("key_range", "full_key_range", "depends_on_query", "steps")}

    def allowed(self, tile: Tile) -> Bool[Tensor, "..."]:
        """The cells that may be attended to: bool, broadcastable to (batch, heads, rows, keys)."""
        raise NotImplementedError(f"{type(self).__name__} must define allowed(tile)")

    def key_range(self, tile: Tile) -> KeyRange:
        """A range of keys outside of which no cell of the tile is allowed."""
        return tile.keys

    def full_key_range(self, tile: Tile) -> KeyRange:
        """A range of keys in which every cell of the tile is allowed; empty if none is known."""
        return tile.no_keys

    @property
    def depends_on_query(self) -> bool:
        """Whether queries may see different keys. False for a mask such as padding."""
        return True

    def summarize(self) -> Any:
        """What the two ranges need from the tensors' values; they get it by ``tile.summary(self)``."""
        return None

    def steps(self, place: Place) -> list[Step] | None:
        """The mask as steps in postfix order, for kernels in other languages; None if it cannot be written so.

        See `regard.ops.steps` for the kinds. Such a kernel then computes this mask without calling `allowed`.
        """
        return None

    def __and__(self, other: Mask | Tensor | MaskModFunction) -> Mask:
        return And(self, as_mask(other))

    def __or__(self, other: Mask | Tensor | MaskModFunction) -> Mask:
        return Or(self, as_mask(other))

    def __invert__(self) -> Mask:
        return Not(self)

    __rand__, __ror__ = __and__, __or__


class _Pair(Mask, abstract=True):
    left: Mask
    right: Mask

    def steps_of_both(self, place: Place, kind: str) -> list[Step] | None:
        """The steps of both masks, and the one that combines them."""
        left, right = self.left.steps(place), self.right.steps(place)
        return None if left is None or right is None else [*left, *right, Step(kind)]

    def check(self, checks: Checks, shape: Shape, head_dim: int, device: torch.device) -> None:
        self.left.check(checks, shape, head_dim, device)
        self.right.check(checks, shape, head_dim, device)


class And(_Pair):
    """Cells that both masks allow."""

    def allowed(self, tile: Tile) -> Bool[Tensor, "..."]:
        return self.left.allowed(tile) & self.right.allowed(tile)

    def key_range(self, tile: Tile) -> KeyRange:
        return self.left.key_range(tile).intersect(self.right.key_range(tile))

    def full_key_range(self, tile: Tile) -> KeyRange:
        return self.left.full_key_range(tile).intersect(self.right.full_key_range(tile))

    def steps(self, place: Place) -> list[Step] | None:
        return self.steps_of_both(place, "and")

    @property
    def depends_on_query(self) -> bool:
        return self.left.depends_on_query or self.right.depends_on_query

    def __repr__(self) -> str:
        return f"{self.left!r} & {self.right!r}"


class Or(_Pair):
    """Cells that either mask allows."""

    def allowed(self, tile: Tile) -> Bool[Tensor, "..."]:
        return self.left.allowed(tile) | self.right.allowed(tile)

    def key_range(self, tile: Tile) -> KeyRange:
        ranges = [keys for keys in (self.left.key_range(tile), self.right.key_range(tile)) if keys.start < keys.stop]
        if not ranges:
            return tile.no_keys
        return KeyRange(min(keys.start for keys in ranges), max(keys.stop for keys in ranges))

    def full_key_range(self, tile: Tile) -> KeyRange:
        return max(self.left.full_key_range(tile), self.right.full_key_range(tile), key=_width)

    def steps(self, place: Place) -> list[Step] | None:
        return self.steps_of_both(place, "or")

    @property
    def depends_on_query(self) -> bool:
        return self.left.depends_on_query or self.right.depends_on_query

    def __repr__(self) -> str:
        return f"({self.left!r} | {self.right!r})"


class Not(Mask):
    """Cells that a mask forbids."""

    mask: Mask

    def allowed(self, tile: Tile) -> Bool[Tensor, "..."]:
        return ~self.mask.allowed(tile)

    def key_range(self, tile: Tile) -> KeyRange:
        before, after = _outside(tile, self.mask.full_key_range(tile))
        return tile.keys if before.width and after.width else max(before, after, key=_width)

    def full_key_range(self, tile: Tile) -> KeyRange:
        return max(_outside(tile, self.mask.key_range(tile)), key=_width)

    def steps(self, place: Place) -> list[Step] | None:
        steps = self.mask.steps(place)
        return None if steps is None else [*steps, Step("not")]

    @property
    def depends_on_query(self) -> bool:
        return self.mask.depends_on_query

    def check(self, checks: Checks, shape: Shape, head_dim: int, device: torch.device) -> None:
        self.mask.check(checks, shape, head_dim, device)

    def __repr__(self) -> str:
        return f"~({self.mask!r})" if isinstance(self.mask, And) else f"~{self.mask!r}"


class DenseMask(Mask):
    """A mask held as a tensor: bool, broadcastable to (batch, heads, queries, keys), True where a query may attend.

    Raises:
        InvalidType: If the tensor is not bool.
    """

    tensor: Bool[Tensor, "..."]

    def __post_init__(self) -> None:
        is_tensor = isinstance(self.tensor, Tensor)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not is_tensor or self.tensor.dtype != torch.bool:
            hint = ""
            if is_tensor and self.tensor.is_floating_point():
                hint = (
                    "; pass mask == 0 if it contains only 0 and -inf; to add other numbers to the scores, call "
                    "regard.attend with score=regard.ScaledDotProduct() + regard.Bias(mask)"
                )
            elif is_tensor:
                hint = "; pass mask.bool()"
            raise InvalidType(
                f"mask: expected a bool tensor, True where a query may attend, got {describe(self.tensor)}{hint}"
            )

    def allowed(self, tile: Tile) -> Bool[Tensor, "..."]:
        return tile.slice(self.tensor)

    def steps(self, place: Place) -> list[Step]:
        return [Step("dense", tensors=lambda: (with_four_axes(self.tensor),))]

    @property
    def depends_on_query(self) -> bool:
        return self.tensor.ndim > 1 and self.tensor.shape[-2] > 1

    def check(self, checks: Checks, shape: Shape, head_dim: int, device: torch.device) -> None:
        actual = tuple(self.tensor.shape)
        if actual == (shape[0], shape[3]) and shape[0] == shape[2] > 1 and not is_traced():
            warn(
                f"mask: {actual} is taken as (queries, keys); if it is (batch, keys), as an attention_mask, pass "
                "regard.Padding(mask)"
            )
        hint = _missing_axes_hint(actual, shape)
        checks.broadcastable("mask", self.tensor, "(batch, heads, queries, keys)", shape, hint)
        checks.device("mask", self.tensor, device)


class MaskMod(Mask):
    """A mask written as a function of indices, ``(b, h, q_idx, kv_idx) -> bool``: FlexAttention's `mask_mod`.

    Args:
        mask_mod: Called with four int64 tensors that broadcast against each other. It must work elementwise: ``&``,
            ``|`` and ``~`` instead of ``and``, ``or`` and ``not``. q_idx is the query's index, not its position.
            Tensors that it captures are not moved by `to`, and changes to them are not noticed.

    Memory:
        Every cell is computed, forbidden ones too. Combine it with a mask that knows its range, as in
        ``Window(256, 0) & mask_mod``, to compute that range only.

    Examples:
        >>> import regard, torch
        >>> x = torch.ones(1, 1, 4, 8)
        >>> W = regard.weights(x, x, mask=lambda b, h, q_idx, kv_idx: (q_idx - kv_idx) % 2 == 0)
        >>> W[0, 0, 3]
        tensor([0.0000, 0.5000, 0.0000, 0.5000])
    """

    mask_mod: MaskModFunction
    has_python_callable = True

    def __repr__(self) -> str:
        return f"MaskMod({getattr(self.mask_mod, '__name__', type(self.mask_mod).__name__)})"

    def allowed(self, tile: Tile) -> Bool[Tensor, "..."]:
        try:
            return self.mask_mod(tile.b, tile.h, tile.q_idx, tile.kv_idx)
        except (TypeError, RuntimeError, IndexError) as error:
            raise InvalidArgument(
                f"mask: {self!r} failed with {type(error).__name__}: {error}; it is called with four int64 tensors, "
                "(b, h, q_idx, kv_idx), and must work elementwise: use & | ~ instead of and, or, not"
            ) from error

    def check(self, checks: Checks, shape: Shape, head_dim: int, device: torch.device) -> None:
        if is_traced():  # the values cannot be looked at while tracing
            return
        try:
            checked = _CHECKED.setdefault(self.mask_mod, set())
        except TypeError:  # a callable that cannot be a key is checked at every call
            checked = set()
        varied = tuple(size > 1 for size in shape)  # along an axis of size 1, every function is elementwise
        if varied not in checked and self._is_elementwise(checks, shape, device):
            checked.add(varied)

    def _is_elementwise(self, checks: Checks, shape: Shape, device: torch.device) -> bool:
        """Compare the corners of the matrix, computed together, with the same cells one by one."""
        corners = [torch.tensor([0, size - 1], device=device) for size in shape]
        batch, heads, queries, keys = corners
        tile = Tile(batch, heads, queries, KeyRange(0, shape[3]), 0, device, keys.expand(2, 2))
        allowed = MaskMod.allowed(self, tile)
        if not isinstance(allowed, Tensor) or allowed.dtype != torch.bool:  # pyright: ignore[reportUnnecessaryIsInstance]
            return checks.fail_type(f"mask: expected {self!r} to return a bool tensor, got {describe(allowed)}")
        cells = [self.mask_mod(*cell) for cell in torch.cartesian_prod(*corners).unbind()]
        corner_shape = (2, 2, 2, 2)
        if not broadcastable_to(allowed, corner_shape) or not torch.equal(
            allowed.expand(corner_shape).flatten(), torch.stack(cells)
        ):
            return checks.fail(f"mask: expected {self!r} to work elementwise on index tensors that broadcast")
        return True


_CHECKED: WeakKeyDictionary[Any, set[tuple[bool, ...]]] = WeakKeyDictionary()
"""The sets of axes along which a function is known to be elementwise: to find out takes 17 calls."""

MaskLike = Mask | Bool[Tensor, "..."] | MaskModFunction | BlockMask
"""What `mask=` takes: a mask, a bool tensor, a function of indices, FlexAttention's `BlockMask`."""


def as_mask(mask: MaskLike) -> Mask:
    """The mask that an argument means.

    Raises:
        InvalidType: If it is not one of `MaskLike`.
    """
    if isinstance(mask, Mask):
        return mask
    if isinstance(mask, Tensor):
        return DenseMask(mask)
    if isinstance(mask, BlockMask):
        from regard.ops.masks.convert import from_block_mask  # which builds on this module

        return from_block_mask(mask)
    if callable(mask) and not isinstance(mask, (type, Rule)):  # a score is callable, too
        return MaskMod(mask)
    if isinstance(mask, type) and issubclass(mask, Mask):
        raise InvalidType(f"mask: expected an instance, got the class {mask.__name__}; use {mask.__name__}(...)")
    raise InvalidType(
        "mask: expected a bool tensor, a mask such as regard.Causal() or regard.Padding(lengths), or a function "
        f"(b, h, q_idx, kv_idx) -> bool, got {type(mask).__name__}"
    )


def find_part(mask: Mask | None, cls: type[MaskOfClass]) -> MaskOfClass | None:
    """The mask, or one that it is combined with by ``&``, of exactly this class, as a subclass is another mask."""
    if type(mask) is And:
        left = find_part(mask.left, cls)
        return find_part(mask.right, cls) if left is None else left
    return mask if type(mask) is cls else None


_width = attrgetter("width")


def _outside(tile: Tile, keys: KeyRange) -> tuple[KeyRange, KeyRange]:
    """The tile's keys before a range, and those after it."""
    return tile.clip(tile.keys.start, keys.start), tile.clip(keys.stop, tile.keys.stop)


def _missing_axes_hint(actual: tuple[int, ...], shape: Shape) -> str:
    """What to write where a mask of (batch, keys) or (batch, queries, keys) lacks axes; else nothing."""
    if len(actual) == 2 and actual == (shape[0], shape[3]):
        return "; add head and query axes: mask[:, None, None, :]"
    if len(actual) == 3 and actual == (shape[0], *shape[2:]):
        return "; add a head axis: mask[:, None]"
    return ""
