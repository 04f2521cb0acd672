"""Write a weight matrix as arguments and constants of the passes, from the steps of its rules."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.ops.kernels.base import KernelInputs
from regard.ops.kernels.blocks import block_key_ranges
from regard.ops.kernels.triton.configurations import Tiles, has_tf32, next_power_of_two, tiles
from regard.ops.kernels.triton.launch import Function
from regard.ops.masks.key_ranges import KeyRanges
from regard.ops.request import AttentionRequest
from regard.ops.steps import Step

LOADS = {"lse": 0, "max": 0, "histogram": 3, "divergence": 3}
"""What a measure counts, where that is not 1, against the registers of a program."""

RELATIVE_KINDS = "add_relative_key", "add_relative_query"
"""Steps of a score with a vector for each distance."""

MIN_SCALE = 1e-30
"""A smaller scale is applied before the maximum is subtracted: 0 · −∞ would be NaN."""

LOG2E, LN2 = math.log2(math.e), math.log(2)


class Rules(NamedTuple):
    """Steps as constants of a pass, and their arguments."""

    functions: tuple[Function, ...]
    args: tuple[Any, ...]


class PackedMatrix:
    """A weight matrix as the passes take it; makes the tensors of its steps once.

    Attributes:
        query: (batch, heads, queries, head_dim), adjacent features next to each other.
        key: The same for keys.
        sinks: A logit for each head, in float32, if there are any.
        selection: Batch entries, heads and rows that the rules were made for; empty for all, in order.
        log_scale: What makes a dot product a score, in units of log 2.
        mask: The steps of the mask.
        score: Those of the score after the dot product.
        values: The tensor of each step of the score, which its gradient is for; None if it has none.
    """

    def __init__(self, inputs: KernelInputs) -> None:
        self.request = request = inputs.request
        self.steps = inputs.steps
        self.query, self.key = with_dense_features(request.query), with_dense_features(request.key)
        sinks = request.score.sinks
        self.sinks = None if sinks is None else sinks.float().contiguous()
        self.selection = self._selection()
        self.log_scale = float(request.scale) * LOG2E
        self.mask_steps = self.steps.mask or []
        self.mask = mask_rules(self.mask_steps, request)
        self.values: list[Tensor | None] = []
        self.score = self._score_rules()
        self._tables: dict[tuple[int, int], Tensor] = {}

    def _selection(self) -> tuple[Tensor, ...]:
        """Batch entries, heads and rows that the rules were made for; empty for all, in order."""
        request = self.request
        if request.full_shape is None:
            return ()
        device = request.query.device
        indices = zip((request.batch, request.heads, request.rows), request.shape, strict=False)
        return tuple([torch.arange(n, device=device) if index is None else index for index, n in indices])

    def options(self) -> dict[str, Any]:
        """The constants that all passes have."""
        head_dim = self.query.shape[3]
        return {
            "SELECTED": self.request.full_shape is not None,
            "MASK": self.mask.functions,
            "SCORE": self.score.functions,
            "D": head_dim,
            "D_PAD": padded(head_dim),
            "PRECISION": precision(self.query.dtype, self.query.device),
        }

    def tiles(self, name: str, measures: Iterable[Function], value_dim: int = 0, others: int = 0) -> Tiles:
        """The tiles of a pass.

        Args:
            name: One of `PASSES`.
            measures: Those that it computes, or differentiates.
            value_dim: 0 without a value.
            others: What else it does with a weight.
        """
        load = len(self.score.functions) + len(self.mask.functions) // 3 + others
        for measure in measures:
            load += LOADS.get(measure.name, 1)
        return tiles(name, self.query, value_dim, load)

    def ranges(self, is_by_rows: bool, queries: int, keys: int) -> tuple[dict[str, Any], tuple[Any, ...]]:
        """How a pass finds the blocks that it skips: constants, and arguments.

        Args:
            is_by_rows: Whether a program has a block of queries, or one of keys.
            queries: Queries of a block.
            keys: Keys of a block.
        """
        names, args, has_start = self._simple_ranges()
        if names is None:
            table = self._table(is_by_rows, queries, keys)
            strides = [0 if table.shape[axis] == 1 else table.stride(axis) for axis in (0, 1)]
            names, args, has_start = ["table"], ((table, tuple(strides)),), True
        kind = "masks.KEY_RANGES" if is_by_rows else "masks.ROW_RANGES"
        return {"RANGES": tuple([Function(kind, name) for name in names]), "HAS_START": has_start}, args

    def _simple_ranges(self) -> tuple[list[str] | None, tuple[Any, ...], bool]:
        """Those that a pass computes itself: intersections of windows and lengths. None if there are others."""
        names, args, has_start = list[str](), [], False
        for step, own in zip(self.mask_steps, self.mask.args, strict=True):
            if step.kind == "and":
                continue
            if step.kind == "window" and self.request.rows is None:
                has_start |= step.numbers[0] is not None
                names.append("window")
            elif step.kind == "ranges" and len(own) == 1 and own[0][1][1:] == (0, 0):
                names.append("before")
            else:
                return None, (), True
            args.append(own)
        return names, tuple(args), has_start

    def _table(self, is_by_rows: bool, queries: int, keys: int) -> Tensor:
        key = queries, 0 if is_by_rows else keys
        if key not in self._tables:
            found = block_key_ranges(self.request, queries)
            if not is_by_rows:
                found = block_query_ranges(found, self.request.shape[2:], queries, keys)
            starts, stops, full_starts, full_stops = found
            table = torch.stack((starts, full_starts, full_stops, stops), -1)
            self._tables[key] = table.to(torch.int32).contiguous()
        return self._tables[key]

    def _score_rules(self) -> Rules:
        request, functions, args = self.request, list[Function](), list[tuple[Any, ...]]()
        assert self.steps.score is not None
        for step in self.steps.score[1:]:  # the first is the dot product
            name = step.kind
            if step.kind == "soft_cap":
                cap = step.numbers[0] * LOG2E
                args.append((cap, 1 / cap))
                self.values.append(None)
            else:
                (values,) = step.tensors()
                assert values is not None
                if step.kind in RELATIVE_KINDS:
                    values = self._by_distance(step.kind, values)
                self.values.append(values)
                if step.kind == "add_bias":
                    name, values = by_axes(step.kind, values)
                    args.append((strided(values),))
                elif step.kind == "add_distances":
                    values = values.contiguous()
                    args.append((strided(values), step.numbers[0] - request.offset))
                else:
                    (reach,) = step.numbers
                    offset = clamped_offset(request, reach)
                    args.append((strided(values), offset, reach))
            functions.append(Function("scores.STEPS", name))
        if not functions and self.log_scale < MIN_SCALE:
            return Rules((Function("scores.STEPS", "scale_only"),), ((),))
        return Rules(tuple(functions), tuple(args))

    def _by_distance(self, kind: str, table: Tensor) -> Tensor:
        """Scale * q_i · a_d of queries, or scale * k_j · a_d of keys, (batch, heads, queries or keys, distances)."""
        request = self.request
        for axis, index in enumerate((request.batch, request.heads)):
            if index is not None and table.shape[axis] > 1:
                table = table.index_select(axis, index)
        vectors = self.query if kind == "add_relative_key" else self.key
        vectors = vectors.repeat_interleave(request.shape[1] // vectors.shape[1], 1)
        return (vectors.float() * request.scale) @ table.mT


def mask_rules(steps: Sequence[Step], request: AttentionRequest) -> Rules:
    """A mask as assignments: each step with the numbers of those that it combines, from 1."""
    functions, args, stack = list[Function](), list[tuple[Any, ...]](), list[int]()
    for number, step in enumerate(steps, 1):
        operands, name, own = (0, 0), step.kind, tuple[Any, ...]()
        if step.kind == "not":
            operands = (stack[-1],) * 2
            stack.pop()
        elif step.kind in ("and", "or"):
            right, left = stack.pop(), stack.pop()
            operands = left, right
        elif step.kind == "window":
            own = _window_args(step, request)
        else:
            first, second = (*step.tensors(), None)[:2]
            if step.kind == "ranges":
                assert second is not None
                name = "before" if first is None else "between"
                own = tuple([strided(each) for each in (second, first) if each is not None])
            elif step.kind == "same_document":
                assert first is not None
                assert second is not None
                own = strided(first), strided(second.contiguous())
            else:
                assert first is not None
                name, first = by_axes("dense", first.view(torch.uint8))
                own = (strided(first),)
        stack.append(number)
        functions.append(Function("masks.STEPS", name, operands))
        args.append(own)
    return Rules(tuple(functions), tuple(args))


def _window_args(step: Step, request: AttentionRequest) -> tuple[int, int]:
    """The limits relative to a row's place; beyond the matrix nothing changes."""
    queries, keys = (request.shape if request.full_shape is None else request.full_shape)[2:]
    left, right = step.numbers
    low = -queries if left is None else request.offset - left
    high = keys if right is None else request.offset + right
    return min(max(low, -queries), keys), min(max(high, -queries), keys)


def by_axes(name: str, tensor: Tensor) -> tuple[str, Tensor]:
    """The variant of a step for a tensor (batch, heads, queries, keys), and the tensor as that reads it."""
    queries, keys = tensor.shape[2:]
    if keys == 1:
        return f"{name}_of_rows", tensor
    tensor = tensor if tensor.stride(3) == 1 else tensor.contiguous()
    return f"{name}_of_keys" if queries == 1 else name, tensor


def clamped_offset(request: AttentionRequest, reach: int) -> int:
    """The offset of positions, within limits beyond which all distances are larger than the reach."""
    queries, keys = (request.shape if request.full_shape is None else request.full_shape)[2:]
    return min(max(request.offset, -queries - reach), keys + reach)


def block_query_ranges(ranges: KeyRanges, sizes: tuple[int, int], queries: int, keys: int) -> KeyRanges:
    """For each block of keys, the queries that may attend to some of them, and a range that attends to all of them.

    Args:
        ranges: The ranges of keys of each block of queries.
        sizes: (queries, keys) of the matrix.
        queries: Queries of a block.
        keys: Keys of a block.
    """
    starts, stops, full_starts, full_stops = (part[..., None] for part in ranges)
    blocks = starts.shape[2]
    first = torch.arange(0, sizes[1], keys, device=starts.device)
    stop = (first + keys).clamp(max=sizes[1])
    some = (starts < stop) & (stops > first)
    full = (full_starts <= first) & (full_stops >= stop)
    index = torch.arange(blocks, device=starts.device)[:, None]
    starts, stops = torch.where(some, index, blocks).amin(2), torch.where(some, index + 1, 0).amax(2)
    full_starts = torch.where(full, index, blocks).amin(2)
    is_after = ~full & (index > full_starts[:, :, None])
    full_stops = torch.where(is_after, index, blocks).amin(2)
    return KeyRanges(*((part * queries).clamp(max=sizes[0]) for part in (starts, stops, full_starts, full_stops)))


def strided(tensor: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """A tensor with the strides of its first three axes, 0 along those of size 1."""
    strides = [0 if tensor.shape[axis] == 1 else tensor.stride(axis) for axis in range(3)]
    return tensor, tuple(strides)


def with_dense_features(tensor: Tensor) -> Tensor:
    """A tensor whose last axis has stride 1."""
    return tensor if tensor.stride(3) == 1 else tensor.contiguous()


def padded(width: int) -> int:
    """The next power of two, at least 16; 0 for 0."""
    return max(16, next_power_of_two(width)) if width else 0


def precision(dtype: torch.dtype, device: torch.device) -> str:
    """How products are computed: of float32 as torch does. For others it has no effect, but Triton checks the name."""
    is_tf32 = dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32" and has_tf32(device)
    return "tf32" if is_tf32 else "ieee"
