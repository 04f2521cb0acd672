"""Record calls of transformers' attention functions.

While a watch is open, each function in `ALL_ATTENTION_FUNCTIONS` and `ALL_MASK_ATTENTION_FUNCTIONS` is overridden, in
the local mapping that transformers documents for this, by a wrapper that calls the original and passes its arguments to
the listener; so is the dense attention of a model's own file, which is passed to `get_interface` as the default. The
model's configuration does not change, because models branch on it: so a watched model computes exactly what it did
before. That is also why the wrapper is not an attention implementation of its own. Where a function returns no weights,
the model gets the `WeightMatrix` in their place, so that ``output_attentions=True`` works with any implementation.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

from regard.errors import InvalidArgument
from regard.ops import WeightMatrix
from regard.ops.masks import Causal, Mask, Window
from regard.ops.request import make_request
from regard.ops.scores import Bias, ScaledDotProduct, Score, Sinks, SoftCap
from regard.recordings.layer import AttentionKind
from regard.watching.call import AttentionCall
from regard.watching.module_inspection import is_causal_without_mask
from regard.watching.prefix_keys import as_prefix
from regard.watching.registry import listener_for
from regard.watching.transformers_masks import MaskOrigins, make_mask

SPARSE_INDEX_ARGS = {"indices", "block_indices", "top_k_indices"}
"""Arguments of attention to selected keys, which are not in the mask."""

SUPPORTED_ARGS = {"dropout", "scaling", "softcap", "s_aux", "position_bias", "is_causal", "sliding_window"}
"""Named arguments of attention functions whose effect on the weights is known here."""

TORCH_SDPA = "torch's own"
"""The name of `torch.nn.functional.scaled_dot_product_attention`, called without transformers' interface."""

FLEX_ATTENTION = "flex_attention"
"""The name of the function whose masks are each a `BlockMask`, or a tensor that it adds whatever its dtype."""

TOP_LEFT = ("sdpa", "regard", TORCH_SDPA)
"""Functions whose causal mask starts at the first key, however many keys there are."""

ORIGINAL = "_regard_original"
"""The attribute of a wrapper that holds the function that it wraps."""


def attention_interfaces(classes: Collection[type[nn.Module]]) -> list[Any]:
    """The attention interfaces of a model with modules of these classes, each once."""
    from transformers import AttentionInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    # A file may have an interface of its own, and a class inherit from another file.
    files = {base.__module__ for cls in classes for base in cls.__mro__}
    own = [getattr(sys.modules.get(name), "ALL_ATTENTION_FUNCTIONS", None) for name in files]
    every = [ALL_ATTENTION_FUNCTIONS, *[each for each in own if isinstance(each, AttentionInterface)]]
    return list({id(each): each for each in every}.values())


def wrap_interfaces(interfaces: dict[int, Any], classes: Collection[type[nn.Module]]) -> None:
    """Wrap the functions of the attention interfaces of a model that are not yet wrapped.

    Args:
        interfaces: Takes the interfaces by id, each before it is changed, for `unwrap_interfaces`.
        classes: Those of the model's modules.
    """
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    every: list[Any] = [*attention_interfaces(classes), ALL_MASK_ATTENTION_FUNCTIONS]
    for interface in every:
        interfaces[id(interface)] = interface
        is_mask = interface is ALL_MASK_ATTENTION_FUNCTIONS
        for name, function in dict(interface).items():
            if not hasattr(function, ORIGINAL):
                interface[name] = _wrap_mask_function(function) if is_mask else _wrap(name, function)
        if not is_mask and not hasattr(interface.get_interface, ORIGINAL):
            interface.get_interface = _wrap_default(interface.get_interface)  # its class does not change


def unwrap_interfaces(interfaces: dict[int, Any]) -> None:
    """Restore the functions of interfaces; one that the user has set since stays."""
    for interface in interfaces.values():
        shared = type(interface)()  # what is registered for all interfaces
        for name, function in dict(interface).items():
            original = getattr(function, ORIGINAL, None)
            if original is None:
                continue
            if shared.get(name) is original:
                del interface[name]  # so that it shows again
            else:
                interface[name] = original
        if hasattr(vars(interface).get("get_interface"), ORIGINAL):
            del interface.get_interface
    interfaces.clear()


@lru_cache
def _wrap_mask_function(function: Callable[..., Any]) -> Callable[..., Any]:
    wrapper = partial(make_mask, function)
    setattr(wrapper, ORIGINAL, function)
    return wrapper


def _wrap_default(get: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the dense attention of a model's own file, which is not in the interface but passed to it as the default."""

    def get_interface(attn_implementation: str, default: Callable[..., Any]) -> Callable[..., Any]:
        function = get(attn_implementation, default)
        return _wrap("eager", default) if function is default else function

    setattr(get_interface, ORIGINAL, None)
    return get_interface


@lru_cache
def _wrap(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an attention function; a wrapper depends on nothing else, so several watches share it."""
    parameters = parameter_names(function)[5:]
    unknown = [parameter for parameter in parameters if parameter not in SUPPORTED_ARGS]

    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *rest: Any, **options: Any
    ) -> Any:
        listener = listener_for(module)
        if listener is None:
            return function(module, query, key, value, attention_mask, *rest, **options)
        arguments = dict(zip(parameters, rest, strict=False)) | options if rest else options
        kind = listener.attention_kind(module, shape=(query.shape[2], key.shape[2]))
        cast_query, cast_key, cast_value = cast_as_autocast(query, key, value)
        try:
            call = call_from_transformers(
                name, module, cast_query, cast_key, attention_mask, arguments, kind, listener.masks, unknown
            )
        except InvalidArgument:
            if listener.ignores(module):
                return function(module, query, key, value, attention_mask, *rest, **options)
            raise
        forward, interventions, layer = listener.forward, listener.interventions, listener.module_names[id(module)]
        forward.locate_queries(kind, call)
        if kind == "cross" and not isinstance(call.request.mask, Window):  # each step has the position of its row
            call.request = replace(call.request, offset=call.q_offset)
        call.value = as_prefix(cast_value, call.num_prefix_keys, 2) if call.num_prefix_keys else cast_value
        mask = attention_mask
        if interventions is not None:
            mask = interventions.knock_out(layer, mask, call, adds=name in ("eager", FLEX_ATTENTION))
        is_fused = listener.fuses_output and name in TOP_LEFT and not arguments.get("dropout")
        output: Any = None
        weights: Any = None
        was_suspended, forward.is_sdpa_suspended = forward.is_sdpa_suspended, True  # the function may call SDPA itself
        try:
            if not is_fused:
                output, weights = function(module, query, key, value, mask, *rest, **options)
            mask_tensor = getattr(attention_mask, "kv_indices", attention_mask)  # of a BlockMask
            lazy_weights, fused = listener.record(module, kind, call, mask_tensor, fuses_output=is_fused)
            if fused is not None:
                output = fused.transpose(1, 2).contiguous()
            elif is_fused:
                output, weights = function(module, query, key, value, mask, *rest, **options)
        finally:
            forward.is_sdpa_suspended = was_suspended
        if call.output_gradient is not None:  # (batch, queries, heads, value_dim)
            output = call.output_gradient.follow(output, lambda gradient: gradient.transpose(1, 2))
        # A matrix of the model's own has no gradient with respect to the weights.
        is_same = isinstance(weights, WeightMatrix) and lazy_weights is not None and lazy_weights.shape == weights.shape
        has_none = weights is None or name == FLEX_ATTENTION  # which returns the log-sum-exp of each row
        if (has_none or is_same) and not call.num_prefix_keys:  # the model would expect another order
            weights = lazy_weights
        if interventions is not None:
            output = interventions.ablate_heads(layer, output)
        return output, weights

    setattr(attention, ORIGINAL, function)
    return attention


def parameter_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a function's parameters, without ``*args`` and ``**kwargs``."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a compiled kernel
        return ()
    return tuple(each.name for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD))


def cast_as_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the dtype to which attention casts them under `torch.autocast`."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(tensor if tensor.dtype == torch.float64 else tensor.to(dtype) for tensor in tensors)


def call_from_transformers(
    name: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    mask: Any,
    options: dict[str, Any],
    kind: AttentionKind,
    masks: MaskOrigins,
    unknown: Sequence[str] = (),
) -> AttentionCall:
    """The arguments of an attention function as a call.

    Args:
        name: The function's name in transformers' interface, or `TORCH_SDPA`.
        module: The module that calls it.
        query: (batch, heads, queries, head_dim).
        key: (batch or 1, kv_heads, keys, head_dim).
        mask: (batch or 1, heads or 1, queries, keys), bool or added to the scores; a `BlockMask`; or None.
        options: The other arguments, by name.
        kind: The kind of the layer.
        masks: Where the masks come from.
        unknown: The function's own parameters whose effect is not known here.

    Raises:
        InvalidArgument: If the weights do not follow from the query, the key and arguments that are known here.
    """
    cls = type(module).__name__
    if name == FLEX_ATTENTION and isinstance(mask, Tensor) and mask.ndim == 4:  # it adds the first head's to the scores
        mask = mask[:, :1, :, : key.shape[2]].to(query.dtype)
    if mask is not None and not (isinstance(mask, BlockMask) or (isinstance(mask, Tensor) and mask.ndim == 4)):
        raise InvalidArgument(
            f"{cls} uses the attention function {name!r}, whose mask is not a tensor of all cells; watch it after "
            'model.set_attn_implementation("sdpa")'
        )
    for argument in SPARSE_INDEX_ARGS & options.keys():
        if options[argument] is not None:
            raise InvalidArgument(
                f"{cls} selects the keys that it attends to ({argument}), so its weights do not follow from query, key "
                "and mask; it cannot be watched"
            )
    passed = [argument for argument in unknown if options.get(argument) is not None] if unknown else None
    if passed:
        raise InvalidArgument(
            f"{cls} passes {', '.join(passed)} to its attention function, whose effect on the weights is not known; "
            "it cannot be watched"
        )
    queries, keys = query.shape[2], key.shape[2]
    origin = masks.lookup(mask, (queries, keys), kind)
    if isinstance(mask, Tensor) and origin.num_prefix_keys:
        mask, key = as_prefix(mask, origin.num_prefix_keys, 3), as_prefix(key, origin.num_prefix_keys, 2)
    is_self = kind != "cross" or name == TORCH_SDPA
    q_offset, kv_offset = (origin.q_offset, origin.kv_offset) if is_self else (0, 0)
    offset = q_offset - kv_offset
    rule: Mask | None = None
    bias = options.get("position_bias")
    if mask is not None:
        rule, added = origin.read(mask)
        bias = added if bias is None else bias if added is None else bias + added
    elif name not in ("eager", FLEX_ATTENTION):
        causal = is_causal_without_mask(module, options.get("is_causal"))
        if causal and (queries > 1 or name == TORCH_SDPA):
            rule = top_left_causal(offset) if name in TOP_LEFT else Causal()
        window = options.get("sliding_window")
        if window is not None and "flash" in name:  # other functions have the window in their mask
            near = Window(window - 1, window - 1)
            rule = near if rule is None else rule & near
    scaling = options.get("scaling")
    request = make_request(
        query,
        key if len(key) == len(query) else key.expand(len(query), -1, -1, -1),
        mask=rule,
        score=make_score(query.dtype, bias, options),
        scale=None if scaling is None else float(scaling),
        offset=offset,
    )
    valid = None
    if kind != "cross" and origin.padding is not None:
        valid = origin.part_of_padding(q_offset, queries)
    assumed = is_self and origin.is_unknown
    return AttentionCall(
        request,
        q_offset,
        kv_offset,
        valid,
        num_prefix_keys=origin.num_prefix_keys,
        has_assumed_positions=assumed,
    )


def make_score(dtype: torch.dtype, bias: Tensor | None, options: Mapping[str, Any]) -> Score:
    """The score of an attention function.

    Args:
        dtype: That of the query.
        bias: What is added to the scores, if anything.
        options: The function's arguments by name, of which ``softcap`` and ``s_aux`` (sinks) count.
    """
    score: Score = ScaledDotProduct()
    if options.get("softcap") is not None:
        score = SoftCap(score, float(options["softcap"]))
    if options.get("s_aux") is not None:
        score = Sinks(score, options["s_aux"].to(dtype))
    return score if bias is None else score + Bias(bias)


def top_left_causal(offset: int) -> Mask:
    """The causal mask of torch: query i to keys 0, ..., i, where query i has position i + offset."""
    return Window(None, -offset) if offset else Causal()
