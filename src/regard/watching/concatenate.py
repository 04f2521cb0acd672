"""Several calls of a layer as one: the calls, the results of measures, and which queries are valid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.ops.masks import Spans
from regard.ops.measures import Measure
from regard.watching.call import AttentionCall, Continuation
from regard.watching.prefix_keys import KeyPlacement


def concatenate_calls(
    calls: Sequence[AttentionCall], continuation: Continuation, key: Tensor | None = None
) -> AttentionCall:
    """Concatenate queries, and keys where each call has its own.

    Args:
        calls: With ``"new_tokens"``, all but the first as `AttentionCall.new_keys_only` returns them.
        continuation: How all but the first continue it.
        key: The keys of all calls, where one tensor holds them. Default: those of the calls.

    Returns:
        AttentionCall: Without `valid_queries`; see `concatenate_valid`.
    """
    first = calls[0]
    if key is None:
        key = first.key if continuation == "new_queries" else torch.cat([call.key for call in calls], 2)
    value = first.value
    if value is not None and continuation != "new_queries":
        value = torch.cat([call.value for call in calls if call.value is not None], 2)
    key_offsets = [0] * len(calls)
    if continuation == "new_tokens":
        key_offsets = [call.kv_offset - first.kv_offset for call in calls]
    elif continuation == "chunk":
        key_offsets = [sum(call.key.shape[2] for call in calls[:number]) for number in range(len(calls))]
    placements = [KeyPlacement(offset, first.num_prefix_keys) for offset in key_offsets]
    spans = [placement.spans(call.spans()) for call, placement in zip(calls, placements, strict=True)]
    sides = (_pad_and_stack(side) for side in zip(*spans, strict=True))
    bias = None
    if any(call.bias is not None for call in calls):
        pairs = zip(calls, placements, strict=True)
        bias = _concatenate_biases([placement.entries(_bias_of(call), -1) for call, placement in pairs], key.shape[2])
    query = torch.cat([call.query for call in calls], 2)
    call = first.with_keys(lambda _: key, query=query, mask=Spans(*sides), bias=bias)
    return replace(call, value=value, valid_queries=None)


def concatenate_valid(parts: Sequence[tuple[Tensor | None, int]]) -> Tensor | None:
    """Concatenate which queries are valid, (batch, queries); None means that all queries are valid."""
    known = next((valid for valid, _ in parts if valid is not None), None)
    if known is None:
        return None
    return torch.cat([known.new_ones(len(known), count) if valid is None else valid for valid, count in parts], 1)


def concatenate_results(before: Any, after: Any, measure: Measure, placement: KeyPlacement) -> Any:
    """Concatenate the results of a measure for some queries and for those below them.

    Args:
        before: For the first queries.
        after: For the queries below.
        measure: The measure.
        placement: Where the keys of `after` are among those of `before`.
    """
    if isinstance(before, tuple):
        pairs = zip(before, after, strict=True)
        return type(before)(*(concatenate_results(*pair, measure, placement) for pair in pairs))
    if measure.axis is None:
        return before + after
    if measure.axis == "queries":
        if not after.is_floating_point():  # indices of keys
            after = placement.indices(after)
        if before.ndim > 3:
            width, empty = max(before.shape[-1], after.shape[-1]), 0 if before.is_floating_point() else -1
            before, after = (pad(part, (0, width - part.shape[-1]), value=empty) for part in (before, after))
        return torch.cat([before, after], 2)
    after = placement.entries(after, 2)
    keys, trailing = max(before.shape[2], after.shape[2]), (0, 0) * (before.ndim - 3)
    before, after = (pad(part, (*trailing, 0, keys - part.shape[2])) for part in (before, after))
    return before + after


def _pad_and_stack(sides: Sequence[Tensor]) -> Tensor:
    """Concatenate (batch or 1, heads or 1, queries, spans) along the queries; missing spans are empty."""
    batch, heads, count = (max(side.shape[axis] for side in sides) for axis in (0, 1, 3))
    padded = [pad(side, (0, count - side.shape[3])) for side in sides]
    return torch.cat([side.expand(batch, heads, -1, -1) for side in padded], 2)


def _bias_of(call: AttentionCall) -> Tensor:
    """What a call adds to its scores, (batch or 1, heads or 1, queries, keys)."""
    if call.bias is None:
        return call.query.new_zeros(1, 1, call.query.shape[2], 0)
    return call.bias.expand(-1, -1, call.query.shape[2], -1)


def _concatenate_biases(biases: Sequence[Tensor], keys: int) -> Tensor:
    """Concatenate (batch or 1, heads or 1, queries, keys) along the queries; missing keys have 0."""
    batch, heads = (max(bias.shape[axis] for bias in biases) for axis in (0, 1))
    padded = [pad(bias, (0, keys - bias.shape[3])) for bias in biases]
    return torch.cat([bias.expand(batch, heads, -1, -1) for bias in padded], 2)
