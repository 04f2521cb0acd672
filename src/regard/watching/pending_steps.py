"""PendingSteps: decode steps of a layer that are measured together later."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from regard.ops.masks import Spans
from regard.watching.call import AttentionCall
from regard.watching.concatenate import concatenate_calls, concatenate_valid

MAX_PENDING_QUERIES = 128
"""Decode steps that are measured together have at most so many queries: enough for matrix products at full rate."""


class PendingSteps:
    """Decode steps that are measured together later, since one step takes longer to launch than to compute.

    A growing cache is a new tensor at each step that holds the keys of all steps before, so the keys of the last step
    serve all. A static cache is written in place; its steps are not deferred.
    """

    def __init__(self) -> None:
        self._calls: list[AttentionCall] = []
        self._key: Tensor | None = None
        self._num_queries = 0

    def try_add(self, call: AttentionCall) -> bool:
        """Defer a call if possible. Its sequences must be those of the calls before, in their order."""
        before, queries, keys = self._key, call.query.shape[2], call.key.shape[2]
        if before is None or not _can_defer(call) or before.data_ptr() == call.key.data_ptr():
            return False
        if not call.request.offset + queries == keys == before.shape[2] + queries:
            return False
        if self._calls:
            first = self._calls[0]
            is_alike = first.kv_offset == call.kv_offset and (first.bias is None) == (call.bias is None)
            if not is_alike or self._num_queries + queries > MAX_PENDING_QUERIES:
                return False
        self._calls.append(call.new_keys_only())
        self._key, self._num_queries = call.key, self._num_queries + queries
        return True

    def start_after(self, call: AttentionCall) -> None:
        """Defer the calls that continue this one, which was measured."""
        self._key = call.key if _can_defer(call) else None

    def take(self) -> AttentionCall | None:
        """The deferred calls as one; none is deferred any more."""
        calls, key = self._calls, self._key
        self._calls, self._key, self._num_queries = [], None, 0
        if not calls:
            return None
        valid = concatenate_valid([(call.valid_queries, call.query.shape[2]) for call in calls])
        return replace(concatenate_calls(calls, "new_tokens", key), valid_queries=valid)


def _can_defer(call: AttentionCall) -> bool:
    """Whether a call may be measured later: nothing needs a gradient, and its mask can be concatenated."""
    return not torch.is_grad_enabled() and isinstance(call.request.mask, (Spans, type(None)))
