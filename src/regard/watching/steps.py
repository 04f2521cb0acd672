"""The steps of a generation that wait to be measured together: by itself each takes far longer to begin than to do."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from regard.ops.masks import Spans
from regard.watching.calls import Call, joined, real_of

MOST = 128
"""So many rows wait at most: enough for products of matrices at their full rate, and few beside the keys."""


@dataclass(eq=False)
class Steps:
    """Calls of which each has the keys of the one before, and behind them those of its own rows.

    So the keys of the last one serve them all. Where a cache grows they are another tensor at each step, which nobody
    writes into later; a cache of fixed size writes into the one that it has, and its calls do not wait.
    """

    _calls: list[Call] = field(default_factory=list)
    _key: Tensor | None = None
    _rows: int = 0

    def take(self, call: Call) -> bool:
        """Let a call wait if it can; that it is of the same sequences, in their order, must be known."""
        before, rows, keys = self._key, call.query.shape[2], call.key.shape[2]
        if before is None or not _can_wait(call) or before.data_ptr() == call.key.data_ptr():
            return False
        if not call.offset + rows == keys == before.shape[2] + rows:
            return False
        if self._calls:
            first = self._calls[0]
            alike = first.first_key == call.first_key and (first.bias is None) == (call.bias is None)
            if not alike or self._rows + rows > MOST:
                return False
        self._calls.append(call.own())
        self._key, self._rows = call.key, self._rows + rows
        return True

    def follow(self, call: Call) -> None:
        """Let the calls wait that go on from this one, which was measured."""
        self._key = call.key if _can_wait(call) else None

    def end(self) -> Call | None:
        """What waited, as one call; nothing does any more."""
        calls, key = self._calls, self._key
        self._calls, self._key, self._rows = [], None, 0
        if not calls:
            return None
        real = real_of([(call.real, call.query.shape[2]) for call in calls])
        return replace(joined(calls, "tokens", key), real=real)


def _can_wait(call: Call) -> bool:
    """Whether a call may be measured later: no gradients are kept, and its mask is one that can be joined."""
    return not torch.is_grad_enabled() and (call.mask is None or isinstance(call.mask, Spans))
