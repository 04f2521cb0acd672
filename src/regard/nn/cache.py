"""KV caches of decoders, so that a decoding step computes only its own tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.checks import Checks
from regard.errors import InvalidArgument
from regard.ops.masks import Causal, Mask

PRUNE_INTERVAL = 8
"""Number of new tokens of each beam after which `SharedBeamCache` looks for entries that no beam uses."""


class Cache(Protocol):
    """Interface of a cache for generation: rows are beams, and the beams of a sentence are adjacent."""

    length: int
    """Number of tokens in each row."""

    def batch_repeat_interleave(self, beams: int) -> None:
        """Continue the one row of each sentence with several beams."""

    def reorder_cache(self, rows: Tensor) -> None:
        """Continue row ``rows[i]`` as row i; both are beams of the same sentence."""

    def batch_select_indices(self, sentences: Tensor, rows: Tensor) -> None:
        """Continue with some sentences only, and row ``rows[i]``, numbered before the selection, as row i."""


def stored_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype of cached keys and values: on a CPU at least float32, because attention in 16 bits is slow there."""
    return torch.promote_types(tensor.dtype, torch.float32) if tensor.device.type == "cpu" else tensor.dtype


class KVCache:
    """Keys and values of self-attention; each step appends its own.

    For inference only: appending writes in place, which autograd does not support. Buffers double when they are full,
    so appending copies O(1) entries per token on average.

    Args:
        capacity: Number of tokens that the first buffers hold, at least 1. Default: 256.

    Raises:
        InvalidType: If the capacity is not an int.
        InvalidArgument: If the capacity is below 1.

    Examples:
        >>> import torch
        >>> cache = KVCache()
        >>> step = torch.ones(3, 2, 1, 4)
        >>> for _ in range(5):
        ...     key, value = cache.append(step, step)
        >>> key.shape
        torch.Size([3, 2, 5, 4])
    """

    def __init__(self, capacity: int = 256) -> None:
        with Checks() as checks:
            checks.integer("capacity", capacity, low=1)
        self.capacity = capacity
        self.length = 0
        self._buffers: tuple[Tensor, ...] = ()  # keys and values, (rows, kv_heads, capacity, dim)

    def append(
        self, key: Float[Tensor, "rows kv_heads new key_dim"], value: Float[Tensor, "rows kv_heads new value_dim"]
    ) -> tuple[Float[Tensor, "rows kv_heads length key_dim"], Float[Tensor, "rows kv_heads length value_dim"]]:
        """Append keys and values (rows, kv_heads, new, dim), and return all of them (rows, kv_heads, length, dim).

        Raises:
            InvalidArgument: If their shapes do not fit each other or the cache, or they require grad; the cache then
                stays as it is.
        """
        self._check(key, value)
        start, self.length = self.length, self.length + key.shape[2]
        if not self._buffers or self.length > self.capacity:
            while self.capacity < self.length:
                self.capacity *= 2
            cached, dtype = self._buffers, stored_dtype(key)
            self._buffers = tuple(
                new.new_empty(*new.shape[:2], self.capacity, new.shape[3], dtype=dtype) for new in (key, value)
            )
            self._write(cached)
        self._write((key, value), start)
        all_keys, all_values = (buffer[:, :, : self.length] for buffer in self._buffers)
        return all_keys, all_values

    def batch_select_indices(self, rows: Int[Tensor, " selected"]) -> None:
        """Continue with the rows at these indices; a row may be selected several times."""
        selected = [buffer[:, :, : self.length].index_select(0, rows) for buffer in self._buffers]
        if self._buffers and len(rows) != len(self._buffers[0]):
            self._buffers = tuple(buffer.new_empty(len(rows), *buffer.shape[1:]) for buffer in self._buffers)
        self._write(selected)

    def batch_repeat_interleave(self, count: int) -> None:
        """Continue with several adjacent copies of each row."""
        self._buffers = tuple(buffer.repeat_interleave(count, 0) for buffer in self._buffers)

    def select_tokens(self, indices: Int[Tensor, "rows count"]) -> None:
        """Keep only some tokens of each row, by index, (rows, count)."""
        self.length = indices.shape[1]
        index = indices[:, None, :, None]
        self._write(
            [buffer.gather(2, index.expand(-1, buffer.shape[1], -1, buffer.shape[3])) for buffer in self._buffers]
        )

    def _write(self, entries: Sequence[Tensor], start: int = 0) -> None:
        """Write keys and values into the buffers, as tokens from start on."""
        for buffer, new in zip(self._buffers, entries, strict=False):  # no entries if nothing is cached yet
            buffer[:, :, start : start + new.shape[2]] = new

    def _check(self, key: Tensor, value: Tensor) -> None:
        with Checks() as checks:
            if key.ndim != 4 or value.ndim != 4 or key.shape[:3] != value.shape[:3]:
                shapes = f"{tuple(key.shape)} and {tuple(value.shape)}"
                checks.fail(f"key, value: expected (rows, kv_heads, new, dim), equal up to dim, got {shapes}")
                return
            if torch.is_grad_enabled() and (key.requires_grad or value.requires_grad):
                checks.fail("key, value: expected tensors without grad in a cache; decode under torch.no_grad()")
            for name, new, buffer in zip(("key", "value"), (key, value), self._buffers, strict=False):
                for axis, dim in (("rows", 0), ("kv_heads", 1), ("dim", 3)):
                    size, cached = new.shape[dim], buffer.shape[dim]
                    checks.that(size == cached, f"{name}: expected {axis} = {cached}, as in the cache, got {size}")


class CrossAttentionCache:
    """Keys and values of cross-attention: projected from the memory in the first step, then only read.

    They exist once for each sentence, however many beams decode it.
    """

    def __init__(self) -> None:
        self.key_value: tuple[Tensor, Tensor] | None = None

    def fill(
        self,
        key: Float[Tensor, "sentences kv_heads keys head_dim"],
        value: Float[Tensor, "sentences kv_heads keys head_dim"],
    ) -> tuple[Float[Tensor, "sentences kv_heads keys head_dim"], Float[Tensor, "sentences kv_heads keys head_dim"]]:
        """Store keys and values (sentences, kv_heads, keys, head_dim), and return them as they are stored."""
        dtype = stored_dtype(key)
        self.key_value = key.to(dtype).contiguous(), value.to(dtype).contiguous()
        return self.key_value

    def batch_select_indices(self, sentences: Int[Tensor, " selected"]) -> None:
        """Continue with the sentences at these indices."""
        if self.key_value is not None:
            key, value = self.key_value
            self.key_value = key.index_select(0, sentences), value.index_select(0, sentences)


@dataclass
class LayerCache:
    """The caches of one decoder layer."""

    self_attention: KVCache = field(default_factory=KVCache)
    cross_attention: CrossAttentionCache = field(default_factory=CrossAttentionCache)


class DecoderCache(Cache):
    """The caches of all decoder layers, in which each row has its own keys in the order of its tokens.

    Position-dependent scores need this order. Reordering beams copies keys and values.

    Args:
        num_layers: Number of decoder layers.

    Examples:
        >>> cache = DecoderCache(3)
        >>> cache.length, len(cache.layers)
        (0, 3)
    """

    shares_beams = False
    """Whether all beams of a sentence are one row of the self-attention caches."""

    def __init__(self, num_layers: int) -> None:
        self.layers = [LayerCache() for _ in range(num_layers)]
        self.length = 0

    def advance(
        self, sentences: int, beams: int, tokens: int, device: torch.device
    ) -> Mask | Bool[Tensor, "sentences 1 queries keys"] | None:
        """Count new tokens in each of ``beams`` rows of each sentence.

        Returns:
            The mask of self-attention from the new tokens to all tokens; None if there is nothing to mask.
        """
        self.length += tokens
        return None if tokens == 1 else Causal()

    def batch_repeat_interleave(self, beams: int) -> None:
        for layer in self.layers:
            layer.self_attention.batch_repeat_interleave(beams)

    def reorder_cache(self, rows: Int[Tensor, " rows"]) -> None:
        for layer in self.layers:
            layer.self_attention.batch_select_indices(rows)

    def batch_select_indices(self, sentences: Int[Tensor, " selected"], rows: Int[Tensor, " rows"]) -> None:
        for layer in self.layers:
            layer.cross_attention.batch_select_indices(sentences)
        self.reorder_cache(rows)


class SharedBeamCache(DecoderCache):
    """The caches of all decoder layers, in which all beams of a sentence append to one cache.

    A bool mask says which entries belong to the history of each beam. Reordering beams then copies rows of the mask
    instead of keys and values. Entries that no beam uses any more are pruned every few steps.

    Args:
        num_layers: Number of decoder layers.
    """

    shares_beams = True

    def __init__(self, num_layers: int) -> None:
        super().__init__(num_layers)
        self._visible: Tensor | None = None  # (sentences, beams, entries): the history of each beam
        self._num_checked = 0  # entries that existed when the cache was last pruned

    def advance(
        self, sentences: int, beams: int, tokens: int, device: torch.device
    ) -> Mask | Bool[Tensor, "sentences 1 queries keys"] | None:
        """Add new tokens to the history of each beam; see `DecoderCache`. Queries are in the order beam, token.

        Raises:
            InvalidArgument: If there are other sentences or beams than before.
        """
        visible = self._visible
        if visible is None:
            visible = torch.zeros(sentences, beams, 0, dtype=torch.bool, device=device)
        if visible.shape[:2] != (sentences, beams):
            raise InvalidArgument(
                f"cache: expected the {visible.shape[0]} sentences of {visible.shape[1]} rows that it holds, got "
                f"{sentences} of {beams}; call cache.batch_select_indices first"
            )
        mask = super().advance(sentences, beams, tokens, device)
        own = torch.eye(beams, dtype=torch.bool, device=device).repeat_interleave(tokens, dim=1)
        self._visible = torch.cat([visible, own.expand(sentences, -1, -1)], dim=2)
        if beams == 1:
            return mask
        if tokens == 1:
            return self._visible.unsqueeze(1)  # (sentences, 1, beams, entries)
        past = torch.ones(tokens, tokens, dtype=torch.bool, device=device).tril()
        new = torch.block_diag(*[past] * beams).expand(sentences, -1, -1)
        mask = torch.cat([visible.repeat_interleave(tokens, dim=1), new], dim=2)
        return mask.unsqueeze(1)  # (sentences, 1, beams · tokens, entries)

    def batch_repeat_interleave(self, beams: int) -> None:
        if self._visible is not None:
            self._visible = self._visible.expand(-1, beams, -1)

    def reorder_cache(self, rows: Int[Tensor, " rows"]) -> None:
        if self._visible is not None:
            shape = self._visible.shape
            self._visible = self._visible.flatten(0, 1).index_select(0, rows).view(-1, *shape[1:])
            if shape[2] >= self._num_checked + PRUNE_INTERVAL * shape[1]:
                self._prune(self._visible)

    def batch_select_indices(self, sentences: Int[Tensor, " selected"], rows: Int[Tensor, " rows"]) -> None:
        for layer in self.layers:
            layer.self_attention.batch_select_indices(sentences)
        super().batch_select_indices(sentences, rows)

    def _prune(self, visible: Tensor) -> None:
        """Drop the entries that no beam of their sentence uses, if they are at least a quarter."""
        used = visible.any(1)  # (sentences, entries)
        count = int(used.sum(1).max()) if used.shape[0] else 0
        if 0 < 4 * count <= 3 * used.shape[1]:
            # The used entries in their order; sentences with fewer of them keep some unused ones.
            indices = used.logical_not().to(torch.uint8).argsort(dim=1, stable=True)[:, :count]
            self._visible = visible.gather(2, indices.unsqueeze(1).expand(-1, visible.shape[1], -1))
            for layer in self.layers:
                layer.self_attention.select_tokens(indices)
            self._num_checked = count
        else:
            self._num_checked = used.shape[1]
