"""Record torch's own attention: calls of SDPA and of `multi_head_attention_forward`, by `nn.MultiheadAttention`."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import Tensor
from torch.nn.attention.bias import CausalBias, CausalVariant
from torch.nn.functional import linear, multi_head_attention_forward, pad, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from regard.ops.masks import Mask, Padding, as_mask
from regard.ops.request import make_request
from regard.ops.scores import Bias, ScaledDotProduct
from regard.watching.call import AttentionCall, check_inputs, is_same_memory
from regard.watching.dense_capture import DenseCapture
from regard.watching.flex_attention import OPERATOR as FLEX_ATTENTION
from regard.watching.flex_attention import FlexAttentionRecorder
from regard.watching.transformers_attention import (
    TORCH_SDPA,
    call_from_transformers,
    cast_as_autocast,
    top_left_causal,
)

if TYPE_CHECKING:
    from regard.watching.listener import Listener

NO_TENSORS = (torch.Size, torch.dtype, torch.device, int, float, str)
"""Results of most functions that a model calls, such as those that read a shape."""

_SDPA_ARGS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_MULTI_HEAD = inspect.signature(multi_head_attention_forward)


class SdpaInterceptor(TorchFunctionMode):
    """Records calls of torch's attention functions, and attention that is computed with a softmax instead."""

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self._listener = ref(listener)  # which holds this one
        self.dense_capture = DenseCapture()
        self._flex_attention = FlexAttentionRecorder()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, listener = kwargs or {}, self._listener()
        result = func(*args, **kwargs)
        if isinstance(result, NO_TENSORS) or listener is None or not listener.forward.intercepts_sdpa:
            return result
        if func is scaled_dot_product_attention:
            arguments = {"is_causal": False} | dict(zip(_SDPA_ARGS, args, strict=False)) | kwargs
            return _record_sdpa(listener, arguments, result)
        if func is multi_head_attention_forward:
            return _record_multi_head(listener, args, kwargs, result)
        if func is FLEX_ATTENTION:
            check_inputs(type(listener.forward.modules[-1]).__name__, *args[:2])
            return self._flex_attention.record(listener, args, result)
        return self.dense_capture.observe(listener, func, args, kwargs, result)


def _record_multi_head(listener: Listener, args: Any, kwargs: Any, result: Any) -> Any:
    """Record a call, and return its result."""
    bound = _MULTI_HEAD.bind(*args, **kwargs)
    bound.apply_defaults()
    arguments, module = bound.arguments, listener.forward.modules[-1]
    if arguments["query"].shape[:-1] != arguments["key"].shape[:-1]:
        listener.set_kind(module, "cross")
    call, mask = _call_from_multihead_attention(arguments), arguments["attn_mask"]
    listener.record_unchangeable(module, call, mask, separate_layers=True)
    if call.output_gradient is None:
        return result
    batch, heads, projection = len(call.query), call.query.shape[1], arguments["out_proj_weight"].detach()

    def to_heads(gradient: Tensor) -> Tensor:
        """Back through the output projection, from (queries, batch, width) or, without a batch, (queries, width)."""
        before = gradient @ projection.to(gradient.dtype)
        return before.view(len(gradient), batch, heads, -1).permute(1, 2, 0, 3)

    output, weights = result
    return call.output_gradient.follow(output, to_heads), weights


def _record_sdpa(listener: Listener, arguments: dict[str, Any], output: Tensor) -> Tensor:
    """Record a call, and return its output."""
    module = listener.forward.modules[-1]
    if listener.ignores(module):
        return output
    check_inputs(type(module).__name__, arguments["query"], arguments["key"])
    mask = arguments.get("attn_mask")
    if isinstance(mask, CausalBias):
        mask = _as_bool_mask(mask)
    tensors = _broadcast(*(arguments[name] for name in _SDPA_ARGS[:3]), has_groups=arguments.get("enable_gqa"))
    query, key, value, mask = _with_four_axes(*tensors, mask)
    query, key, value = cast_as_autocast(query, key, value)
    options = {"is_causal": arguments["is_causal"], "scaling": arguments.get("scale")}
    kind = listener.attention_kind(module, bool(arguments["is_causal"]))
    call = call_from_transformers(TORCH_SDPA, module, query, key, mask, options, kind, listener.masks)
    call.value = value
    listener.record_unchangeable(module, call, mask, separate_layers=True)
    if call.output_gradient is None:
        return output
    return call.output_gradient.follow(output, lambda gradient: _with_four_axes(gradient)[0])


def _as_bool_mask(bias: CausalBias) -> Tensor:
    """The mask of a `CausalBias`, whose own entries mean nothing."""
    is_lower_right = bias.variant == CausalVariant.LOWER_RIGHT
    diagonal = bias.seq_len_kv - bias.seq_len_q if is_lower_right else 0
    return torch.ones(bias.seq_len_q, bias.seq_len_kv, dtype=torch.bool, device=bias.device).tril(diagonal)


def _broadcast(*tensors: Tensor, has_groups: bool | None = False) -> list[Tensor]:
    """Query, key and value with the same leading axes, which SDPA broadcasts; groups of heads stay as they are."""
    lead = torch.broadcast_shapes(*(each.shape[:-2] if not has_groups else each.shape[:-3] for each in tensors))
    return [each.expand(*lead, *each.shape[-3 if has_groups else -2 :]) for each in tensors]


def _with_four_axes(query: Tensor, *others: Tensor | None) -> list[Any]:
    """Query, key, value and mask of SDPA as (batch, heads, tokens, width), whatever their leading axes are."""
    lead = query.shape[:-3]
    tensors: list[Any] = []
    for tensor in (query, *others):
        if tensor is not None:
            tensor = tensor[(None,) * (3 - tensor.ndim)] if tensor.ndim < 3 else tensor
            if len(lead) > 1:  # the others broadcast to the query
                tensor = tensor.expand(*lead, *tensor.shape[-3:]).flatten(0, -4)
            elif tensor.ndim == 3:
                tensor = tensor[None]
        tensors.append(tensor)
    return tensors


def _call_from_multihead_attention(arguments: dict[str, Any]) -> AttentionCall:
    """The call that `multi_head_attention_forward` computes, projected again from its inputs."""
    inputs = [arguments[name] for name in ("query", "key", "value")]
    if inputs[0].ndim == 2:
        inputs = [each[:, None] for each in inputs]
    inputs = [each.transpose(0, 1) for each in inputs]  # (batch, tokens, width)
    projections = zip(inputs, _projections(arguments), strict=True)
    query, *of_keys = (linear(each, *weights) for each, weights in projections)
    batch, heads, keys = len(query), arguments["num_heads"], of_keys[0].shape[1]
    biases = arguments["bias_k"], arguments["bias_v"]
    if biases[0] is not None:
        of_keys = [torch.cat([part, b.expand(batch, -1, -1)], 1) for part, b in zip(of_keys, biases, strict=True)]
    query, key, value = (part.unflatten(2, (heads, -1)).transpose(1, 2) for part in (query, *of_keys))
    if arguments["static_k"] is not None:
        key, keys = arguments["static_k"].unflatten(0, (batch, heads)), arguments["static_k"].shape[1]
    if arguments["static_v"] is not None:
        value = arguments["static_v"].unflatten(0, (batch, heads))
    if arguments["add_zero_attn"]:
        key, value = (torch.cat([part, part.new_zeros(batch, heads, 1, part.shape[3])], 2) for part in (key, value))
    added = key.shape[2] - keys  # keys that every query may attend to
    offset = keys - query.shape[2]
    rule: Mask | None = None
    bias: Tensor | None = None
    valid_queries: Tensor | None = None
    mask, padding = arguments["attn_mask"], arguments["key_padding_mask"]  # True where a key is forbidden
    if padding is not None:
        padding = padding[None] if padding.ndim == 1 else padding
        forbidden = padding if padding.dtype == torch.bool else padding == -torch.inf
        rule = Padding(pad(~forbidden, (0, added), value=True))
        valid_queries = ~forbidden if is_same_memory(arguments["query"], arguments["key"]) else None
        bias = None if padding.dtype == torch.bool else _finite_part(padding[:, None, None], added)
    if arguments["is_causal"] and padding is None and not arguments["need_weights"]:  # torch then ignores the mask
        rule = top_left_causal(offset)
    elif mask is not None:
        mask = mask.view(batch, heads, *mask.shape[1:]) if mask.ndim == 3 else mask[None, None]
        forbidden = mask if mask.dtype == torch.bool else mask == -torch.inf
        allowed = as_mask(pad(~forbidden, (0, added), value=True))
        rule = allowed if rule is None else rule & allowed
        more = None if mask.dtype == torch.bool else _finite_part(mask, added)
        bias = more if bias is None else bias if more is None else bias + more
    score = ScaledDotProduct() if bias is None else ScaledDotProduct() + Bias(bias)
    request = make_request(query, key, mask=rule, score=score, offset=offset)
    return AttentionCall(request, offset, valid_queries=valid_queries, value=value, has_assumed_positions=True)


def _finite_part(mask: Tensor, added: int) -> Tensor | None:
    """What a float mask adds to the scores that it allows; None if nothing."""
    finite = mask.masked_fill(mask == -torch.inf, 0)
    return pad(finite, (0, added)) if bool(finite.any()) else None


def _projections(arguments: dict[str, Any]) -> tuple[tuple[Tensor, Tensor | None], ...]:
    """Weight and bias of the projections of query, key and value."""
    if arguments["use_separate_proj_weight"]:
        weights = [arguments[f"{letter}_proj_weight"] for letter in "qkv"]
    else:
        weights = arguments["in_proj_weight"].chunk(3)
    bias = arguments["in_proj_bias"]
    return tuple(zip(weights, (None,) * 3 if bias is None else bias.chunk(3), strict=True))
