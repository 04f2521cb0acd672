"""Record modules with a softmax of their own by adapters, which state what their attention is computed from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.checks import Checks, describe
from regard.errors import InvalidArgument, InvalidType, did_you_mean, short_repr
from regard.ops.masks import Causal, Mask, as_mask
from regard.ops.masks.base import find_part
from regard.ops.request import check_request
from regard.ops.scores import Bias, Score, Sum, as_score
from regard.ops.steps import with_four_axes
from regard.ops.tile import Shape
from regard.watching.adapters.inputs import Adapter, Adapters, AttentionInputs
from regard.watching.adapters.shipped import shipped_adapter
from regard.watching.call import AttentionCall
from regard.watching.torch_attention import check_inputs
from regard.watching.transformers_attention import cast_as_autocast
from regard.watching.transformers_masks import MaskOrigin
from regard.watching.unsupported import label

if TYPE_CHECKING:
    from regard.watching.listener import Listener


def check_adapters(checks: Checks, adapters: Any, model: nn.Module) -> None:
    """Add the problems with the adapters of a call of `watch`."""
    if not isinstance(adapters, Mapping):
        checks.fail_type(f"adapters: expected a dict of adapters by class, got {short_repr(adapters)}")
        return
    classes = set(map(type, model.modules()))
    names = sorted(cls.__name__ for cls in classes)
    for cls, adapter in adapters.items():
        if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
            is_module = isinstance(cls, nn.Module)
            got = f"a module; pass its class, {type(cls).__name__}" if is_module else short_repr(cls)
            checks.fail_type(f"adapters: expected classes of modules as keys, got {got}")
        elif not any(issubclass(each, cls) for each in classes):
            checks.fail(
                f"adapters: {type(model).__name__} has no module of class {cls.__name__}"
                f"{did_you_mean(cls.__name__, names)}"
            )
        if not callable(adapter):
            name = getattr(cls, "__name__", short_repr(cls))
            checks.fail_type(f"adapters: expected a function for {name}, got {short_repr(adapter)}")


def adapters_of(modules: Collection[nn.Module], adapters: Adapters) -> dict[int, Adapter]:
    """The adapter of each module that has one, by id: one that is passed, for the nearest class, or a shipped one."""
    of_class: dict[type[nn.Module], Adapter] = {}
    for cls in set(map(type, modules)):
        passed = next((adapters[base] for base in cls.__mro__ if base in adapters), None) if adapters else None
        adapter = passed or shipped_adapter(cls)
        if adapter is not None:
            of_class[cls] = adapter
    return {id(module): of_class[type(module)] for module in modules if type(module) in of_class}


def record_adapted_module(
    listener: Listener, module: nn.Module, adapter: Adapter, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any
) -> None:
    """Record what a module computed, as its adapter states it.

    Raises:
        InvalidArgument: If what the adapter returns is not the input of attention, or the gradients of the weights are
            recorded and it does not say what they follow from.
        InvalidType: If it returns something else.
    """
    name = label(listener.module_names[id(module)], module)
    forward = listener.forward
    was_suspended, forward.is_sdpa_suspended = forward.is_sdpa_suspended, True  # the adapter may call torch's functions
    try:
        with _same_random_numbers(module, output):
            stated = adapter(module, _arguments(module, args, kwargs), output)
    finally:
        forward.is_sdpa_suspended = was_suspended
    several = [stated] if isinstance(stated, AttentionInputs) else stated
    if not isinstance(several, (list, tuple)) or not all(isinstance(each, AttentionInputs) for each in several):
        raise InvalidType(
            f"adapters: expected the adapter of {name} to return regard.watching.adapters.AttentionInputs or a list of "
            f"them, got {describe(stated)}"
        )
    for inputs in several:
        call, mask = _call(listener, module, name, inputs)
        listener.record_unchangeable(module, call, mask, separate_layers=True)
        if call.output_gradient is not None:
            _follow_gradient(call, name, inputs, output)


def _call(
    listener: Listener, module: nn.Module, name: str, inputs: AttentionInputs
) -> tuple[AttentionCall, Tensor | None]:
    """The call that the inputs of a module's attention mean, and the first mask among them that is a tensor."""
    checks = Checks()
    tensors = {"query": inputs.query, "key": inputs.key}
    tensors |= {} if inputs.value is None else {"value": inputs.value}
    if all(isinstance(each, Tensor) for each in tensors.values()):  # pyright: ignore[reportUnnecessaryIsInstance]
        check_inputs(name, *tensors.values())
        tensors = dict(zip(tensors, cast_as_autocast(*tensors.values()), strict=True))
    check_request(checks, tensors, None, inputs.score, inputs.scale, inputs.offset)
    _raise_problems(checks, name)
    batch, heads, queries, _ = inputs.query.shape
    shape = batch, heads, queries, inputs.key.shape[2]
    masks = _masks(checks, inputs.mask, shape)
    is_causal = any(find_part(mask, Causal) is not None for mask in masks if isinstance(mask, Mask))
    kind = listener.attention_kind(module, is_causal, shape[2:])
    origins = [listener.masks.lookup(mask, shape[2:], kind) for mask in masks if isinstance(mask, Tensor)]
    origins = origins or [listener.masks.lookup(None, shape[2:], kind)]
    rule: Mask | None = None
    score = _with_axes(as_score(inputs.score), shape)
    reading = iter(origins)
    for mask in masks:
        part, bias = next(reading).read(mask) if isinstance(mask, Tensor) else (mask, None)
        rule = part if rule is None else rule if part is None else rule & part
        score = score if bias is None else _add_bias(score, bias)
    origin = next((each for each in origins if not each.is_unknown), MaskOrigin.unknown(shape[2:]))
    q_offset, kv_offset, offset = 0, 0, inputs.offset
    if kind == "cross":
        offset = offset or 0
    elif not origin.is_unknown:
        q_offset, kv_offset, offset = origin.q_offset, origin.kv_offset, origin.q_offset - origin.kv_offset
    request = check_request(checks, tensors, rule, score, inputs.scale, offset)
    valid = inputs.valid_queries
    if valid is not None:
        shapes = {"(batch, queries)": (batch, queries)}
        checks.tensor("valid_queries", valid, "bool", shapes=shapes, device=inputs.query.device)
    elif origin.padding is not None and kind != "cross":
        valid = origin.part_of_padding(q_offset, queries)
    _raise_problems(checks, name)
    assert request is not None
    start = request.offset + kv_offset
    value = tensors.get("value")
    call = AttentionCall(request, start, kv_offset, valid, value, has_assumed_positions=offset is None, is_adapted=True)
    listener.forward.locate_queries(kind, call)
    if kind == "cross":  # each step has the position of its row
        call.request = replace(request, offset=call.q_offset)
    return call, next((mask for mask in masks if isinstance(mask, Tensor)), None)


def _masks(checks: Checks, masks: Any, shape: Shape) -> list[Mask | Tensor]:
    """Masks as rules, and as tensors with four axes where they are tensors."""
    result: list[Mask | Tensor] = []
    for mask in masks if isinstance(masks, (list, tuple)) else [masks]:
        if isinstance(mask, Tensor):
            if checks.broadcastable("mask", mask, "(batch, heads, queries, keys)", shape):
                result.append(mask[(None,) * (4 - mask.ndim)] if mask.ndim < 4 else mask)
        elif mask is not None:
            rule = checks.collect(as_mask, mask)
            result += [] if rule is None else [rule]
    return result


def _raise_problems(checks: Checks, name: str) -> None:
    if checks.problems:
        raise checks.error(f"adapters: what the adapter of {name} returns does not fit: {'; '.join(checks.problems)}")


def _with_axes(score: Score, shape: Shape) -> Score:
    """The score with a bias that has four axes, so that it can be cut and joined where a call has a cache."""
    if not isinstance(score, Sum) or not isinstance(score.right, Bias):
        return score
    bias = with_four_axes(score.right.tensor)
    return score.left + Bias(bias.expand(-1, -1, -1, shape[3]))


def _add_bias(score: Score, bias: Tensor) -> Score:
    """The score with a bias added: one tensor holds all that is added, so that the steps of a cache can be joined."""
    if isinstance(score, Sum) and isinstance(score.right, Bias):
        return score.left + Bias(score.right.tensor + bias)
    return score + Bias(bias)


def _follow_gradient(call: AttentionCall, name: str, inputs: AttentionInputs, output: Any) -> None:
    """Record the gradient of the output of the heads, which follows from that of the module's output."""
    assert call.output_gradient is not None
    if inputs.value is None or inputs.to_heads is None:
        missing = " and ".join(each for each in ("value", "to_heads") if getattr(inputs, each) is None)
        raise InvalidArgument(
            f"weight_gradients: the adapter of {name} returns no {missing}, from which the gradient of the weights "
            "follows; leave the module out by passing layers=[...]"
        )
    first = _first_tensor(output)
    if first is None or not first.requires_grad:
        raise InvalidArgument(
            f"weight_gradients: the output of {name} requires no gradient; call model.requires_grad_(), or pass inputs "
            "that require one"
        )
    call.output_gradient.follow(first, inputs.to_heads)


def _first_tensor(output: Any) -> Tensor | None:
    """A module's output, or the first tensor in it."""
    if isinstance(output, Mapping):
        output = list(output.values())
    if isinstance(output, (tuple, list)):
        return next((found for each in output if (found := _first_tensor(each)) is not None), None)
    return output if isinstance(output, Tensor) else None


def _arguments(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a module's forward by name, with defaults, and those in ``**kwargs`` by their own names."""
    signature, of_others = _signature(type(module).forward)
    bound = signature.bind(module, *args, **kwargs)
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    del arguments[next(iter(signature.parameters))]  # self
    return arguments | (arguments.pop(of_others) if of_others else {})


@lru_cache(maxsize=256)
def _signature(forward: Callable[..., Any]) -> tuple[inspect.Signature, str | None]:
    """The signature of a forward, and the name of its ``**kwargs``."""
    signature = inspect.signature(forward)
    parameters = signature.parameters.values()
    return signature, next((each.name for each in parameters if each.kind is each.VAR_KEYWORD), None)


def _same_random_numbers(module: nn.Module, output: Any) -> AbstractContextManager[None]:
    """Whatever an adapter calls in training draws random numbers, as a dropout, that the model does not miss."""
    if not module.training:
        return nullcontext()
    first = _first_tensor(output)
    on_accelerator = first is not None and first.device.type not in ("cpu", "meta")
    device_type = first.device.type if first is not None and on_accelerator else "cuda"
    devices = [first.device] if first is not None and on_accelerator else []
    return torch.random.fork_rng(devices, device_type=device_type)
