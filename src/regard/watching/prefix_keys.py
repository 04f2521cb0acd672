"""Keys that are not tokens of the sequence: those of an encoder in the same softmax, or compressed ones.

T5Gemma 2 attends to the tokens of its decoder and its encoder at once, DeepSeek V4 to tokens and to compressed keys.
These models append such keys to those of the sequence. Here they come first, as a prefix with positions before the
sequence, so that a growing cache appends its keys as in other models. All that follows from this is in this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.ops.masks import Spans

if TYPE_CHECKING:
    from regard.watching.transformers_masks import MaskOrigin


def as_prefix(keys: Tensor, count: int, axis: int) -> Tensor:
    """A tensor whose last `count` entries along the axis of keys come first."""
    return keys.roll(count, axis) if count else keys


def as_in_model(keys: Tensor, count: int, axis: int) -> Tensor:
    """The reverse of `as_prefix`."""
    return keys.roll(-count, axis) if count else keys


def find_origin_with_prefix(
    mask: Tensor, shape: tuple[int, int], known: Sequence[tuple[Tensor, MaskOrigin]]
) -> tuple[MaskOrigin | None, bool]:
    """The origin of a mask that a layer extended by further keys.

    Args:
        mask: The mask, (batch or 1, heads or 1, queries, keys).
        shape: (queries, keys).
        known: The masks that the model made in this forward pass, and their origins.

    Returns:
        The origin, None if the mask extends none of these; and whether the further keys are certainly an encoder's.
    """
    encoders = {origin.shape for _, origin in known if origin.pattern == "all"}
    extended: list[MaskOrigin] = []
    for one, origin in sorted(known, key=lambda pair: -pair[1].shape[1]):
        queries, keys = origin.shape
        if origin.pattern == "all" or queries != shape[0] or keys >= shape[1]:
            continue
        own, part = one.expand(*one.shape[:2], queries, keys), mask[..., :keys]
        if own.dtype == part.dtype and torch.equal(own, part):
            count = shape[1] - keys
            extended.append(
                replace(origin, shape=shape, kv_offset=origin.kv_offset - count, num_prefix_keys=count, pattern=None)
            )
    of_encoder = [origin for origin in extended if (shape[0], origin.num_prefix_keys) in encoders]
    return next(iter(of_encoder or extended), None), bool(of_encoder)


@dataclass(frozen=True)
class KeyPlacement:
    """Where the keys of a call are among those of its layer: a prefix stays in front, and the others are shifted.

    Args:
        offset: The number of keys by which the others are shifted.
        num_prefix: The number of keys in the prefix.
    """

    offset: int = 0
    num_prefix: int = 0

    def spans(self, spans: Spans) -> tuple[Tensor, Tensor]:
        """The starts and stops of ranges of keys; a range over the prefix and other keys becomes two."""
        if not self.num_prefix or not self.offset:
            return spans.starts + self.offset, spans.stops + self.offset
        starts, stops = (
            torch.cat([side.clamp(max=self.num_prefix), side.clamp(min=self.num_prefix) + self.offset], -1)
            for side in (spans.starts, spans.stops)
        )
        return starts, stops

    def entries(self, entries: Tensor, axis: int) -> Tensor:
        """Entries of keys along an axis, 0 where the keys of the layer are not those of the call."""
        if not self.offset:
            return entries
        prefix, own = entries.tensor_split([self.num_prefix], axis)
        shape = list(own.shape)
        shape[axis] = self.offset
        gap = own.new_zeros(shape)
        return torch.cat([prefix, gap, own], axis)

    def indices(self, indices: Tensor) -> Tensor:
        """Indices of keys; a negative one stands for no key."""
        return torch.where(indices >= self.num_prefix, indices + self.offset, indices)
