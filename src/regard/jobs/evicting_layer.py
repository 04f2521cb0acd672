"""EvictingLayer: the keys and values of one layer, of which a policy keeps some after each forward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d

from regard.errors import InvalidArgument, require
from regard.ops import weights
from regard.ops.masks import Causal, DenseMask
from regard.watching.transformers_attention import make_score

cache_utils: Any = require("transformers.cache_utils", extra="hf", needed_by="EvictingCache")

SNAPKV_WINDOW = 32
"""How many of the last queries vote in SnapKV, unless the user says."""


class EvictingLayer(cache_utils.DynamicLayer):
    """A layer of `EvictingCache`.

    Args:
        policy: ``"h2o"``, ``"snapkv"`` or ``"tova"``.
        budgets: The share or the number of keys that each key head keeps.
        window: How many of the last keys stay. None: what the policy's paper says.
        kernel_size: How many neighbors SnapKV pools.
    """

    is_croppable = False

    def __init__(self, policy: str, budgets: Sequence[float], window: int | None, kernel_size: int) -> None:
        super().__init__()
        self.policy, self.budgets, self.window, self.kernel_size = policy, budgets, window, kernel_size
        self.cumulative_length = 0
        """How many tokens were read."""
        self.positions: Tensor | None = None
        """(batch, kv_heads, keys) the position of each key among the tokens that were read, −1 where there is none."""
        self.received: Tensor | None = None
        """(batch, kv_heads, keys) what each key has received, for H2O."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        start, stop = self.cumulative_length, self.cumulative_length + key_states.shape[2]
        added = torch.arange(start, stop, device=key_states.device).expand(*key_states.shape[:2], -1)
        self.positions = added if self.positions is None else torch.cat([self.positions, added], 2)
        self.cumulative_length = stop
        return super().update(key_states, value_states, *args, **kwargs)

    def get_seq_length(self) -> int:
        return self.cumulative_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        kept = 0 if self.positions is None else self.positions.shape[2]
        return kept + query_length, self.cumulative_length - kept

    def make_mask(self, query: Tensor, padding: Tensor | None, *, added: bool) -> Tensor | None:
        """The mask of a pass after the first: (batch, heads, queries, keys), or None if all may be attended to.

        Args:
            query: (batch, heads, queries, head_dim).
            padding: (batch, tokens) False for padding.
            added: Whether attention adds the mask to the scores.
        """
        queries, keys = query.shape[2], self.keys.shape[2]
        allowed = self._visible(padding, query.shape[1])
        if queries > 1:
            causal = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
            allowed = causal if allowed is None else allowed & causal
        if allowed is None or not added:
            return allowed
        return query.new_zeros(allowed.shape).masked_fill(~allowed, torch.finfo(query.dtype).min)

    @torch.no_grad()
    def evict(self, query: Tensor, padding: Tensor | None, options: Mapping[str, Any]) -> None:
        """Drop the keys that the policy does not keep, after these queries have attended to all.

        Args:
            query: (batch, heads, queries, head_dim).
            padding: (batch, tokens) False for padding.
            options: Other arguments of the attention function.
        """
        length, queries, keys = self.cumulative_length, query.shape[2], self.keys.shape[2]
        if self.policy == "snapkv" and queries == 1 and length > 1:  # it compresses prompts
            return
        counts = [max(1, round(each * length)) if isinstance(each, float) else each for each in self.budgets]
        if self.policy != "h2o" and keys <= min(counts):
            return
        scores = self._score(query, padding, options)
        if keys <= min(counts):
            return
        recent, most = [self._num_recent(count) for count in counts], min(max(counts), keys)
        place, per_head = torch.arange(keys, device=query.device), torch.tensor([counts, recent]).to(query.device)
        scores = scores.masked_fill(place >= keys - per_head[1, :, None], torch.inf)
        visible = self._visible(padding, scores.shape[1])
        if visible is not None:
            scores = scores.masked_fill(~visible[:, :, 0], -torch.inf)
        index = scores.topk(most).indices
        assert self.positions is not None
        positions = self.positions.gather(2, index).masked_fill(place[:most] >= per_head[0, :, None], -1)
        self.positions, order = positions.sort(2)
        index = index.gather(2, order)
        self.received = None if self.received is None else self.received.gather(2, index)
        self.keys, self.values = (
            each.gather(2, index[..., None].expand(-1, -1, -1, each.shape[3])) for each in (self.keys, self.values)
        )

    def _num_recent(self, count: int) -> int:
        """How many of the last keys stay if so many do."""
        default = {"h2o": count // 2, "snapkv": SNAPKV_WINDOW, "tova": 0}[self.policy]
        return min(count, default if self.window is None else self.window)

    def _score(self, query: Tensor, padding: Tensor | None, options: Mapping[str, Any]) -> Tensor:
        """What each key is worth, (batch, kv_heads, keys)."""
        queries, (batch, kv_heads, keys, _) = query.shape[2], self.keys.shape
        window = SNAPKV_WINDOW if self.window is None else self.window
        rows = {"h2o": queries, "snapkv": min(window, queries), "tova": 1}[self.policy]
        visible = self._visible(padding, query.shape[1])
        mask = None if rows == 1 else Causal()
        if visible is not None:
            mask = DenseMask(visible) if mask is None else mask & DenseMask(visible)
        matrix = weights(
            query[:, :, queries - rows :],
            self.keys,
            mask=mask,
            score=make_score(query.dtype, None, options),
            scale=options.get("scaling"),
        )
        counted = None if padding is None else padding[:, None, self.cumulative_length - rows :]
        scores = matrix.received(counted).unflatten(1, (kv_heads, -1)).sum(2)  # (batch, kv_heads, keys)
        if self.policy == "tova":  # the same for all heads
            return scores.sum(1, keepdim=True).expand(batch, kv_heads, keys)
        if self.policy == "snapkv":
            before = scores[..., : keys - rows]
            size = self.kernel_size
            pooled = avg_pool1d(before, size, 1, size // 2) if before.shape[2] else before
            return torch.cat([pooled, scores[..., keys - rows :]], 2)
        self.received = (
            scores
            if self.received is None
            else scores.index_add(2, torch.arange(keys - queries, device=query.device), self.received)
        )
        return self.received

    def _visible(self, padding: Tensor | None, heads: int) -> Tensor | None:
        """Which keys are neither padding nor missing, (batch, heads, 1, keys); None if all are."""
        assert self.positions is not None
        visible = None if len(set(self.budgets)) == 1 else self.positions >= 0
        if padding is not None:
            kv_heads = self.positions.shape[1]
            real = padding[:, None].expand(-1, kv_heads, -1).gather(2, self.positions.clamp(min=0))
            visible = real if visible is None else visible & real
        return None if visible is None else visible.repeat_interleave(heads // visible.shape[1], 1)[:, :, None]

    def _apply(self, change: Callable[[Tensor], Tensor]) -> None:
        if self.positions is not None:
            self.positions = change(self.positions)
        if self.received is not None:
            self.received = change(self.received)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(beam_idx)
        self._apply(lambda tensor: tensor.index_select(0, beam_idx.to(tensor.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self._apply(lambda tensor: tensor.repeat_interleave(repeats, 0))

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self._apply(lambda tensor: tensor[indices])

    def reset(self) -> None:
        super().reset()
        self.positions = self.received = None

    def crop(self, tokens_to_remove: int = 0) -> None:
        """Raise: what is evicted cannot come back."""
        raise InvalidArgument(
            "past_key_values: expected a cache that can be cropped, as assisted generation does, got an EvictingCache; "
            "generate without an assistant"
        )

    activate_past_recording = crop  # the first that assisted generation calls
