"""What the masks of transformers' models mean: a rule, the positions of queries and keys, and padding.

Models build their masks by functions of `ALL_MASK_ATTENTION_FUNCTIONS`. While a watch is open these are wrapped, and a
`MaskOrigins` remembers the arguments that each mask was made from.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import pad
from torch.utils.weak import WeakIdKeyDictionary

from regard.ops.masks import Causal, Mask, Padding, as_mask, from_block_mask, to_spans
from regard.recordings.layer import AttentionKind
from regard.watching.prefix_keys import find_origin_with_prefix
from regard.watching.registry import active_listeners
from regard.watching.spans_tensor import SpansTensor

MAX_REMEMBERED_MASKS = 256
"""As many as a model may make in one forward pass."""


@dataclass(eq=False)
class MaskOrigin:
    """The arguments that a mask was made from.

    Args:
        shape: (queries, keys).
        q_offset: Position of the first query.
        kv_offset: Position of the first key.
        padding: (batch, tokens) bool, False where a token is padding.
        pattern: The mask function, where it is one of transformers' own; without padding.
        num_prefix_keys: Number of keys that a layer adds to those of the sequence; see `prefix_keys`.
        is_unknown: Whether the model did not make the mask, so that the queries count as the last keys.
    """

    shape: tuple[int, int]
    q_offset: int = 0
    kv_offset: int = 0
    padding: Tensor | None = None
    pattern: Literal["causal", "all"] | None = None
    num_prefix_keys: int = 0
    is_unknown: bool = False
    _read: tuple[int, Mask | None, Tensor | None] | None = field(default=None, init=False)  # not copied by replace()

    @classmethod
    def unknown(cls, shape: tuple[int, int]) -> MaskOrigin:
        """The origin of a mask that the model did not make."""
        return cls(shape, q_offset=shape[1] - shape[0], is_unknown=True)

    def read(self, mask: Tensor | BlockMask) -> tuple[Mask | None, Tensor | None]:
        """A mask as a rule, None if every query attends to every key, and the bias that it adds, or None."""
        if isinstance(mask, SpansTensor):
            return mask.spans, None
        if isinstance(mask, BlockMask):
            self._read = self._read or (0, self._rule(mask), None)
            return self._read[1:]
        version = None if mask.is_inference() else mask._version  # tensors of inference mode do not count changes
        if self._read is None or version is None or self._read[0] != version:
            mask = mask.expand(*mask.shape[:-2], *self.shape)
            allowed, bias = mask, None
            if mask.dtype != torch.bool:
                allowed = mask > torch.finfo(mask.dtype).min / 2
                added = mask.masked_fill(~allowed, 0)
                bias = added if bool(added.any()) else None
            self._read = version or 0, self._rule(allowed), bias
        return self._read[1:]

    def part_of_padding(self, start: int, size: int) -> Tensor | None:
        """Which of some tokens are valid, (batch, size); those beyond the last are not."""
        if self.padding is None:
            return None
        part = self.padding[:, start : start + size]
        return pad(part, (0, size - part.shape[1]))

    def _rule(self, allowed: Tensor | BlockMask) -> Mask | None:
        if self.pattern is None and isinstance(allowed, BlockMask):
            rule, (batch, heads, *_) = from_block_mask(allowed), allowed.kv_num_blocks.shape
            return to_spans(rule, (batch, heads, *self.shape), 0, allowed.kv_num_blocks.device) or rule
        if self.pattern is None:
            assert isinstance(allowed, Tensor)
            batch, heads, queries, keys = (1,) * (4 - allowed.ndim) + tuple(allowed.shape)
            spans = to_spans(allowed, (batch, heads, queries, keys), 0, allowed.device)
            return spans or as_mask(allowed.clone())  # a clone, because MaskOrigins holds the mask itself weakly
        of_keys = None
        padding = self.part_of_padding(self.kv_offset, self.shape[1])
        if padding is not None and self.padding is not None and not bool(self.padding.all()):
            of_keys = Padding(padding)
        if self.pattern == "all":
            return of_keys
        rule = Causal() if of_keys is None else Causal() & of_keys
        if of_keys is None or self.shape[0] > 1:
            return rule
        # A decode step: spans, which all layers share, are concatenated with those of other steps.
        padding = of_keys.lengths_or_mask
        return to_spans(rule, (len(padding), 1, *self.shape), self.q_offset - self.kv_offset, padding.device) or rule


class MaskOrigins:
    """The origins of a model's masks: tensors, or each a `BlockMask`.

    The origin of a mask lives as long as the mask. The origin of a skipped mask (None) lives until the next
    forward pass, because gradient checkpointing runs layers again in the backward pass.
    """

    def __init__(self) -> None:
        self._of_masks = WeakIdKeyDictionary()
        self._skipped: deque[MaskOrigin] = deque(maxlen=MAX_REMEMBERED_MASKS)
        self._strong_refs: deque[Tensor | BlockMask] = deque(
            maxlen=MAX_REMEMBERED_MASKS
        )  # a layer may be passed a copy
        self._is_stale = False

    def on_forward_start(self) -> None:
        """Forget the masks of the forward pass before, unless a layer runs again in the backward pass."""
        if self._is_stale and torch._C._current_graph_task_id() == -1:
            self._skipped.clear()
            self._strong_refs.clear()
            self._is_stale = False

    def on_forward_end(self) -> None:
        """Let go of the masks."""
        self._strong_refs.clear()
        self._is_stale = True

    def record(self, mask: Any, origin: MaskOrigin, is_own: bool = True) -> None:
        """Remember a mask. One of a configuration that is not known to be the model's own is not kept alive."""
        self.on_forward_start()
        if isinstance(mask, (Tensor, BlockMask)):
            self._of_masks[mask] = origin
            if is_own:
                self._strong_refs.append(mask)
        elif mask is None:
            self._skipped.append(origin)

    def lookup(self, mask: Tensor | BlockMask | None, shape: tuple[int, int], kind: AttentionKind) -> MaskOrigin:
        """The origin of the mask that an attention function is called with."""
        if mask is None:
            return _first_of_kind(reversed(self._skipped), shape, kind)
        origin = self._of_masks.get(mask)
        if origin is None:
            self._of_masks[mask] = origin = self._find_similar(mask, shape, kind)
        return origin

    def of_shape(self, shape: tuple[int, int], kind: AttentionKind) -> MaskOrigin:
        """The origin of the mask that the model made in this forward pass for a layer, which adds it itself."""
        held = (self._of_masks[mask] for mask in reversed(self._strong_refs))
        return _first_of_kind((*held, *reversed(self._skipped)), shape, kind)

    def is_causal(self, shape: tuple[int, int] | None) -> bool:
        """Whether the model made a causal mask of this shape in this forward pass."""
        for origin in (*self._skipped, *map(self._of_masks.__getitem__, self._strong_refs)):
            if origin.pattern == "causal" and origin.shape == shape:
                return True
        return False

    def _find_similar(self, mask: Tensor | BlockMask, shape: tuple[int, int], kind: AttentionKind) -> MaskOrigin:
        """The origin of a mask that is not registered: perhaps a copy of one that is, or made from one."""
        held = [(known, self._of_masks[known]) for known in reversed(self._strong_refs)]
        extended, is_certain, copied = None, False, []
        if isinstance(mask, Tensor):
            tensors = [(known, origin) for known, origin in held if isinstance(known, Tensor)]
            extended, is_certain = find_origin_with_prefix(mask, shape, tensors)
            registered = list(self._of_masks.items())
            copied = [origin for known, origin in registered if origin.shape == shape and _are_equal(known, mask)]
        changed = [origin for _, origin in held if origin.shape == shape]  # as where a layer selects some of the keys
        changed += [origin for origin in reversed(self._skipped) if origin.shape == shape]
        if extended is not None and (is_certain or not (copied or changed)):
            return extended
        return _first_of_kind(copied or [replace(origin, pattern=None) for origin in changed], shape, kind)


def make_mask(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a mask function, and register its mask with the listener of its configuration."""
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

    mask = function(*args, **options)  # transformers calls them by keyword only
    patterns: dict[Any, Any] = {causal_mask_function: "causal", bidirectional_mask_function: "all"}
    origin = MaskOrigin(
        (int(options["q_length"]), int(options["kv_length"])),
        int(options.get("q_offset", 0)),
        int(options.get("kv_offset", 0)),
        options.get("attention_mask"),
        patterns.get(options.get("mask_function")),
    )
    listeners = active_listeners()
    own = [listener for listener in listeners if id(options.get("config")) in listener.config_ids]
    for listener in own or listeners:
        listener.masks.record(mask, origin, is_own=bool(own))
    return mask


def _first_of_kind(origins: Iterable[MaskOrigin], shape: tuple[int, int], kind: AttentionKind) -> MaskOrigin:
    """The first origin of a shape for a kind of layer: decoder and encoder may have equally many tokens."""
    first: MaskOrigin | None = None
    for origin in origins:
        if origin.shape == shape:
            if (origin.pattern == "all") != (kind == "decoder"):
                return origin
            first = first or origin
    return first or MaskOrigin.unknown(shape)


def _are_equal(one: Tensor | BlockMask, other: Tensor) -> bool:
    return isinstance(one, Tensor) and one.dtype == other.dtype and torch.equal(one, other)
