"""The ranges of keys of many queries at once, as tensors, from the steps of a mask. No value is read on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.ops.steps import Place, Step

UNKNOWN = Step("unknown")
"""Stands for a mask without steps."""


class KeyRanges(NamedTuple):
    """Ranges of keys, each up to but not including its stop.

    Args:
        starts: The first key that may be allowed.
        stops: One past the last key that may be allowed.
        full_starts: From here to `full_stops` every key is allowed; an empty range if no such key is known.
        full_stops: See `full_starts`.
    """

    starts: Tensor
    stops: Tensor
    full_starts: Tensor
    full_stops: Tensor


def key_ranges(steps: Sequence[Step], place: Place) -> KeyRanges:
    """The ranges of each query, from the steps of a mask.

    A dense mask that differs by query may allow any key. Of one that is the same for all queries, the first run of
    allowed keys is the full range.

    Args:
        steps: In postfix order.
        place: Where the mask applies.

    Returns:
        KeyRanges: (batch or 1, heads or 1, queries or 1) int64. An empty range starts at the number of keys and stops
            at 0, so that it does not count in a minimum of starts and a maximum of stops.
    """
    keys, stack = place.shape[3], list[KeyRanges]()
    for step in steps:
        if step.kind == "not":
            stack.append(_complement(stack.pop(), keys))
        elif step.kind in ("and", "or"):
            right, left = stack.pop(), stack.pop()
            stack.append(_intersection(left, right, keys) if step.kind == "and" else _union(left, right))
        else:
            stack.append(_ranges_of_step(step, place))
    (ranges,) = stack
    return ranges


def document_ranges(of_query: Tensor, of_key: Tensor) -> KeyRanges:
    """The ranges of the keys of each query's document; full if these keys are adjacent.

    Args:
        of_query: (..., queries) The document of each query.
        of_key: (..., keys) The document of each key.

    Returns:
        KeyRanges: (..., queries), as from `key_ranges`.
    """
    keys, lead = of_key.shape[-1], torch.broadcast_shapes(of_query.shape[:-1], of_key.shape[:-1])
    of_query, of_key = of_query.expand(*lead, -1).contiguous(), of_key.expand(*lead, -1)
    in_order, index = of_key.contiguous().sort(dim=-1, stable=True)  # the keys of a document stay in order
    first = torch.searchsorted(in_order, of_query)
    stop = torch.searchsorted(in_order, of_query, right=True)
    exists = first < stop
    starts = index.gather(-1, first.clamp(max=keys - 1)).where(exists, keys)
    stops = (index.gather(-1, (stop - 1).clamp(min=0)) + 1).where(exists, 0)
    is_contiguous = stops - starts == stop - first
    return KeyRanges(starts, stops, starts.where(is_contiguous, keys), stops.where(is_contiguous, 0))


def _ranges_of_step(step: Step, place: Place) -> KeyRanges:
    keys = place.shape[3]
    if step.kind == "window":
        left, right = step.numbers
        position = place.positions[None, None]
        starts = torch.zeros_like(position) if left is None else position - left
        return _same(starts, starts.new_full((), keys) if right is None else position + right + 1, keys)
    first, second = (*step.tensors(), None, None)[:2]
    if step.kind == "ranges":
        assert second is not None
        starts = torch.zeros_like(second) if first is None else first
        return _same(starts[..., 0], second[..., 0], keys)
    if step.kind == "same_document":
        assert first is not None
        assert second is not None
        return document_ranges(first[..., 0], second[:, :, 0])
    if step.kind == "dense" and first is not None and first.shape[2:] == (1, keys):  # the same for all queries
        index = torch.arange(keys, device=place.device)
        starts = torch.where(first, index, keys).amin(-1)
        stops = torch.where(first, index + 1, 0).amax(-1)
        is_after = ~first & (index > starts[..., None])
        return KeyRanges(starts, stops, starts, torch.where(is_after, index, stops[..., None]).amin(-1))
    nothing = torch.zeros(1, 1, 1, dtype=torch.int64, device=place.device)
    return KeyRanges(nothing, nothing + keys, nothing + keys, nothing)


def _same(starts: Tensor, stops: Tensor, keys: int) -> KeyRanges:
    """Ranges in which everything is allowed."""
    starts, stops = _normalized(starts.clamp(0, keys), stops.clamp(0, keys), keys)
    return KeyRanges(starts, stops, starts, stops)


def _normalized(starts: Tensor, stops: Tensor, keys: int) -> tuple[Tensor, Tensor]:
    """The ranges; from the number of keys to 0 where empty, so that it changes no minimum and no maximum."""
    exists = starts < stops
    return starts.where(exists, keys), stops.where(exists, 0)


def _intersection(left: KeyRanges, right: KeyRanges, keys: int) -> KeyRanges:
    starts, stops = torch.maximum(left.starts, right.starts), torch.minimum(left.stops, right.stops)
    full_starts = torch.maximum(left.full_starts, right.full_starts)
    full_stops = torch.minimum(left.full_stops, right.full_stops)
    return KeyRanges(*_normalized(starts, stops, keys), *_normalized(full_starts, full_stops, keys))


def _union(left: KeyRanges, right: KeyRanges) -> KeyRanges:
    """The range from the first to the last key, and the longer one of the full ranges."""
    starts, stops = torch.minimum(left.starts, right.starts), torch.maximum(left.stops, right.stops)
    longer = left.full_stops - left.full_starts >= right.full_stops - right.full_starts
    full_starts = left.full_starts.where(longer, right.full_starts)
    return KeyRanges(starts, stops, full_starts, left.full_stops.where(longer, right.full_stops))


def _complement(ranges: KeyRanges, keys: int) -> KeyRanges:
    """What a mask forbids: what is before or after its full range, or both; full is the longer part outside it."""
    starts, stops, full_starts, full_stops = ranges
    from_first, to_last = full_starts <= 0, full_stops >= keys
    outside = (full_stops.where(from_first, 0), full_starts.where(to_last & ~from_first, keys))
    is_before = starts >= keys - stops
    full = torch.where(is_before, 0, stops), torch.where(is_before, starts, keys)
    return KeyRanges(*_normalized(*outside, keys), *_normalized(*full, keys))
