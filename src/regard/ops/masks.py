"""Masks as index rules: which key may a query see? Nothing here has the size of the weight matrix.

A rule answers three questions about a span of rows: which cells are allowed, outside which keys none is (so that they
are not computed), and inside which keys all are (so that nothing is masked there). Rules combine with ``&``, ``|`` and
``~``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Integer
from torch import Tensor

from regard.errors import InvalidType
from regard.ops.cells import Cells, Span


class Mask:
    """Base of all masks. A new rule needs `allowed`; `extent` and `certain` make it fast."""

    def allowed(self, cells: Cells) -> Bool[Tensor, "..."]:
        """Which cells may be attended to: bool, broadcastable to (batch, heads, rows, keys)."""
        raise NotImplementedError

    def extent(self, cells: Cells) -> Span:
        """Keys outside of which no cell is allowed."""
        return cells.keys

    def certain(self, cells: Cells) -> Span:
        """Keys inside of which every cell is allowed; an empty range where that is not known."""
        return cells.keys[0], cells.keys[0]

    def objections(self, shape: tuple[int, int, int, int], device: torch.device) -> list[str]:
        """Why the mask does not fit a weight matrix of this shape on this device."""
        return []

    def to(self, device: torch.device) -> Mask:
        """The same mask with its tensors on a device."""
        return self

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that the rule reads, so that a change in place can be seen."""
        return ()

    @property
    def per_query(self) -> bool:
        """Whether the rule says different things to different queries."""
        return True

    def __and__(self, other: Mask | Tensor) -> Mask:
        return And(self, as_mask(other))

    def __or__(self, other: Mask | Tensor) -> Mask:
        return Or(self, as_mask(other))

    def __invert__(self) -> Mask:
        return Not(self)

    __rand__, __ror__ = __and__, __or__


@dataclass(frozen=True, eq=False)
class Window(Mask):
    """A band: a query sees keys from ``position - left`` to ``position + right``.

    Args:
        left: How many keys before its own position a query sees; None is no bound.
        right: How many keys after it; None is no bound.

    Raises:
        InvalidType: If a bound is neither None nor an integer. Negative bounds are allowed: ``Window(None, -1)`` is
            the past alone.

    Memory: A window of w keys computes O(queries · (w + 128)) cells, and no more.

    Example:
        >>> import regard, torch
        >>> x = torch.ones(1, 1, 5, 4)
        >>> regard.weights(x, x, mask=regard.Window(1, 0))[0, 0]
        tensor([[1.0000, 0.0000, 0.0000, 0.0000, 0.0000],
                [0.5000, 0.5000, 0.0000, 0.0000, 0.0000],
                [0.0000, 0.5000, 0.5000, 0.0000, 0.0000],
                [0.0000, 0.0000, 0.5000, 0.5000, 0.0000],
                [0.0000, 0.0000, 0.0000, 0.5000, 0.5000]])
    """

    left: int | None
    right: int | None

    def __post_init__(self) -> None:
        for name in ("left", "right"):
            bound = getattr(self, name)
            if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int)):
                raise InvalidType(f"Window: {name} is a number of keys (int) or None for no bound, not {bound!r}")

    def allowed(self, cells: Cells) -> Bool[Tensor, "..."]:
        position = cells.positions[:, None]
        seen = torch.ones(1, dtype=torch.bool, device=cells.device)
        if self.left is not None:
            seen = cells.key >= position - self.left
        if self.right is not None:
            seen = seen & (cells.key <= position + self.right)
        return seen

    def extent(self, cells: Cells) -> Span:
        return self._clip(cells, *cells.ends)

    def certain(self, cells: Cells) -> Span:
        return self._clip(cells, *cells.ends[::-1])

    def _clip(self, cells: Cells, from_position: int, to_position: int) -> Span:
        """The keys from the left end of one position's window to the right end of another's."""
        start, stop = cells.keys
        lowest = start if self.left is None else min(max(start, from_position - self.left), stop)
        highest = stop if self.right is None else max(min(stop, to_position + self.right + 1), start)
        return lowest, max(lowest, highest)


class Causal(Window):
    """A query sees the keys up to its own position: key j ≤ position, where query i stands at i + offset.

    Memory: With as many queries as keys, half of the cells are computed.

    Example:
        >>> import regard, torch
        >>> x = torch.ones(1, 1, 3, 4)
        >>> regard.weights(x, x, mask=regard.Causal())[0, 0]
        tensor([[1.0000, 0.0000, 0.0000],
                [0.5000, 0.5000, 0.0000],
                [0.3333, 0.3333, 0.3333]])
    """

    def __init__(self) -> None:
        super().__init__(None, 0)

    def __repr__(self) -> str:
        return "Causal()"


@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """Keys that are padding are seen by nobody.

    Args:
        keys: Either the lengths, (batch,) integers: key j of sequence b is real where j < lengths[b]; or a bool tensor,
            (batch, keys), True where the key is real.

    Raises:
        InvalidType: If it is neither.

    Example:
        >>> import regard, torch
        >>> x = torch.ones(2, 1, 3, 4)
        >>> regard.weights(x, x, mask=regard.Padding(torch.tensor([1, 2])))[:, 0, 0]
        tensor([[1.0000, 0.0000, 0.0000],
                [0.5000, 0.5000, 0.0000]])
    """

    keys: Integer[Tensor, " batch"] | Bool[Tensor, "batch keys"]

    def __post_init__(self) -> None:
        dtype = self.keys.dtype if isinstance(self.keys, Tensor) else type(self.keys).__name__
        integer = isinstance(self.keys, Tensor) and not (self.keys.is_floating_point() or self.keys.is_complex())
        if not integer or self.keys.ndim != (2 if self.keys.dtype == torch.bool else 1):
            came = f"{dtype} {tuple(self.keys.shape)}" if isinstance(self.keys, Tensor) else f"{dtype}"
            raise InvalidType(
                f"Padding: expected lengths (batch,) as integers, or a bool tensor (batch, keys); got {came}"
            )

    def __repr__(self) -> str:
        return f"Padding({'lengths' if self.lengths else 'bool'} {tuple(self.keys.shape)})"

    @property
    def lengths(self) -> bool:
        """Whether the rule holds lengths and not a bool for each key."""
        return self.keys.dtype != torch.bool

    def allowed(self, cells: Cells) -> Bool[Tensor, "batch 1 1 keys"]:
        rows = self.keys[cells.batch]
        seen = cells.key < rows[:, None] if self.lengths else rows[:, slice(*cells.keys)]
        return seen[:, None, None, :]  # (batch, 1, 1, keys)

    @property
    def _spans(self) -> tuple[list[int], list[int], list[int]]:
        """For each sequence: its first real key, one past the last, and how many keys are real from its start on."""
        version = object() if self.keys.is_inference() else self.keys._version
        if self.__dict__.get("_known", (None,))[0] != version:  # read off the device once, and again after a change
            object.__setattr__(self, "_known", (version, self._read_spans()))
        return self.__dict__["_known"][1]

    def _read_spans(self) -> tuple[list[int], list[int], list[int]]:
        if self.lengths:
            lengths = self.keys.tolist()
            return [0] * len(lengths), lengths, lengths
        count = torch.arange(1, self.keys.shape[1] + 1, device=self.keys.device)
        ends = (self.keys * count).amax(1)
        starts = self.keys.to(torch.uint8).argmax(1)
        return starts.tolist(), ends.tolist(), self.keys.cumprod(1).sum(1).tolist()

    def extent(self, cells: Cells) -> Span:
        starts, stops, _ = self._spans
        start = max(cells.keys[0], min(starts[i] for i in cells.sequences))
        return start, max(start, min(cells.keys[1], max(stops[i] for i in cells.sequences)))

    def certain(self, cells: Cells) -> Span:
        _, _, prefix = self._spans
        start, stop = cells.keys
        return start, max(start, min(stop, min(prefix[i] for i in cells.sequences)))

    def objections(self, shape: tuple[int, int, int, int], device: torch.device) -> list[str]:
        batch, _, _, keys = shape
        expected = (batch,) if self.lengths else (batch, keys)
        found = []
        if tuple(self.keys.shape) != expected:
            what = "lengths (batch,)" if self.lengths else "bool (batch, keys)"
            found.append(f"mask: Padding holds {what} = {tuple(self.keys.shape)}, expected {expected}")
        return found + _other_device(self.keys, device)

    def to(self, device: torch.device) -> Mask:
        return Padding(self.keys.to(device))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.keys,)

    @property
    def per_query(self) -> bool:
        return False


@dataclass(frozen=True, eq=False)
class Dense(Mask):
    """A mask given whole: bool, broadcastable to (batch, heads, queries, keys), True where a cell is allowed."""

    cells: Bool[Tensor, "..."]

    def __post_init__(self) -> None:
        if self.cells.dtype != torch.bool:
            raise InvalidType(f"mask: expected a bool tensor, True where a query may attend; got {self.cells.dtype}")

    def __repr__(self) -> str:
        return f"Dense(bool {tuple(self.cells.shape)})"

    def allowed(self, cells: Cells) -> Bool[Tensor, "..."]:
        whole = self.cells.reshape((1,) * (4 - self.cells.ndim) + tuple(self.cells.shape))
        for axis, index in ((0, cells.batch), (1, cells.heads), (2, cells.rows)):
            if whole.shape[axis] > 1:
                whole = whole[(slice(None),) * axis + (index,)]
        return whole[..., slice(*cells.keys)] if whole.shape[3] > 1 else whole

    def objections(self, shape: tuple[int, int, int, int], device: torch.device) -> list[str]:
        given = tuple(self.cells.shape)
        fits = len(given) <= 4 and all(
            mine in (1, theirs) for mine, theirs in zip(given[::-1], shape[::-1], strict=False)
        )
        wrong = [] if fits else [f"mask: {given} does not broadcast to (batch, heads, queries, keys) = {shape}"]
        return wrong + _other_device(self.cells, device)

    def to(self, device: torch.device) -> Mask:
        return Dense(self.cells.to(device))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.cells,)

    @property
    def per_query(self) -> bool:
        return self.cells.ndim > 1 and self.cells.shape[-2] > 1


@dataclass(frozen=True, eq=False)
class _Pair(Mask):
    left: Mask
    right: Mask

    def objections(self, shape: tuple[int, int, int, int], device: torch.device) -> list[str]:
        return self.left.objections(shape, device) + self.right.objections(shape, device)

    def to(self, device: torch.device) -> Mask:
        return type(self)(self.left.to(device), self.right.to(device))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.left.tensors + self.right.tensors

    @property
    def per_query(self) -> bool:
        return self.left.per_query or self.right.per_query


class And(_Pair):
    """What both rules allow."""

    def allowed(self, cells: Cells) -> Bool[Tensor, "..."]:
        return self.left.allowed(cells) & self.right.allowed(cells)

    def extent(self, cells: Cells) -> Span:
        return _overlap(self.left.extent(cells), self.right.extent(cells))

    def certain(self, cells: Cells) -> Span:
        return _overlap(self.left.certain(cells), self.right.certain(cells))

    def __repr__(self) -> str:
        return f"{self.left!r} & {self.right!r}"


class Or(_Pair):
    """What either rule allows."""

    def allowed(self, cells: Cells) -> Bool[Tensor, "..."]:
        return self.left.allowed(cells) | self.right.allowed(cells)

    def extent(self, cells: Cells) -> Span:
        spans = [span for span in (self.left.extent(cells), self.right.extent(cells)) if span[0] < span[1]]
        if not spans:
            return cells.keys[0], cells.keys[0]
        return min(start for start, _ in spans), max(stop for _, stop in spans)

    def certain(self, cells: Cells) -> Span:
        return max(self.left.certain(cells), self.right.certain(cells), key=_length)

    def __repr__(self) -> str:
        return f"({self.left!r} | {self.right!r})"


@dataclass(frozen=True, eq=False)
class Not(Mask):
    """What a rule forbids."""

    rule: Mask

    def allowed(self, cells: Cells) -> Bool[Tensor, "..."]:
        return ~self.rule.allowed(cells)

    def objections(self, shape: tuple[int, int, int, int], device: torch.device) -> list[str]:
        return self.rule.objections(shape, device)

    def to(self, device: torch.device) -> Mask:
        return Not(self.rule.to(device))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.rule.tensors

    @property
    def per_query(self) -> bool:
        return self.rule.per_query

    def extent(self, cells: Cells) -> Span:
        before, after = _beside(cells, self.rule.certain(cells))
        return cells.keys if _length(before) and _length(after) else max(before, after, key=_length)

    def certain(self, cells: Cells) -> Span:
        return max(_beside(cells, self.rule.extent(cells)), key=_length)

    def __repr__(self) -> str:
        return f"~({self.rule!r})" if isinstance(self.rule, And) else f"~{self.rule!r}"


def as_mask(mask: Mask | Bool[Tensor, "..."]) -> Mask:
    """A rule from what a user gave: a rule, or a bool tensor.

    Raises:
        InvalidType: If it is neither.
    """
    if isinstance(mask, Mask):
        return mask
    if isinstance(mask, Tensor):
        return Dense(mask)
    raise InvalidType(
        f"mask: expected a bool tensor or a rule such as regard.Causal() or regard.Padding(lengths), "
        f"got {type(mask).__name__}"
    )


def _length(span: Span) -> int:
    return span[1] - span[0]


def _beside(cells: Cells, span: Span) -> tuple[Span, Span]:
    """The keys before a range, and those after it."""
    (first, last), (start, stop) = cells.keys, span
    return (first, min(max(first, start), last)), (max(first, min(stop, last)), last)


def _overlap(one: Span, other: Span) -> Span:
    start = max(one[0], other[0])
    return start, max(start, min(one[1], other[1]))


def _other_device(tensor: Tensor, device: torch.device) -> list[str]:
    return (
        [] if tensor.device == device else [f"mask: lies on {tensor.device}, the query on {device}; move it with .to()"]
    )
