"""What an attention function was given, read as a call: its mask as a rule, and where its tokens stand."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from regard.analysis.recording import Kind
from regard.errors import InvalidArgument
from regard.ops.masks import Causal, Mask, Padding, Window, as_mask, to_spans
from regard.ops.scores import ScaledDotProduct, Score, Sinks, SoftCap
from regard.watching.calls import Call

REFUSED = {"indices", "block_indices", "top_k_indices"}
"""What attention to chosen keys is given, which no mask says."""

MOST = 256
"""So many masks are remembered."""

UNDERSTOOD = {"dropout", "scaling", "softcap", "s_aux", "position_bias", "is_causal", "sliding_window"}
"""What an attention function may name among its parameters: each changes the weights in a way that is known here."""


@dataclass(eq=False)
class Made:
    """A mask that a model made, and of what.

    Args:
        size: (queries, keys).
        first: The position of the first query.
        first_key: The position of the first key.
        padding: (batch, tokens) bool, False where a token is padding.
        pattern: What the model asked for, before padding, where it is one that has a name.
        extra: How many keys behind those of the sequence are others; see `Call`.
    """

    size: tuple[int, int]
    first: int = 0
    first_key: int = 0
    padding: Tensor | None = None
    pattern: Literal["causal", "all"] | None = None
    extra: int = 0
    _read: tuple[int, Mask | None, Tensor | None] | None = field(default=None, init=False)  # not copied by replace()

    def read(self, mask: Tensor) -> tuple[Mask | None, Tensor | None]:
        """The mask as a rule, None where every query sees every key, and what it adds to the scores."""
        version = None if mask.is_inference() else mask._version  # such a tensor counts no changes
        if self._read is None or version is None or self._read[0] != version:
            mask = mask.expand(*mask.shape[:-2], *self.size)  # one row may speak of all
            allowed, bias = mask, None
            if mask.dtype != torch.bool:
                allowed = mask > torch.finfo(mask.dtype).min / 2
                rest = mask.masked_fill(~allowed, 0)
                bias = rest if bool(rest.any()) else None
            self._read = version or 0, self._rule(allowed), bias
        return self._read[1:]

    def _rule(self, allowed: Tensor) -> Mask | None:
        if self.pattern is None:
            batch, heads, *size = (1,) * (4 - allowed.ndim) + tuple(allowed.shape)
            ranges = to_spans(allowed, (batch, heads, size[0], size[1]), 0, allowed.device)
            return ranges or as_mask(allowed.clone())  # as this is kept by the tensor that it is of
        keys = None
        if self.padding is not None and not bool(self.padding.all()):
            keys = Padding(_part(self.padding, self.first_key, self.size[1]))
        if self.pattern == "all":
            return keys
        rule = Causal() if keys is None else Causal() & keys
        if keys is None or self.size[0] > 1:
            return rule
        # A step of a generation, which becomes one matrix with the others, in all layers.
        padding = keys.lengths_or_mask
        return to_spans(rule, (len(padding), 1, *self.size), self.first - self.first_key, padding.device) or rule


class Masks:
    """How masks were made: of a tensor as long as it is there, of no tensor until the model computes again.

    Not only until it is left: a layer that is checkpointed runs again in the backward pass.
    """

    def __init__(self) -> None:
        self._of_tensors = WeakTensorKeyDictionary()
        # as many as a model may make in one pass; those of models that are not watched come here, too
        self._of_none: deque[Made] = deque(maxlen=MOST)
        self._held: deque[Tensor] = deque(maxlen=MOST)  # of which copies may come
        self._are_old = False  # those of no tensor, made for what has been computed

    def clear(self) -> None:
        """Forget the masks of no tensor, and let go of the tensors."""
        self._of_none.clear()
        self._held.clear()
        self._are_old = False

    def enter(self) -> None:
        """The model computes, or a mask is made for it to: those of before are forgotten."""
        if self._are_old and torch._C._current_graph_task_id() == -1:  # no layer that runs again in the backward pass
            self.clear()

    def leave(self) -> None:
        """The model has computed."""
        self._held.clear()
        self._are_old = True

    def add(self, mask: Any, made: Made) -> None:
        """Remember how a mask was made."""
        self.enter()
        if isinstance(mask, Tensor):
            self._of_tensors[mask] = made
            self._held.append(mask)
        elif mask is None:
            self._of_none.append(made)

    def find(self, mask: Tensor | None, size: tuple[int, int], kind: Kind) -> Made:
        """How the mask was made that an attention function is given."""
        if mask is None:
            return _fitting([made for made in reversed(self._of_none) if made.size == size], size, kind)
        if mask not in self._of_tensors:
            self._of_tensors[mask] = self._find_similar(mask, size, kind)
        return self._of_tensors[mask]

    def _find_similar(self, mask: Tensor, size: tuple[int, int], kind: Kind) -> Made:
        """How a mask was made that is not one of these itself, but perhaps a copy of one, or made from one."""
        held = [(one, self._of_tensors[one]) for one in reversed(self._held)]
        encoders = {made.size for _, made in held if made.pattern == "all"}
        parts = [  # own keys, with further ones behind them
            replace(made, size=size, first_key=made.first_key - size[1] + made.size[1], extra=size[1] - made.size[1])
            for one, made in sorted(held, key=lambda pair: -pair[1].size[1])
            if made.pattern != "all" and made.size[0] == size[0] and made.size[1] < size[1]
            if _are_equal(one.expand(*one.shape[:2], *made.size), mask[..., : made.size[1]])
        ]
        with_encoder = [made for made in parts if (size[0], made.extra) in encoders]
        copied = [made for one, made in list(self._of_tensors.items()) if made.size == size and _are_equal(one, mask)]
        changed = [made for _, made in held if made.size == size]  # as where a layer chooses some of the keys
        changed += [made for made in reversed(self._of_none) if made.size == size]
        if with_encoder or not (copied or changed):
            return replace((with_encoder or parts or [Made(size)])[0], pattern=None)
        return _fitting(copied or [replace(made, pattern=None) for made in changed], size, kind)

    def are_causal(self, size: tuple[int, int]) -> bool:
        """Whether the model that computes made a causal mask of this size, (queries, keys)."""
        made = (*self._of_none, *(self._of_tensors[mask] for mask in self._held))
        return any(each.pattern == "causal" and each.size == size for each in made)


def _fitting(found: Sequence[Made], size: tuple[int, int], kind: Kind) -> Made:
    """The first that is for a kind of layer: a decoder's own tokens and the encoder's can be equally many."""
    of_kind = (made for made in found if (made.pattern == "all") != (kind == "decoder"))
    return next(of_kind, found[0] if found else Made(size))


def _are_equal(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


MASKS = Masks()


def _part(padding: Tensor, start: int, size: int) -> Tensor:
    """Some tokens of (batch, tokens); those behind the last are none."""
    part = padding[:, start : start + size]
    return torch.nn.functional.pad(part, (0, size - part.shape[1]))


def as_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the dtype that attention casts them to under `torch.autocast`."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(tensor if tensor.dtype == torch.float64 else tensor.to(dtype) for tensor in tensors)


def call_of(
    name: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    mask: Any,
    extra: dict[str, Any],
    kind: Kind,
    named: Sequence[str] = (),
) -> Call:
    """What an attention function was given, as a call.

    Args:
        name: What the function is called in transformers' interface.
        module: Which module called.
        query: (batch, heads, rows, head_dim).
        key: (batch or 1, kv_heads, keys, head_dim).
        mask: (batch or 1, heads or 1, rows, keys): bool, or a number that is added to scores; or None.
        extra: The further arguments by name.
        kind: What the layer is.
        named: Those of them that the function itself knows, which does something with them.

    Raises:
        InvalidArgument: If weights do not follow from query, key and what is understood here.
    """
    if mask is not None and not (isinstance(mask, Tensor) and mask.ndim == 4):
        raise InvalidArgument(
            f"{type(module).__name__} computes by {name!r}, whose mask is no matrix: watch it after "
            'model.set_attn_implementation("sdpa")'
        )
    sparse = [word for word in REFUSED if extra.get(word) is not None]
    if sparse:
        raise InvalidArgument(
            f"{type(module).__name__} attends to keys that it chooses itself ({', '.join(sparse)}): what it sees is no "
            "matrix of query and key alone, and cannot be watched"
        )
    unknown = [word for word in named if word not in UNDERSTOOD and extra.get(word) is not None]
    if unknown:
        raise InvalidArgument(
            f"{type(module).__name__} gives its attention {', '.join(unknown)}, of which it is not known here what "
            "they do to the weights"
        )
    rows, keys = query.shape[2], key.shape[2]
    made = MASKS.find(mask, (rows, keys), kind)
    if isinstance(mask, Tensor) and made.extra:
        mask, key = mask.roll(made.extra, 3), key.roll(made.extra, 2)
    rule: Mask | None = None
    bias = extra.get("position_bias")
    if isinstance(mask, Tensor):
        rule, added = made.read(mask)
        bias = added if bias is None else bias if added is None else bias + added
    elif name != "eager":
        causal = extra.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        rule = Causal() if causal and rows > 1 else None
        reach = extra.get("sliding_window")
        if reach is not None and "flash" in name:  # which is given no mask of it; others have it in theirs
            near = Window(reach - 1, reach - 1)
            rule = near if rule is None else rule & near
    score: Score = ScaledDotProduct()
    if extra.get("softcap") is not None:
        score = SoftCap(score, float(extra["softcap"]))
    if extra.get("s_aux") is not None:
        score = Sinks(score, extra["s_aux"].to(query.dtype))
    first, first_key, real = 0, 0, None
    if kind != "cross":
        first, first_key = made.first, made.first_key
        if made.padding is not None:
            real = _part(made.padding, first, rows)
    scaling = extra.get("scaling")
    return Call(
        query,
        key.expand(query.shape[0], -1, -1, -1),
        rule,
        score,
        bias,
        None if scaling is None else float(scaling),
        first,
        first_key,
        real,
        extra=made.extra,
    )
