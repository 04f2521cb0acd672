"""The weights of each call of attention in a run that is not watched, by a route that shares no code with a watch."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from regard.watching.adapters.shipped import shipped_adapter

Place = tuple[str, int]
"""A module by name, and which of its calls in one pass it was."""


@dataclass
class Intercepted:
    """One call of attention in an unwatched run.

    Args:
        weights: (batch, heads, queries, keys).
        query: What was passed as the query.
        key: What was passed as the key.
        tokens: How many tokens the module that called had been given.
    """

    weights: Tensor
    query: Tensor
    key: Tensor
    tokens: int


def _one_layer(calls: list[Intercepted]) -> list[Tensor]:
    """The layers that the calls of a module are, in one run of its forward.

    Calls with the same query and key have the same weights, and are one layer. Others are chunks of one sequence if the
    module was given as many tokens as they have rows in all; else each is a layer.
    """
    different = [
        call
        for number, call in enumerate(calls)
        if not any(
            one.query.shape == call.query.shape
            and one.key.shape == call.key.shape
            and torch.equal(one.query, call.query)
            and torch.equal(one.key, call.key)
            and one.query.data_ptr() == call.query.data_ptr()
            for one in calls[:number]
        )
    ]
    parts = [call.weights for call in different]
    rows = sum(part.shape[2] for part in parts)
    if len(parts) == 1 or rows not in (calls[0].tokens, calls[0].tokens * parts[0].shape[0]):
        return parts
    if all(part.shape[3] == parts[0].shape[3] == rows for part in parts):  # several queries of the same keys
        return [torch.cat(parts, 2)]
    weights = parts[0].new_zeros(*parts[0].shape[:2], rows, sum(part.shape[3] for part in parts))
    row = column = 0
    for part in parts:
        weights[..., row : row + part.shape[2], column : column + part.shape[3]] = part
        row, column = row + part.shape[2], column + part.shape[3]
    return [weights]


class InterceptedCalls(TorchFunctionMode):
    """Intercepts each call of attention in a run that is not watched, with its weights by an independent route.

    Dense attention of transformers and `nn.MultiheadAttention` return them; those of torch's fused attention are
    computed here from what it is passed. Those of classes with an adapter are the result of their softmax.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.calls: dict[Place, list[Intercepted]] = defaultdict(list)
        self.softmaxes: dict[tuple[str, str], list[Tensor]] = defaultdict(list)
        """The results of softmax, by the names of their modules and classes; rows whose keys are all masked are 0."""
        self._names = {module: name for name, module in model.named_modules()}
        self._entries: Counter[nn.Module] = Counter()
        self._tokens: dict[nn.Module, int] = {}
        self._inside: list[nn.Module] = []
        self._within = False

    def __enter__(self) -> Any:
        self._stack = ExitStack()
        for module in self._names:
            enter = module.register_forward_pre_hook(self._enter, with_kwargs=True)
            for handle in (enter, module.register_forward_hook(self._leave)):
                self._stack.callback(handle.remove)
        for file in {sys.modules[base.__module__] for module in self._names for base in type(module).__mro__}:
            for name, function in list(vars(file).items()):
                if name.endswith("eager_attention_forward"):
                    self._stack.enter_context(mock.patch.object(file, name, self._intercept(function)))
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        self._stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._stack.close()

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._inside.append(module)
        self._entries[module] += 1
        states = [part for part in (*args, *kwargs.values()) if isinstance(part, Tensor) and part.is_floating_point()]
        self._tokens[module] = states[0].shape[-2] if states and states[0].ndim > 1 else 0

    def _leave(self, *args: object) -> None:
        self._inside.pop()

    def layers(self) -> dict[Place, Tensor]:
        """The weights of each layer."""
        layers = {}
        for (name, entry), calls in self.calls.items():
            for number, weights in enumerate(_one_layer(calls)):
                layers[name, entry + number] = weights
        return layers

    def _take(self, module: nn.Module, weights: Tensor, query: Tensor, key: Tensor, mask: Tensor | None = None) -> None:
        """Record a call; rows that the model's own mask leaves no key are 0, not uniform."""
        if mask is not None and mask.ndim == weights.ndim:
            empty = ~_allowed(mask[..., : weights.shape[-1]]).any(-1, keepdim=True)
            weights = weights.masked_fill(empty, 0)
        call = Intercepted(weights.nan_to_num(), query, key, self._tokens.get(module, 0))
        self.calls[self._names[module], max(self._entries[module], 1)].append(call)

    def _intercept(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def attention(module: nn.Module, *arguments: Any, **options: Any) -> Any:
            before, self._within = self._within, True
            output, weights = function(module, *arguments, **options)
            self._within = before
            mask = arguments[3] if len(arguments) > 3 else options.get("attention_mask")
            weights_with_sinks = weights
            if options.get("s_aux") is not None:
                weights_with_sinks = _with_sinks(weights, output, arguments[2])
            self._take(module, weights_with_sinks, arguments[0], arguments[1], mask)
            return output, weights

        return attention

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._within:
            return func(*args, **kwargs)
        if func is functional.multi_head_attention_forward:
            output, weights = func(*args, **{**kwargs, "need_weights": True, "average_attn_weights": False})
            self._take(self._inside[-1], weights if weights.ndim == 4 else weights[None], args[0], args[1])
            return output, weights
        actual = func(*args, **kwargs)
        if func is functional.scaled_dot_product_attention:
            weights = _weights_of_fused(*args, **kwargs)
            axes = weights.ndim
            weights = weights.flatten(0, -4) if axes > 4 else weights[(None,) * (4 - axes)]
            query, key = (args[i] if len(args) > i else kwargs[name] for i, name in enumerate(("query", "key")))
            self._take(self._inside[-1], weights, query, key)
        elif getattr(func, "__name__", "") == "softmax" and actual.ndim > 2:
            module = next(each for each in reversed(self._inside) if not type(each).__name__.endswith("Softmax"))
            if shipped_adapter(type(module)) is not None:
                self._take(module, actual, args[0], args[0], args[0])
            top = args[0].amax(-1, keepdim=True)
            weights = actual.masked_fill(top <= torch.finfo(args[0].dtype).min / 2, 0)
            self.softmaxes[self._names[module], type(module).__name__].append(weights)
        return actual


def _with_sinks(weights: Tensor, output: Tensor, value: Tensor) -> Tensor:
    """The weights that gave an output: some families scale it by a sink's share instead of its rows."""
    value = value.repeat_interleave(weights.shape[1] // value.shape[1], 1)
    inputs, plain = output.transpose(1, 2), weights @ value
    return weights * ((inputs * plain).sum(-1, keepdim=True) / plain.square().sum(-1, keepdim=True))


def _weights_of_fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = scores.new_ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None:
        if attn_mask.dtype != torch.bool:
            scores = scores + attn_mask
        scores = scores.masked_fill(~_allowed(attn_mask), -torch.inf)
    return scores.softmax(-1).nan_to_num()


def _allowed(mask: Tensor) -> Tensor:
    """Which keys a mask lets be seen."""
    return mask > torch.finfo(mask.dtype).min / 2 if mask.is_floating_point() else mask.bool()
