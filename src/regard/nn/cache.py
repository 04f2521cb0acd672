"""What a decoder keeps between steps, so that a step computes only its own token."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.errors import InvalidArgument, count_problems, raise_problems
from regard.ops.masks import Causal, Mask

EVERY = 8
"""After so many tokens it is looked whether entries that no beam sees can be dropped."""


def stored_dtype(tensor: Tensor) -> torch.dtype:
    """What keys and values are kept in: on a CPU float32, where attention from few queries is slow in 16 bits."""
    return torch.promote_types(tensor.dtype, torch.float32) if tensor.device.type == "cpu" else tensor.dtype


class GrowingCache:
    """Keys and values of decoder self-attention: each step appends its own.

    It is for inference: what is appended is written over in place, which gradients could not flow through. The buffers
    double when they are full, so that appending costs amortised O(1) copies a token.

    Args:
        capacity: Number of tokens to make room for at first, at least 1.

    Raises:
        InvalidArgument: If there is no room at all.

    Example:
        >>> import torch
        >>> cache = GrowingCache()
        >>> step = torch.ones(3, 2, 1, 4)
        >>> for _ in range(5):
        ...     key, value = cache.append(step, step)
        >>> key.shape
        torch.Size([3, 2, 5, 4])
    """

    def __init__(self, capacity: int = 256) -> None:
        raise_problems(count_problems(capacity=capacity))
        self.capacity = capacity
        self.length = 0
        self._buffers: tuple[Tensor, ...] = ()

    def append(
        self,
        key: Float[Tensor, "sentences kv_heads new key_dim"],
        value: Float[Tensor, "sentences kv_heads new value_dim"],
    ) -> tuple[
        Float[Tensor, "sentences kv_heads length key_dim"], Float[Tensor, "sentences kv_heads length value_dim"]
    ]:
        """Add key and value (sentences, kv_heads, new, dim); return all of them (sentences, kv_heads, length, dim).

        Raises:
            InvalidArgument: If they do not fit each other or what is there, or require grad; then nothing changes.
        """
        raise_problems(self._objections(key, value))
        start, self.length = self.length, self.length + key.shape[2]
        self._make_room(key, value)
        for buffer, new in zip(self._buffers, (key, value), strict=True):
            buffer[:, :, start : self.length] = new
        stored_key, stored_value = (buffer[:, :, : self.length] for buffer in self._buffers)
        return stored_key, stored_value

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        """Go on with the rows at these indices; one may come several times."""
        held = [buffer[:, :, : self.length].index_select(0, rows) for buffer in self._buffers]
        if held and rows.shape[0] != self._buffers[0].shape[0]:
            self._buffers = tuple(buffer.new_empty(rows.shape[0], *buffer.shape[1:]) for buffer in self._buffers)
        for buffer, kept in zip(self._buffers, held, strict=True):
            buffer[:, :, : self.length] = kept

    def spread(self, count: int) -> None:
        """Go on with so many rows of each, side by side."""
        self._buffers = tuple(buffer.repeat_interleave(count, 0) for buffer in self._buffers)

    def select(self, entries: Int[Tensor, "sentences count"]) -> None:
        """Keep of each sentence only the tokens at these places, (sentences, count)."""
        self.length = entries.shape[1]
        for_heads = entries[:, None, :, None]
        selected = [
            buffer.gather(2, for_heads.expand(-1, buffer.shape[1], -1, buffer.shape[3])) for buffer in self._buffers
        ]
        for buffer, kept in zip(self._buffers, selected, strict=True):
            buffer[:, :, : self.length] = kept

    def _objections(self, key: Tensor, value: Tensor) -> list[str]:
        if key.ndim != 4 or value.ndim != 4 or key.shape[:3] != value.shape[:3]:
            shapes = f"key has the shape {tuple(key.shape)} and value {tuple(value.shape)}"
            return [f"key and value must have the shape (sentences, kv_heads, new, dim) up to dim, but {shapes}"]
        objections = []
        if torch.is_grad_enabled() and (key.requires_grad or value.requires_grad):
            objections.append(
                "GrowingCache is for inference, but the new key or value requires grad: decode under torch.no_grad()"
            )
        if self._buffers and key.shape[0] != self._buffers[0].shape[0]:
            came = f"the cache holds {self._buffers[0].shape[0]} sentences, but the new key has {key.shape[0]}"
            objections.append(f"{came}: keep those that go on")
        for name, new, buffer in zip(("key", "value"), (key, value), self._buffers, strict=False):
            objections += [
                f"the cache holds {axis} {buffer.shape[dim]} of a {name}, but the new one has {new.shape[dim]}"
                for axis, dim in (("kv_heads", 1), ("dim", 3))
                if new.shape[dim] != buffer.shape[dim]
            ]
        return objections

    def _make_room(self, key: Tensor, value: Tensor) -> None:
        if self._buffers and self.length <= self._buffers[0].shape[2]:
            return
        while self.capacity < self.length:
            self.capacity *= 2
        old = self._buffers
        dtype = stored_dtype(key)
        self._buffers = tuple(
            new.new_empty(*new.shape[:2], self.capacity, new.shape[3], dtype=dtype) for new in (key, value)
        )
        for buffer, previous in zip(self._buffers, old, strict=False):
            buffer[:, :, : previous.shape[2]] = previous


class FixedCache:
    """Keys and values of cross-attention: projected from the encoder's memory at the first step, then only read.

    They are kept once a sentence, however many beams decode it.
    """

    def __init__(self) -> None:
        self.held: tuple[Tensor, Tensor] | None = None

    def fill(
        self,
        key: Float[Tensor, "sentences kv_heads keys head_dim"],
        value: Float[Tensor, "sentences kv_heads keys head_dim"],
    ) -> tuple[Float[Tensor, "sentences kv_heads keys head_dim"], Float[Tensor, "sentences kv_heads keys head_dim"]]:
        """Keep key and value (sentences, kv_heads, keys, head_dim), and give them as they are kept."""
        dtype = stored_dtype(key)
        self.held = key.to(dtype).contiguous(), value.to(dtype).contiguous()
        return self.held

    def keep(self, sentences: Int[Tensor, " kept"]) -> None:
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
    """The caches of all decoder layers, for sentences that are each decoded in as many rows, or beams, side by side.

    Shared, the beams of a sentence have one cache: every beam appends to it, and which of its entries a beam goes on
    from is a mask. So a beam that goes on from another's words copies nothing but its row of that mask. What no beam
    goes on from any more is dropped now and then. Not shared, each row has its own keys, token by token, which rules
    that know distances need, and a beam that goes on from another's words copies all of them.

    Args:
        num_layers: Number of decoder layers.
        shared: Whether the rows of a sentence share self-attention's keys.

    Example:
        >>> cache = DecoderCache(3)
        >>> cache.length, len(cache.layers)
        (0, 3)
    """

    def __init__(self, num_layers: int, *, shared: bool = True) -> None:
        self.layers = [LayerCache() for _ in range(num_layers)]
        self.shared = shared
        self.length = 0
        """Number of tokens that each row has."""
        self._visible: Tensor | None = None  # (sentences, beams, entries): which entries each beam goes on from
        self._checked = 0  # entries that were there when it was last looked whether some can be dropped

    def extend(
        self, sentences: int, beams: int, tokens: int, device: torch.device
    ) -> Mask | Bool[Tensor, "sentences 1 queries keys"] | None:
        """Make room for new tokens of each row, and tell what they may see.

        Args:
            sentences: Number of sentences.
            beams: Number of rows of each sentence.
            tokens: Number of new tokens of each row.
            device: Where the mask is to lie.

        Returns:
            The mask of self-attention from the new tokens to all; in a shared cache for queries in the order beam,
            token.
        """
        if not self.shared:
            self.length += tokens
            return None if tokens == 1 else Causal()
        old = (
            torch.zeros(sentences, beams, 0, dtype=torch.bool, device=device)
            if self._visible is None
            else self._visible
        )
        if old.shape[:2] != (sentences, beams):
            raise InvalidArgument(
                f"the cache holds {old.shape[0]} sentences of {old.shape[1]} rows, but {sentences} of {beams} go on: "
                "keep those that go on"
            )
        self.length += tokens
        own = torch.eye(beams, dtype=torch.bool, device=device).repeat_interleave(
            tokens, dim=1
        )  # (beams, beams · tokens)
        self._visible = torch.cat([old, own.expand(sentences, -1, -1)], dim=2)
        if beams == 1:  # a single token may see all: no mask is cheaper than one that hides nothing
            return None if tokens == 1 else Causal()
        if tokens == 1:
            return self._visible.unsqueeze(1)  # (sentences, 1, beams, entries)
        past = torch.ones(tokens, tokens, dtype=torch.bool, device=device).tril().repeat(beams, beams)
        new = past & own.repeat_interleave(tokens, dim=0)  # (beams · tokens, beams · tokens)
        seen = torch.cat([old.repeat_interleave(tokens, dim=1), new.expand(sentences, -1, -1)], dim=2)
        return seen.unsqueeze(1)  # (sentences, 1, beams · tokens, entries)

    def spread(self, beams: int) -> None:
        """Make of the one row of each sentence so many, which go on from it."""
        if self._visible is not None:
            self._visible = self._visible.expand(-1, beams, -1)
        if not self.shared:
            for layer in self.layers:
                layer.self_attention.spread(beams)

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        """Let row i go on from row ``rows[i]`` of the same sentence."""
        if not self.shared:
            for layer in self.layers:
                layer.self_attention.keep(rows)
        elif self._visible is not None:
            shape = self._visible.shape
            self._visible = self._visible.flatten(0, 1).index_select(0, rows).view(-1, *shape[1:])
            if shape[2] >= self._checked + EVERY * shape[1]:
                self._drop_unseen(self._visible)

    def _drop_unseen(self, visible: Tensor) -> None:
        """Drop the entries that no beam of their sentence sees, if they are a quarter of all."""
        seen = visible.any(1)  # (sentences, entries)
        count = int(seen.sum(1).max()) if seen.shape[0] else 0
        if 0 < 4 * count <= 3 * seen.shape[1]:
            # Those that are seen first, in their order; of a sentence with fewer some that are not seen fill up.
            places = seen.logical_not().to(torch.uint8).argsort(dim=1, stable=True)[:, :count]
            self._visible = visible.gather(2, places.unsqueeze(1).expand(-1, visible.shape[1], -1))
            for layer in self.layers:
                layer.self_attention.select(places)
            self._checked = count
        else:
            self._checked = seen.shape[1]

    def keep(self, sentences: Int[Tensor, " kept"], rows: Int[Tensor, " rows"]) -> None:
        """Go on with some sentences only, whose row i goes on from row ``rows[i]``, counted before others left."""
        for layer in self.layers:
            if self.shared:
                layer.self_attention.keep(sentences)
            layer.cross_attention.keep(sentences)
        self.reorder(rows)
