"""HeldKeys: the keys of a layer's last call, by which a step of a hand-written KV cache is recognized."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from regard.errors import InvalidArgument
from regard.ops.scores import ScoreMod
from regard.recordings.layer import AttentionKind
from regard.watching.call import AttentionCall, Continuation


class HeldKeys:
    """A copy of the keys of the last call of a layer.

    Args:
        joins_steps: Whether a later call may add keys to them.
    """

    def __init__(self, joins_steps: bool) -> None:
        self._joins_steps = joins_steps
        self._key: Tensor | None = None
        self._scale = 0.0
        self._has_function = self._is_self_attention = False
        self.attends_to_itself = False
        """Whether the queries of the last call may be the last of its keys."""

    def hold(self, call: AttentionCall, cached: Tensor, continuation: Continuation | None) -> None:
        """Take the keys of a call, or what tells them apart."""
        request = call.request
        if continuation is None:
            self._scale, self._has_function = request.scale, isinstance(request.score, ScoreMod)
            _, _, queries, keys = request.shape
            self._is_self_attention = queries == keys > 1 and not call.may_attend(0, keys - 1)
        self._is_self_attention |= continuation == "new_tokens"
        self.attends_to_itself = continuation == "new_tokens" or request.shape[2] == request.shape[3]
        self._key = cached.detach().clone()

    def relate(
        self, name: str, kind: AttentionKind, call: AttentionCall
    ) -> Literal["new_tokens", "new_queries"] | None:
        """How a call continues the last one, if it does.

        It has new tokens if its keys, without those of its own queries, are all or the last of those that are held: a
        cache has grown, or a window has moved. It has new queries if it has the same keys, as in cross-attention.

        Raises:
            InvalidArgument: If it does, with a `score_mod`, which depends on the numbers of the queries.
        """
        relation = self._compare(kind, call)
        if relation is not None and (self._has_function or isinstance(call.request.score, ScoreMod)):
            raise InvalidArgument(
                f"positions: {name or 'the model'} calls flex_attention with a score_mod, which counts the queries of "
                "each step from 0, so its steps are not rows of one matrix; leave positions out"
            )
        return relation

    def _compare(self, kind: AttentionKind, call: AttentionCall) -> Literal["new_tokens", "new_queries"] | None:
        held, cached, request = self._key, call.cached, call.request
        if held is None or request.scale != self._scale:
            return None
        queries, keys = request.shape[2:]
        before = keys - queries
        may_be_cross = kind == "cross" or (before > 0 and not self._is_self_attention)
        if may_be_cross and _are_equal(cached, held):
            return "new_queries"
        if kind == "cross" or not self._joins_steps or not 0 < before <= held.shape[2]:
            return None
        is_grown = _are_equal(cached[:, :, :before], held[:, :, held.shape[2] - before :])
        return "new_tokens" if is_grown else None


def _are_equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)


def fingerprint(key: Tensor) -> Sequence[Any]:
    """What identifies one key of each sequence, (batch, kv_heads, 1, head_dim).

    On a CPU a hash of its bytes: a small copy that lives on could keep glibc (before 2.38) from reusing the memory of a
    large activation next to it. On other devices a copy, which is compared there.
    """
    key = key.detach()
    if key.device.type != "cpu":
        return key.clone().unbind()
    key = key.clone(memory_format=torch.contiguous_format)  # whose strides can be viewed as bytes, for any width
    return [hash(row.tobytes()) for row in key.view(torch.uint8).numpy()]


def is_same(one: Any, other: Any) -> bool:
    """Whether parts of two fingerprints are equal."""
    return torch.equal(one, other) if isinstance(one, Tensor) else one == other
