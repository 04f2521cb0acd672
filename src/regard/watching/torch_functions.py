"""The doors into torch's own: calls of its fused attention, and its module of several heads."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from regard.errors import InvalidArgument
from regard.ops.masks import Mask, Padding, as_mask
from regard.ops.scores import ScaledDotProduct
from regard.watching.calls import Call
from regard.watching.given import as_autocast, call_of
from regard.watching.names import PRODUCTS

if TYPE_CHECKING:
    from regard.watching.listening import Watch

COPIES = {"dropout", "to", "type_as", "float", "half", "bfloat16", "type", "contiguous", "nan_to_num"}
"""Functions whose result has the same entries, or some of them."""

_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_FORWARD = inspect.signature(nn.MultiheadAttention.forward)


class Listening(TorchFunctionMode):
    """While it is on, every call of `scaled_dot_product_attention` is told to a watch."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch
        self._softmaxes = WeakTensorKeyDictionary()  # what a softmax gave, and copies of it

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        if isinstance(found, Tensor) and found.ndim > 2:
            self._follow(getattr(func, "__name__", ""), args, found)
        if func is functional.scaled_dot_product_attention and self.watch.listens:
            given = {"is_causal": False} | dict(zip(_NAMES, args, strict=False)) | kwargs
            refuse_nested(type(self.watch.innermost).__name__, given["query"], given["key"])
            query, key, value, mask = _four_axes(*(given.get(name) for name in ("query", "key", "value", "attn_mask")))
            query, key, value = as_autocast(query, key, value)
            extra = {"is_causal": given["is_causal"], "scaling": given.get("scale")}
            module = self.watch.innermost
            kind = self.watch.kind_of(module, bool(given["is_causal"]))
            call = call_of("sdpa", module, query, key, mask, extra, kind)
            call.value = value
            self.watch.heard(module, call, alone=True)
        return found

    def _follow(self, name: str, args: Sequence[Any], result: Tensor) -> None:
        """Notice a product of matrices that takes what a softmax gave: attention that nobody else hears."""
        if name == "softmax":
            self._softmaxes[result] = True
        elif self._softmaxes and any(isinstance(each, Tensor) and each in self._softmaxes for each in _flat(args)):
            if name.strip("_") in PRODUCTS:
                self.watch.computes_weights()
            elif result.shape == args[0].shape and name in COPIES:
                self._softmaxes[result] = True


def _flat(args: Sequence[Any]) -> Iterator[Any]:
    for each in args:
        yield from each if isinstance(each, (list, tuple)) else (each,)


def refuse_nested(name: str, *inputs: object) -> None:
    """Refuse tensors whose rows have different lengths.

    Raises:
        InvalidArgument: If one is nested.
    """
    if any(isinstance(each, Tensor) and each.is_nested for each in inputs):
        raise InvalidArgument(f"{name}: nested tensors cannot be watched; pass padded ones with a mask")


def _four_axes(query: Tensor, *others: Tensor | None) -> list[Any]:
    """Query, key, value and mask as (batch, heads, tokens, width), whatever the first axes are."""
    lead = query.shape[:-3]
    tensors: list[Any] = []
    for tensor in (query, *others):
        if tensor is not None:
            tensor = tensor[(None,) * (3 - tensor.ndim)] if tensor.ndim < 3 else tensor
            if len(lead) > 1:  # the others broadcast
                tensor = tensor.expand(*lead, *tensor.shape[-3:]).flatten(0, -4)
            elif tensor.ndim == 3:
                tensor = tensor[None]
        tensors.append(tensor)
    return tensors


def call_of_module(module: nn.MultiheadAttention, args: Any, kwargs: Any) -> Call:
    """What a `torch.nn.MultiheadAttention` computes its weights of; its masks say True where a key is not seen."""
    given = _FORWARD.bind(module, *args, **kwargs).arguments
    parts = [given[name] for name in ("query", "key", "value")]
    if parts[0].ndim == 2:
        parts = [part[None] for part in parts]
    elif not module.batch_first:
        parts = [part.transpose(0, 1) for part in parts]
    query, *of_keys = (functional.linear(part, *of) for part, of in zip(parts, _projections(module), strict=True))
    batch, heads, keys = len(query), module.num_heads, of_keys[0].shape[1]
    if module.bias_k is not None and module.bias_v is not None:
        more = module.bias_k, module.bias_v
        of_keys = [torch.cat([part, each.expand(batch, -1, -1)], 1) for part, each in zip(of_keys, more, strict=True)]
    if module.add_zero_attn:
        of_keys = [torch.cat([part, part.new_zeros(batch, 1, part.shape[2])], 1) for part in of_keys]
    more = of_keys[0].shape[1] - keys  # keys that all may see
    query, key, value = (part.unflatten(2, (heads, -1)).transpose(1, 2) for part in (query, *of_keys))
    rule: Mask | None = None
    bias: Tensor | None = None
    real: Tensor | None = None
    mask, padding = given.get("attn_mask"), given.get("key_padding_mask")
    if padding is not None:
        padding = padding[None] if padding.ndim == 1 else padding
        hidden = padding if padding.dtype == torch.bool else padding == -torch.inf
        rule = Padding(functional.pad(~hidden, (0, more), value=True))
        real = ~hidden if given["query"] is given["key"] else None
        bias = None if padding.dtype == torch.bool else _added(padding[:, None, None], more)
    if mask is not None:
        mask = mask.view(batch, heads, *mask.shape[1:]) if mask.ndim == 3 else mask[None, None]
        hidden = mask if mask.dtype == torch.bool else mask == -torch.inf
        seen = as_mask(functional.pad(~hidden, (0, more), value=True))
        rule = seen if rule is None else rule & seen
        added = None if mask.dtype == torch.bool else _added(mask, more)
        bias = added if bias is None else bias if added is None else bias + added
    return Call(query, key, rule, ScaledDotProduct(), bias, None, real=real, value=value)


def _added(mask: Tensor, more: int) -> Tensor | None:
    """What a mask of numbers adds to the scores of what it lets through."""
    rest = mask.masked_fill(mask == -torch.inf, 0)
    return functional.pad(rest, (0, more)) if bool(rest.any()) else None


def _projections(module: nn.MultiheadAttention) -> tuple[tuple[Tensor, Tensor | None], ...]:
    """Weight and bias of the projections of query, key and value."""
    width, bias, whole = module.embed_dim, module.in_proj_bias, module.in_proj_weight
    apart = module.q_proj_weight, module.k_proj_weight, module.v_proj_weight
    weights = apart if whole is None else whole.split(width)
    return tuple(zip(weights, (None,) * 3 if bias is None else bias.split(width), strict=True))
