"""What a watch keeps of one call of attention, and how several calls of a layer become one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from regard.errors import InvalidArgument
from regard.ops import WeightMatrix
from regard.ops.masks import DenseMask, Mask, Spans, to_dense, to_spans
from regard.ops.measures import Measure
from regard.ops.request import AttentionRequest, make_request
from regard.ops.scores import Bias, Score
from regard.ops.tile import Shape
from regard.ops.tree import map_tensors, tensors_in

How = Literal["tokens", "queries", "chunk"]
"""How a call goes on from those before: with more tokens, as the cache grew; with more queries to the same keys; or as
another chunk of the sequence, which sees itself alone."""


@dataclass(eq=False)
class Call:
    """All that the weights of one call follow from.

    Args:
        query: (batch, heads, rows, head_dim).
        key: (batch, kv_heads, keys, head_dim), those of a cache too.
        mask: Which keys each row may see.
        score: The rule for scores, without the bias.
        bias: Broadcastable to (batch, heads, rows, keys), added to the scores.
        scale: What scores are multiplied with.
        first: The position of the first row.
        first_key: The position of the first key.
        real: (batch, rows) False where a query is padding; None where none is.
        value: (batch, kv_heads, keys, value_dim), where it is kept.
        heads: (heads,) Which heads of mask, score and bias these are; None: all.
        num_heads: How many heads those are made for; None: as many as the query has.
        extra: How many keys in front are no tokens of the sequence itself, and have positions before it: those of an
            encoder in the same softmax (T5Gemma 2), or compressed ones (DeepSeek V4). The model has them behind.
    """

    query: Tensor
    key: Tensor
    mask: Mask | None
    score: Score
    bias: Tensor | None
    scale: float | None
    first: int = 0
    first_key: int = 0
    real: Tensor | None = None
    value: Tensor | None = None
    heads: Tensor | None = None
    num_heads: int | None = None
    extra: int = 0

    @property
    def tensors(self) -> list[Tensor]:
        """All that it holds, the tensors of its rules too."""
        return tensors_in((self.query, self.key, self.value, self.mask, self.score, self.bias))

    @property
    def stop(self) -> int:
        """One past the position of the last row."""
        return self.first + self.query.shape[2]

    @property
    def offset(self) -> int:
        """Row i stands at key i + offset."""
        return self.first - self.first_key

    @property
    def request(self) -> AttentionRequest:
        """What the weights follow from."""
        score = self.score if self.bias is None else self.score + Bias(self.bias)
        if self.heads is None:
            return make_request(self.query, self.key, mask=self.mask, score=score, scale=self.scale, offset=self.offset)
        plain = make_request(self.query, self.key, scale=self.scale, offset=self.offset)
        scale = score.default_scale(self.query.shape[3]) if self.scale is None else self.scale
        batch, _, rows, keys = plain.shape
        full_shape = batch, self._count_heads(), rows, keys
        scale = 1.0 if scale is None else scale
        return replace(plain, mask=self.mask, score=score, scale=scale, heads=self.heads, full_shape=full_shape)

    @property
    def weights(self) -> WeightMatrix:
        """The view of the weights."""
        return WeightMatrix(self.request, self.real)

    def _count_heads(self) -> int:
        """How many heads mask, score and bias are made for."""
        return self.query.shape[1] if self.num_heads is None else self.num_heads

    def measure(self, measures: Mapping[str, Measure], view: WeightMatrix | None = None) -> dict[str, Any]:
        """The answers; by a view, where one is there."""
        return (self.weights if view is None else view).measure(measures) if measures else {}

    def of_heads(self, heads: Sequence[int]) -> Call:
        """The same call of some heads, each with a key head of its own; mask, score and bias stay those of all."""
        request = self.request  # which checks that the rules fit all heads
        count, group = self.query.shape[1], self.query.shape[1] // self.key.shape[1]
        index = torch.tensor(list(heads), device=self.query.device)
        if request.heads is not None:
            index, count = request.heads[index], self.num_heads or count
        keys = self._of_keys(lambda part: part[:, [head // group for head in heads]])
        return replace(self, query=self.query[:, list(heads)], heads=index, num_heads=count, **keys)

    def _of_keys(self, change: Callable[[Tensor], Tensor]) -> dict[str, Tensor | None]:
        """Key and value, both changed."""
        return {"key": change(self.key), "value": None if self.value is None else change(self.value)}

    def to_cpu(self) -> Call:
        """The same call with its rules on the CPU, where query and key are."""
        mask = None if self.mask is None else self.mask.to(torch.device("cpu"))
        score = map_tensors(self.score, Tensor.cpu)
        bias, real, heads = (None if part is None else part.cpu() for part in (self.bias, self.real, self.heads))
        return replace(self, mask=mask, score=score, bias=bias, real=real, heads=heads)

    def of_rows(self, rows: Tensor) -> Call:
        """The same call of some rows of the batch; one that is below 0 is of none, and sees nothing."""
        at, there = rows.clamp(min=0), (rows >= 0)[:, None]
        spans = self._find_spans()
        if spans is None:
            mask: Mask = DenseMask(self._dense_mask()[at] & there[:, :, None, None])
        else:
            starts, stops = (side.expand(len(self.query), -1, -1, -1)[at] for side in (spans.starts, spans.stops))
            mask = Spans(starts, stops * there[:, :, None, None])
        bias = self.bias if self.bias is None or len(self.bias) == 1 else self.bias[at]
        real = there.expand(-1, self.query.shape[2]) if self.real is None else self.real[at] & there
        keys = self._of_keys(lambda part: part[at])
        return replace(self, query=self.query[at], mask=mask, bias=bias, real=real, **keys)

    def without_room(self) -> Call:
        """The same call without the room that a cache of fixed size has behind its keys."""
        keys = self.stop - self.first_key
        if self.key.shape[2] <= keys:
            return self
        bias = None if self.bias is None else self.bias[..., :keys]
        spans = self._find_spans()
        if spans is None:
            mask: Mask = DenseMask(self._dense_mask()[..., :keys])
        else:
            mask = Spans(spans.starts.clamp(max=keys), spans.stops.clamp(max=keys))
        return replace(self, mask=mask, bias=bias, **self._of_keys(lambda part: part[:, :, :keys].clone()))

    def copy_of_cache(self) -> Call:
        """The same call with keys and values that nobody writes into later, as a cache of fixed size does."""
        return replace(self, **self._of_keys(lambda part: part.clone() if _was_written_to(part) else part))

    def own(self) -> Call:
        """The same call where it holds the keys of its own rows alone; its mask still speaks of all keys."""
        own = slice(max(self.offset, 0), max(self.offset, 0) + self.query.shape[2])
        return replace(self, mask=self.spans(), **self._of_keys(lambda part: part[:, :, own].clone()))

    def spans(self) -> Spans:
        """The mask as ranges of keys.

        Raises:
            InvalidArgument: If a row has too many.
        """
        spans = self._find_spans()
        if spans is None:
            raise InvalidArgument(
                "the mask has rows of too many ranges of keys for calls to be joined: watch one call at a time"
            )
        return spans

    def _find_spans(self) -> Spans | None:
        """The mask as ranges of keys; None if a row has too many."""
        if isinstance(self.mask, Spans):
            return self.mask
        if self.mask is None:
            starts = torch.zeros(1, 1, self.query.shape[2], 1, dtype=torch.int32, device=self.query.device)
            return Spans(starts, starts + self.key.shape[2])
        return to_spans(self.mask, self._full_shape, self.offset, self.query.device)

    def _dense_mask(self) -> Tensor:
        """The mask as a bool tensor, (batch, heads, rows, keys)."""
        assert self.mask is not None
        return to_dense(self.mask, self._full_shape, self.offset, self.query.device)

    @property
    def _full_shape(self) -> Shape:
        """(batch, heads, rows, keys) that mask, score and bias are made for."""
        return len(self.query), self._count_heads(), self.query.shape[2], self.key.shape[2]


def _was_written_to(tensor: Tensor) -> bool:
    """Whether a tensor was written to in place, and may be again; one of inference mode does not know."""
    return tensor.is_inference() or tensor._version > 0


def joined(calls: Sequence[Call], how: How, key: Tensor | None = None) -> Call:
    """Several calls of a layer as one: rows under rows, and keys behind keys where each call brought its own.

    Args:
        calls: Where the tokens grew all but the first as `Call.own` gives them.
        how: How all but the first went on.
        key: The keys of all calls, from the first one's on, where they lie together. Default: those that they hold.

    Which of the rows are padding is not told.
    """
    first = calls[0]
    if key is None:
        key = first.key if how == "queries" else torch.cat([call.key for call in calls], 2)
    value = first.value
    if value is not None and how != "queries":
        value = torch.cat([call.value for call in calls if call.value is not None], 2)
    begin = [0] * len(calls)  # which key is the first of each call
    if how == "tokens":
        begin = [call.first_key - first.first_key for call in calls]
    elif how == "chunk":
        begin = [sum(call.key.shape[2] for call in calls[:number]) for number in range(len(calls))]
    spans = [_moved(call.spans(), start, call.extra) for call, start in zip(calls, begin, strict=True)]
    sides = (_stacked(each) for each in zip(*spans, strict=True))
    bias = None
    if first.bias is not None:
        parts = []
        for call, start in zip(calls, begin, strict=True):
            if call.bias is not None:
                in_front, own = call.bias[..., : call.extra], call.bias[..., call.extra :]
                part = torch.cat([in_front, own.new_zeros(*own.shape[:-1], start), own], -1)
                parts.append(functional.pad(part, (0, key.shape[2] - part.shape[-1])))
        bias = torch.cat(parts, -2)
    query = torch.cat([call.query for call in calls], 2)
    return replace(first, query=query, key=key, value=value, mask=Spans(*sides), bias=bias, real=None)


def real_of(parts: Sequence[tuple[Tensor | None, int]]) -> Tensor | None:
    """(batch, rows) bool, which rows are no padding, from those of several calls and how many rows each has."""
    known = next((real for real, _ in parts if real is not None), None)
    if known is None:
        return None
    return torch.cat([known.new_ones(len(known), rows) if real is None else real for real, rows in parts], 1)


def _moved(spans: Spans, begin: int, extra: int) -> tuple[Tensor, Tensor]:
    """The starts and stops of ranges behind so many further keys; those of extra keys stay in front of these."""
    if not extra or not begin:
        return spans.starts + begin, spans.stops + begin
    starts, stops = (
        torch.cat([side.clamp(max=extra), side.clamp(min=extra) + begin], -1) for side in (spans.starts, spans.stops)
    )
    return starts, stops


def _stacked(sides: Sequence[Tensor]) -> Tensor:
    """(batch or 1, heads or 1, rows, ranges) of each under each other; a range of a call that has fewer is empty."""
    batch, heads, ranges = (max(side.shape[axis] for side in sides) for axis in (0, 1, 3))
    wide = [functional.pad(side, (0, ranges - side.shape[3])) for side in sides]
    return torch.cat([side.expand(batch, heads, -1, -1) for side in wide], 2)


def merged(before: Any, after: Any, measure: Measure, first_key: int, extra: int = 0) -> Any:
    """An answer about some rows and one about those below them, as one about all.

    Args:
        before: About the keys from the first one on.
        after: About the keys from ``first_key`` on.
        measure: What was asked.
        first_key: Where the keys of the second answer begin among those of the first.
        extra: How many extra keys both have in front.
    """
    if isinstance(before, tuple):
        parts = [merged(*pair, measure, first_key, extra) for pair in zip(before, after, strict=True)]
        return type(before)(*parts)
    if measure.axis is None:
        return before + after
    if measure.axis == "queries":
        if not after.is_floating_point():  # numbers of keys
            after = torch.where(after >= extra, after + first_key, after)
        width = max(before.shape[-1], after.shape[-1]) if before.ndim > 3 else None
        if width is not None:
            empty = 0 if before.is_floating_point() else -1
            before, after = (functional.pad(part, (0, width - part.shape[-1]), value=empty) for part in (before, after))
        return torch.cat([before, after], 2)
    if extra and first_key:
        gap = after.new_zeros(*after.shape[:2], first_key, *after.shape[3:])
        after, first_key = torch.cat([after[:, :, :extra], gap, after[:, :, extra:]], 2), 0
    keys = max(before.shape[2], first_key + after.shape[2])
    trailing = (0, 0) * (before.ndim - 3)
    before = functional.pad(before, (*trailing, 0, keys - before.shape[2]))
    after = functional.pad(after, (*trailing, first_key, keys - first_key - after.shape[2]))
    return before + after
