"""The request: queries, keys and the rules between them, checked once, here. Kernels serve requests."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from sys import float_info

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.errors import InvalidArgument, InvalidType, raise_problems
from regard.ops.masks import Mask, MaskLike, as_mask
from regard.ops.measures import Shape
from regard.ops.scores import Score, as_score
from regard.ops.tile import Index, Tile
from regard.ops.tree import broadcasts

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

_FAR = 2**62  # positions beyond would leave int64 where a window's ends are added to them

_AXES = {
    "query": "(batch, heads, queries, head_dim)",
    "key": "(batch, kv_heads, keys, head_dim)",
    "value": "(batch, value_heads, keys, value_dim)",
}


@dataclass(eq=False)  # not frozen, as each call makes one, at three times the price
class AttentionRequest:
    """All that the weight matrix follows from. Made by `make_request`, which makes every check.

    Args:
        query: (batch, heads, queries, head_dim).
        key: (batch, kv_heads, keys, head_dim).
        mask: The rule for which cells are allowed; None allows all.
        score: The rule for scores.
        scale: What raw scores are multiplied with.
        offset: Query i stands at position i + offset.
        batch: (batch,) Which sequences of the mask and the score these are; None: all, in order.
        heads: (heads,) Which heads of the mask and the score these are; None: all, in order.
        rows: (queries,) Which queries of the mask and the score these are; None: all, in order.
    """

    query: Float[Tensor, "batch heads queries head_dim"]
    key: Float[Tensor, "batch kv_heads keys head_dim"]
    mask: Mask | None
    score: Score
    scale: float
    offset: int
    batch: Int[Tensor, " batch"] | None = None
    heads: Int[Tensor, " heads"] | None = None
    rows: Int[Tensor, " queries"] | None = None

    @property
    def shape(self) -> Shape:
        """(batch, heads, queries, keys)."""
        batch, heads, queries, _ = self.query.shape
        return batch, heads, queries, self.key.shape[2]

    @property
    def dtype(self) -> torch.dtype:
        """What sums are kept in: float64 for float64, else float32."""
        return torch.float64 if self.query.dtype == torch.float64 else torch.float32

    def cells(self, batch: Index, heads: Index, rows: Index, columns: Tensor | None = None) -> Tile:
        """The rectangle of the matrix at these entries, over all keys or, by row, over those in `columns`."""
        return Tile(
            batch if self.batch is None else self.batch[batch],
            heads if self.heads is None else self.heads[heads],
            rows if self.rows is None else self.rows[rows],
            (0, self.key.shape[2]),
            self.offset,
            self.query.device,
            columns,
            columns is None,
        )

    def allowed(self, cells: Tile) -> Bool[Tensor, "..."]:
        """Which of these cells the mask allows.

        Raises:
            InvalidArgument: If the rule gives something else.
        """
        assert self.mask is not None
        found = self.mask.allowed(cells)
        if not isinstance(found, Tensor) or found.dtype != torch.bool or not broadcasts(found, cells.shape):
            raise _wrong_answer(f"mask {type(self.mask).__name__}: allowed()", "a bool tensor", cells.shape, found)
        return found

    def scores(
        self,
        query: Float[Tensor, "batch heads rows head_dim"],
        key: Float[Tensor, " batch #heads *rows keys head_dim"],
        cells: Tile,
    ) -> Float[Tensor, "..."]:
        """The scores of these cells, from their queries and keys; see `Score`.

        Raises:
            InvalidArgument: If the rule gives something else.
        """
        found = self.score(query, key, self.scale, cells)
        shape = *query.shape[:3], cells.width
        if not isinstance(found, Tensor) or not found.is_floating_point() or not broadcasts(found, shape):
            raise _wrong_answer(f"score {type(self.score).__name__}: a call", "a floating-point tensor", shape, found)
        return found

    def at(
        self, batch: Tensor | None = None, heads: Tensor | None = None, rows: Tensor | None = None
    ) -> AttentionRequest:
        """The same matrix for some of its sequences, heads and queries; None keeps all."""
        query, key, origin = self.query, self.key, list(self.origin)
        group = query.shape[1] // key.shape[1]
        for axis, index in enumerate((batch, heads, rows)):
            if index is None:
                continue
            query = query.index_select(axis, index)
            if axis < 2:
                key = key.index_select(axis, index // group if axis == 1 else index)
            before = origin[axis]
            origin[axis] = index if before is None else before[index]
        return replace(self, query=query, key=key, batch=origin[0], heads=origin[1], rows=origin[2])

    @property
    def origin(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Which sequences, heads and queries of the first request these are."""
        return self.batch, self.heads, self.rows


def make_request(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    *,
    value: Float[Tensor, "batch value_heads keys value_dim"] | None = None,
    mask: MaskLike | None = None,
    score: Score | str | None = None,
    scale: float | None = None,
    offset: int | None = None,
) -> AttentionRequest:
    """Check everything, fill in the defaults, and make the request.

    Raises:
        InvalidType: If query, key or value are no tensors, or mask, score or offset are of no known type.
        InvalidArgument: If shapes, dtypes, devices or head counts do not fit; all objections at once.
    """
    given = {"query": query, "key": key} if value is None else {"query": query, "key": key, "value": value}
    raise_problems(
        [f"{n}: expected a tensor, got {type(t).__name__}" for n, t in given.items() if not isinstance(t, Tensor)],
        InvalidType,
    )
    rule = None if mask is None else as_mask(mask)
    score = as_score(score)
    if scale is not None and (isinstance(scale, bool) or not isinstance(scale, (int, float))):
        raise InvalidType(f"scale: expected a number, got {scale!r}")
    if scale is not None and not abs(scale) <= float_info.max:  # which is false of NaN too
        raise InvalidArgument(f"scale: expected a finite number, got {scale}")
    if offset is not None and (isinstance(offset, bool) or not _is_index(offset)):
        raise InvalidType(f"offset: expected an int (query i stands at position i + offset), got {offset!r}")
    if offset is not None and not -_FAR < offset < _FAR:
        raise InvalidArgument(f"offset: expected a position between −2⁶² and 2⁶², got {offset}")
    objections = _shape_objections(given)
    if not objections:
        batch, heads, queries, head_dim = query.shape
        shape = batch, heads, queries, key.shape[2]
        objections += [] if rule is None else rule.objections(shape, query.device)
        objections += score.objections(shape, head_dim, query.device)
    raise_problems(objections, InvalidArgument)
    if scale is None:
        scale = score.default_scale(query.shape[3])
        scale = 1.0 if scale is None else scale
    offset = key.shape[2] - query.shape[2] if offset is None else operator.index(offset)
    return AttentionRequest(query, key, rule, score, scale, offset)


def _wrong_answer(whose: str, expected: str, shape: tuple[int, ...], found: object) -> InvalidArgument:
    came = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
    return InvalidArgument(
        f"{whose} must give {expected} that broadcasts to (batch, heads, rows, keys) = {shape} of a block, but gave "
        f"{came}"
    )


def _is_index(thing: object) -> bool:
    try:
        operator.index(thing)  # pyright: ignore[reportArgumentType] - which is the question
    except TypeError:
        return False
    return True


def _shape_objections(given: dict[str, Tensor]) -> list[str]:
    query = given["query"]
    whole, dtype, device = query.shape, query.dtype, query.device
    found = []
    for name, tensor in given.items():
        shape = tensor.shape
        if len(shape) != 4:
            found.append(f"{name}: expected four axes {_AXES[name]}, got {tuple(shape)}")
        elif 0 in shape:
            found.append(f"{name}: {_AXES[name]} = {tuple(shape)} has an empty axis; each needs at least one entry")
        if tensor.dtype not in DTYPES:
            known = ", ".join(str(each).removeprefix("torch.") for each in DTYPES)
            found.append(f"{name}: expected one of {known}, got {tensor.dtype}")
        elif tensor.dtype != dtype:
            found.append(f"{name}: is {tensor.dtype}, the query {dtype}; bring them to one dtype")
        if tensor.device != device:
            found.append(f"{name}: lies on {tensor.device}, the query on {device}; move it with .to()")
    if found and any(tensor.ndim != 4 for tensor in given.values()):
        return found
    batch, all_heads, _, head_dim = whole
    keys = given["key"].shape[2]
    for name, tensor in given.items():
        own, heads, length, width = tensor.shape
        if own != batch:
            found.append(f"{name}: has batch {own}, the query {batch}")
        if heads and all_heads % heads:
            found.append(f"{name}: has {heads} heads, which do not divide the query's {all_heads}")
        if name == "key" and width != head_dim:
            found.append(f"key: has head_dim {width}, the query {head_dim}")
        if name == "value" and length != keys:
            found.append(f"value: has {length} keys, the key {keys}")
    return found
