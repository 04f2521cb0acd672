"""The door into transformers' models: their attention functions and masks, as they are, with an ear beside them.

While a watch is on, the functions in transformers' `AttentionInterface` and `AttentionMaskInterface` are overridden,
as their documentation allows, by wrappers that call them and then tell the watch what they were given; so is the dense
attention of a model's own file where it is looked for. So a model computes what it computed before, and its
configuration stays.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from regard.watching.given import MASKS, Made, as_autocast, call_of
from regard.watching.shared import Shared

if TYPE_CHECKING:
    from regard.watching.listening import Watch

WATCHES: dict[int, Watch] = {}
"""Who watches a module, by its id."""


@contextmanager
def _replaced() -> Iterator[None]:
    from transformers import AttentionInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    of_files = (vars(module).get("ALL_ATTENTION_FUNCTIONS") for module in list(sys.modules.values()))
    interfaces = {id(each): each for each in of_files if isinstance(each, AttentionInterface)}
    with ExitStack() as stack:
        stack.callback(MASKS.clear)
        for interface in interfaces.values():  # a model's file may have one of its own
            stack.enter_context(_overridden(interface, _listening))
            stack.enter_context(_listening_to_defaults(interface))
        stack.enter_context(_overridden(ALL_MASK_ATTENTION_FUNCTIONS, lambda _, function: _remembering(function)))
        yield


EARS = Shared(_replaced)
"""While it is open, transformers' functions tell those who watch."""


@contextmanager
def _overridden(
    interface: MutableMapping[str, Any], wrap: Callable[[str, Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Override each function of an interface by a wrapper, and afterwards restore what was there."""
    before = dict(interface)
    wrappers = {name: wrap(name, function) for name, function in before.items()}
    interface.update(wrappers)
    try:
        yield
    finally:
        for name, wrapper in wrappers.items():
            if interface.get(name) is wrapper:  # else the user has set another one meanwhile
                del interface[name]  # an override: what was registered for all interfaces shows again
                if interface.get(name) is not before[name]:  # it was an override itself
                    interface[name] = before[name]


@contextmanager
def _listening_to_defaults(interface: Any) -> Iterator[None]:
    """Wrap the dense attention of a model's own file, which is in no interface but passed to it as the default."""
    find = interface.get_interface

    def get_interface(attn_implementation: str, default: Callable[..., Any]) -> Callable[..., Any]:
        found = find(attn_implementation, default)
        return _listening("eager", default) if found is default else found

    interface.get_interface = get_interface  # of this object; its class stays as it is
    try:
        yield
    finally:
        del interface.get_interface


def _listening(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *rest: Any, **extra: Any
    ) -> Any:
        watch = WATCHES.get(id(module))
        if watch is None:
            return function(module, query, key, value, attention_mask, *rest, **extra)
        path = watch.name_of(module)
        kind = watch.kind_of(module, MASKS.are_causal((query.shape[2], key.shape[2])))
        named = _names(function)[5:]
        given = dict(zip(named, rest, strict=False)) | extra
        operands = as_autocast(query, key, value)
        call = call_of(name, module, operands[0], operands[1], attention_mask, given, kind, named)
        call.value = operands[2].roll(call.extra, 2) if call.extra else operands[2]
        mask = watch.interventions.forbid(path, attention_mask, call, adds=name == "eager")
        with watch.deaf():  # torch's own function would be heard as well
            output, weights = function(module, query, key, value, mask, *rest, **extra)
            view = watch.tell(module, kind, call)
        if weights is None and not call.extra:  # else the model would take their keys to be in another order
            weights = view
        return watch.interventions.silence(path, output), weights

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
