"""AttentionRequest: query, key, mask and score of a weight matrix, validated once. Kernels serve requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.checks import Checks, broadcastable_to, describe
from regard.errors import InvalidArgument
from regard.ops.masks.base import Mask, MaskLike, as_mask
from regard.ops.scores.base import Key, Query, Score, ScoreLike, as_score
from regard.ops.scores.dot_product import ScaledDotProduct
from regard.ops.steps import Place
from regard.ops.tile import Index, KeyRange, Shape, Tile
from regard.ops.tree import Tree, map_float_tensors, tensors_in

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

DEFAULT_SCORE = ScaledDotProduct()

MAX_OFFSET = 2**62
"""Positions stay below this, so that a window's limits can be added to them in int64."""

Entries = Tensor | range
"""Entries of an axis, in any order or adjacent."""

_AXES = {
    "query": "(batch, heads, queries, head_dim)",
    "key": "(batch, kv_heads, keys, head_dim)",
    "value": "(batch, value_heads, keys, value_dim)",
}


@dataclass(eq=False)  # not frozen: every call makes one, and frozen ones take three times as long
class AttentionRequest:
    """Everything that defines a weight matrix. Made by `make_request`, which validates it.

    Args:
        query: (batch, heads, queries, head_dim).
        key: (batch, kv_heads, keys, head_dim).
        mask: Which keys each query may attend to; None for all.
        score: What softmax is applied to.
        scale: Factor of the raw scores.
        offset: Query i has position i + offset.
        batch: (batch,) Which batch entries of mask and score these are. None: all, in order.
        heads: (heads,) Which heads of mask and score these are. None: all, in order.
        rows: (queries,) Which queries of mask and score these are. None: all, in order.
        full_shape: The shape that mask and score were made for, if `at` has selected a part of it; else None.
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
    full_shape: Shape | None = None
    is_tree_node: ClassVar[bool] = True

    @property
    def shape(self) -> Shape:
        """(batch, heads, queries, keys)."""
        batch, heads, queries, _ = self.query.shape
        return batch, heads, queries, self.key.shape[2]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights, scores and sums: float64 for float64, else float32."""
        return torch.float64 if self.query.dtype == torch.float64 else torch.float32

    @property
    def place(self) -> Place:
        """Where mask and score apply, in the indices that they were made for."""
        shape = self.shape if self.full_shape is None else self.full_shape
        return Place(shape, self.offset, None, self.query.device, self.dtype)

    @property
    def local_place(self) -> Place:
        """Where measures apply, in the indices of the matrix; positions are those of its queries."""
        return Place(self.shape, self.offset, self.rows, self.query.device, self.dtype)

    def tile(
        self,
        batch: Index,
        heads: Index,
        rows: Index,
        columns: Tensor | None = None,
        summaries: dict[int, Any] | None = None,
    ) -> Tile:
        """The tile of these entries over all keys or, by row, over those in `columns`."""
        return Tile(
            batch if self.batch is None else self.batch[batch],
            heads if self.heads is None else self.heads[heads],
            rows if self.rows is None else self.rows[rows],
            KeyRange(0, self.key.shape[2]),
            self.offset,
            self.query.device,
            columns,
            summaries={} if summaries is None else summaries,
        )

    def allowed(self, tile: Tile) -> Bool[Tensor, "..."]:
        """The cells of a tile that the mask allows.

        Raises:
            InvalidArgument: If the mask returns anything but a bool tensor that broadcasts to them.
        """
        assert self.mask is not None
        allowed = self.mask.allowed(tile)
        if not isinstance(allowed, Tensor) or allowed.dtype != torch.bool or not broadcastable_to(allowed, tile.shape):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise _wrong_result(f"mask {type(self.mask).__name__}: allowed()", "a bool tensor", tile.shape, allowed)
        return allowed

    def scores(self, query: Query, key: Key, tile: Tile) -> Float[Tensor, "..."]:
        """The scores of a tile from its queries and keys, in the dtype of sums; see `Score`.

        Raises:
            InvalidArgument: If the score returns anything but a floating-point tensor that broadcasts to them.
        """
        scores = self.score(query, key, self.scale, tile)
        shape = *query.shape[:3], tile.width
        if not isinstance(scores, Tensor) or not scores.is_floating_point() or not broadcastable_to(scores, shape):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise _wrong_result(f"score {type(self.score).__name__}: a call", "a floating-point tensor", shape, scores)
        return scores.to(self.dtype)

    def masked_scores(self, query: Query, key: Key, tile: Tile) -> Float[Tensor, "..."]:
        """The scores of a tile, −∞ where masked."""
        scores = self.scores(query, key, tile)
        return scores if self.mask is None else scores.masked_fill(~self.allowed(tile), -torch.inf)

    def scores_of_keys(self, keys: KeyRange) -> Float[Tensor, "batch heads queries keys"]:
        """The scores of a range of keys for all queries, (batch, heads, queries, keys), −∞ where masked.

        Memory:
            O(queries * keys in the range), times the score's workspace.
        """
        batch, heads, queries, _ = self.query.shape
        kv_heads = self.key.shape[1]
        group = heads // kv_heads
        parts: list[Tensor] = []
        for kv_head in range(kv_heads):
            of_group = slice(kv_head * group, (kv_head + 1) * group)
            tile = self.tile(slice(0, batch), of_group, slice(0, queries)).with_keys(keys)
            query = self.query[:, of_group].to(self.dtype)
            key = self.key[:, kv_head : kv_head + 1, slice(*keys)].to(self.dtype)
            is_full = self.mask is None or tile.clip(*self.mask.full_key_range(tile)) == keys
            scores = self.scores(query, key, tile) if is_full else self.masked_scores(query, key, tile)
            parts.append(scores.expand(batch, group, queries, keys.width))
        return parts[0] if kv_heads == 1 else torch.cat(parts, 1)

    def in_dtype_of_sums(self) -> AttentionRequest:
        """The same matrix with tensors in at least the dtype of sums; itself if none of its tensors requires grad.

        Autograd adds the gradients of several calls in it. In half precision it would round that of each call first.
        """
        is_tracked = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors_in(self))
        return in_dtype_of_sums(self, self.dtype) if is_tracked else self

    def at(
        self, batch: Entries | None = None, heads: Entries | None = None, rows: Entries | None = None
    ) -> AttentionRequest:
        """The same matrix for some batch entries, heads and queries; None keeps all. Ranges copy nothing."""
        # Without rules that look at entries, adjacent ones are a smaller matrix, whose queries start later.
        is_plain = self.mask is None and type(self.score) is ScaledDotProduct and self.full_shape is None
        is_smaller = is_plain and not any(isinstance(entries, Tensor) for entries in (batch, heads, rows))
        # An index may repeat, and heads may share a key.
        whole = self if is_plain and self.query.dtype == self.dtype else self.in_dtype_of_sums()
        query, key, group = whole.query, whole.key, whole.query.shape[1] // whole.key.shape[1]
        selected, offset = [self.batch, self.heads, self.rows], self.offset
        for axis, entries in enumerate((batch, heads, rows)):
            if entries is None:
                continue
            query = _select(query, axis, entries)
            if axis < 2:
                key = _select(key, axis, entries if axis == 0 else _kv_heads(entries, group, key.device))
            if not is_smaller:
                index, before = _as_tensor(entries, query.device), selected[axis]
                selected[axis] = index if before is None else before[index]
            elif isinstance(entries, range) and axis == 2:
                offset += entries.start
        full_shape = self.full_shape
        if full_shape is None and not is_smaller:
            full_shape = self.shape
        return AttentionRequest(
            query, key, whole.mask, whole.score, whole.scale, offset, selected[0], selected[1], selected[2], full_shape
        )


def _select(tensor: Tensor, axis: int, entries: Entries) -> Tensor:
    if isinstance(entries, range):
        return tensor.narrow(axis, entries.start, len(entries))
    return tensor.index_select(axis, entries)


def _kv_heads(heads: Entries, group: int, device: torch.device) -> Entries:
    """The key heads of query heads, each once if these are one group or whole groups, else one for each query head."""
    if group == 1:
        return heads
    if isinstance(heads, range):
        first, last = heads[0] // group, heads[-1] // group
        if first == last or (heads.start % group == 0 and heads.stop % group == 0):
            return range(first, last + 1)
    return _as_tensor(heads, device) // group


def _as_tensor(entries: Entries, device: torch.device) -> Tensor:
    return torch.arange(entries.start, entries.stop, device=device) if isinstance(entries, range) else entries


def in_dtype_of_sums(tree: Tree, dtype: torch.dtype) -> Tree:
    """A tree whose floating-point tensors are at least in this dtype."""
    return map_float_tensors(tree, lambda tensor: tensor.to(torch.promote_types(tensor.dtype, dtype)))


def make_request(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    *,
    mask: MaskLike | None = None,
    score: ScoreLike | None = None,
    scale: float | None = None,
    offset: int | None = None,
) -> AttentionRequest:
    """Validate the arguments, fill in the defaults, and make the request.

    Raises:
        InvalidType: If an argument has a wrong type.
        InvalidArgument: If shapes, dtypes, devices or head counts do not fit; every problem is in the message.
    """
    checks = Checks()
    request = check_request(checks, {"query": query, "key": key}, mask, score, scale, offset)
    checks.raise_problems()
    assert request is not None
    return request


def check_request(
    checks: Checks,
    tensors: dict[str, Tensor],
    mask: MaskLike | None,
    score: ScoreLike | None,
    scale: float | None,
    offset: int | None,
) -> AttentionRequest | None:
    """The request, or None with the problems in `checks`; `tensors` are query, key and, if there is one, value."""
    before = len(checks.problems)
    rule = mask if mask is None or isinstance(mask, Mask) else checks.collect(as_mask, mask)
    score = DEFAULT_SCORE if score is None else score
    valid_score = score if isinstance(score, Score) else checks.collect(as_score, score)
    if scale is not None:
        checks.number("scale", scale)
    if offset is not None:  # query i has position i + offset
        checks.integer("offset", offset, low=1 - MAX_OFFSET, below=MAX_OFFSET)
    _check_tensors(checks, tensors)
    if len(checks.problems) > before or valid_score is None:
        return None
    query, key = tensors["query"], tensors["key"]
    batch, heads, queries, head_dim = query.shape
    shape = batch, heads, queries, key.shape[2]
    if rule is not None:
        rule.check(checks, shape, head_dim, query.device)
    valid_score.check(checks, shape, head_dim, query.device)
    if scale is None:
        default = valid_score.default_scale(head_dim)
        factor = head_dim**-0.5 if default is None else default
    else:
        factor = float(scale) if isinstance(scale, np.generic) else scale  # SDPA does not take NumPy's
    first = shape[3] - queries if offset is None else int(offset)
    return AttentionRequest(query, key, rule, valid_score, factor, first)


def _check_tensors(checks: Checks, tensors: dict[str, Any]) -> None:
    is_checkable = True
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            checks.tensor(name, tensor)
            is_checkable = False
    if not is_checkable:
        return
    query, key = tensors["query"], tensors["key"]
    dtype, device, comparable = query.dtype, query.device, True
    for name, tensor in tensors.items():
        if tensor.ndim != 4:
            comparable = checks.fail(f"{name}: expected shape {_AXES[name]}, got {tuple(tensor.shape)}")
        elif 0 in tensor.shape:
            checks.fail(f"{name}: expected no empty axis in {_AXES[name]}, got {tuple(tensor.shape)}")
        if tensor.dtype not in DTYPES:
            known = ", ".join(str(each).removeprefix("torch.") for each in DTYPES)
            checks.fail(f"{name}: expected one of {known}, got {str(tensor.dtype).removeprefix('torch.')}")
        elif tensor.dtype != dtype:
            checks.fail(f"{name}: expected the query's dtype {dtype}, got {tensor.dtype}; convert it with .to()")
        if tensor.device != device:
            checks.device(name, tensor, device)
    if not comparable:
        return
    batch, num_heads, _, head_dim = query.shape
    keys = key.shape[2]
    for name, tensor in tensors.items():
        own_batch, heads, length, width = tensor.shape
        if own_batch != batch:
            checks.fail(f"{name}: expected the query's batch {batch}, got {own_batch}")
        if heads and num_heads % heads:
            checks.fail(f"{name}: expected a number of heads that divides the query's {num_heads}, got {heads}")
        if name == "key" and width != head_dim:
            checks.fail(f"key: expected the query's head_dim {head_dim}, got {width}")
        if name == "value" and length != keys:
            checks.fail(f"value: expected as many keys as in key, {keys}, got {length}")


def _wrong_result(call: str, kind: str, shape: tuple[int, ...], result: object) -> InvalidArgument:
    return InvalidArgument(
        f"{call} must return {kind} broadcastable to (batch, heads, rows, keys) = {shape}, got {describe(result)}"
    )
