"""What a decoder keeps between steps, so that a step computes only its own token."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.errors import InvalidArgument


class GrowingCache:
    """Keys and values of decoder self-attention: each step appends its own.

    The buffers double when they are full, so that appending costs amortised O(1) copies a token.

    Args:
        capacity: Number of steps to make room for at first.

    Example:
        >>> import torch
        >>> cache = GrowingCache()
        >>> step = torch.ones(3, 2, 1, 4)
        >>> for _ in range(5):
        ...     key, value = cache.append(step, step)
        >>> key.shape
        torch.Size([3, 2, 5, 4])
    """

    def __init__(self, capacity: int = 32) -> None:
        self.capacity = capacity
        self.length = 0
        self._buffers: tuple[Tensor, ...] = ()

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add key and value (rows, kv_heads, new, head_dim); return all of them (rows, kv_heads, length, head_dim)."""
        start, self.length = self.length, self.length + key.shape[2]
        self._make_room(key, value)
        for buffer, new in zip(self._buffers, (key, value), strict=True):
            buffer[:, :, start : self.length] = new
        stored_key, stored_value = (buffer[:, :, : self.length] for buffer in self._buffers)
        return stored_key, stored_value

    def _make_room(self, key: Tensor, value: Tensor) -> None:
        if self._buffers and key.shape[0] != self._buffers[0].shape[0]:
            raise InvalidArgument(
                f"the cache holds {self._buffers[0].shape[0]} rows, but the new key has {key.shape[0]}: "
                "reorder the cache to the rows that go on"
            )
        if self._buffers and self.length <= self._buffers[0].shape[2]:
            return
        while self.capacity < self.length:
            self.capacity *= 2
        old = self._buffers
        self._buffers = tuple(new.new_empty(*new.shape[:2], self.capacity, new.shape[3]) for new in (key, value))
        for buffer, previous in zip(self._buffers, old, strict=False):
            buffer[:, :, : previous.shape[2]] = previous

    def reorder(self, rows: Tensor) -> None:
        """Let row i go on from what row ``rows[i]`` holds; there may be fewer rows than before."""
        if not self._buffers:
            return
        count = self._buffers[0].shape[0]
        if rows.shape[0] != count:
            self._buffers = tuple(buffer.index_select(0, rows) for buffer in self._buffers)
            return
        moved = (rows != torch.arange(count, device=rows.device)).nonzero().squeeze(1)
        for buffer in self._buffers if moved.numel() else ():
            filled = buffer[:, :, : self.length]
            filled[moved] = filled[rows[moved]]


class FixedCache:
    """Keys and values of cross-attention: projected from the encoder's memory at the first step, then only read.

    They are kept once a sentence, however many beams decode it.
    """

    def __init__(self) -> None:
        self.held: tuple[Tensor, Tensor] | None = None

    def fill(self, key: Tensor, value: Tensor) -> None:
        """Keep key and value (sentences, kv_heads, keys, head_dim)."""
        self.held = key.contiguous(), value.contiguous()

    def keep(self, sentences: Tensor) -> None:
        """Drop all but the sentences at these indices."""
        if self.held is not None:
            key, value = self.held
            self.held = key.index_select(0, sentences), value.index_select(0, sentences)


@dataclass
class LayerCache:
    """The caches of one decoder layer."""

    self_attention: GrowingCache = field(default_factory=GrowingCache)
    cross_attention: FixedCache = field(default_factory=FixedCache)


class DecoderCache:
    """The caches of all decoder layers.

    Decoding goes row by row of ``sentences × beams`` rows, those of one sentence side by side.

    Args:
        num_layers: Number of decoder layers.

    Example:
        >>> cache = DecoderCache(3)
        >>> cache.length, len(cache.layers)
        (0, 3)
    """

    def __init__(self, num_layers: int) -> None:
        self.layers = [LayerCache() for _ in range(num_layers)]

    @property
    def length(self) -> int:
        """Number of tokens that were decoded."""
        return self.layers[0].self_attention.length if self.layers else 0

    def reorder(self, rows: Tensor) -> None:
        """Let row i go on from row ``rows[i]``; cross-attention stays, since rows move within their sentence only."""
        for layer in self.layers:
            layer.self_attention.reorder(rows)

    def keep(self, sentences: Tensor, rows: Tensor) -> None:
        """Go on with some sentences only: ``sentences`` in cross-attention, their ``rows`` in self-attention."""
        for layer in self.layers:
            layer.cross_attention.keep(sentences)
        self.reorder(rows)
