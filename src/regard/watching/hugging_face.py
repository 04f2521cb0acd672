"""The door into transformers' models: their attention functions and masks, as they are, with an ear beside them.

While a watch is on, the functions that transformers keeps in its `AttentionInterface` and `AttentionMaskInterface` are
replaced, by its own ``register``, by such that call them and then tell the watch what they were given; so is the dense
attention of a model's own file where it is looked for. So a model computes what it computed before; nothing is said to
its configuration.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from regard.watching.given import MASKS, Made, call_of
from regard.watching.shared import Shared

if TYPE_CHECKING:
    from regard.watching.listening import Watch

WATCHES: dict[int, Watch] = {}
"""Who watches a module, by its id."""


@contextmanager
def _replaced() -> Iterator[None]:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    functions = dict(ALL_ATTENTION_FUNCTIONS)
    masks = dict(ALL_MASK_ATTENTION_FUNCTIONS)
    find = AttentionInterface.get_interface
    try:
        AttentionInterface.get_interface = _finding(find)
        for name, function in functions.items():
            AttentionInterface.register(name, _listening(name, function))
        for name, function in masks.items():
            AttentionMaskInterface.register(name, _remembering(function))
        yield
    finally:
        MASKS.clear()
        AttentionInterface.get_interface = find
        for name, function in functions.items():
            AttentionInterface.register(name, function)
        for name, function in masks.items():
            AttentionMaskInterface.register(name, function)


EARS = Shared(_replaced)
"""While it is open, transformers' functions tell those who watch."""


def _finding(find: Callable[..., Any]) -> Callable[..., Any]:
    """The dense attention that the file of a model brings is in no interface: it is what this is given as a default."""

    def get_interface(interface: Any, attn_implementation: str, default: Callable[..., Any]) -> Callable[..., Any]:
        found = find(interface, attn_implementation, default)
        return _listening("eager", default) if found is default else found

    return get_interface


def _listening(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *rest: Any, **extra: Any
    ) -> Any:
        watch = WATCHES.get(id(module))
        if watch is None:
            return function(module, query, key, value, attention_mask, *rest, **extra)
        path, kind = watch.name_of(module), watch.kind_of(module)
        named = _names(function)[5:]
        given = dict(zip(named, rest, strict=False)) | extra
        call = call_of(name, module, query, key, attention_mask, given, kind, named)
        call.value = value
        mask = watch.interventions.forbid(path, attention_mask, call, adds=name == "eager")
        with watch.deaf():  # torch's own function would be heard as well
            output, weights = function(module, query, key, value, mask, *rest, **extra)
            view = watch.tell(module, kind, call)
        return watch.interventions.silence(path, output), view if weights is None else weights

    return attention


@cache
def _names(function: Callable[..., Any]) -> tuple[str, ...]:
    """What a function calls its parameters, but for those that take whatever is left."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a kernel
        return ()
    return tuple(each.name for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD))


def _remembering(function: Callable[..., Any]) -> Callable[..., Any]:
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

    patterns: dict[Any, Any] = {causal_mask_function: "causal", bidirectional_mask_function: "all"}

    def make(*arguments: Any, **options: Any) -> Any:
        mask = function(*arguments, **options)
        names = ("batch_size", "q_length", "kv_length", "q_offset", "kv_offset", "mask_function", "attention_mask")
        given = {**dict(zip(names, arguments, strict=False)), **options}
        size = int(given["q_length"]), int(given["kv_length"])
        first, first_key = int(given.get("q_offset", 0)), int(given.get("kv_offset", 0))
        pattern = patterns.get(given.get("mask_function"))
        MASKS.add(mask, Made(size, first, first_key, given.get("attention_mask"), pattern))
        return mask

    return make
