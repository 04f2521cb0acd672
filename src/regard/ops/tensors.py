"""Rules hold tensors as fields of dataclasses; autograd wants these tensors in a row, and others put in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from torch import Tensor


def replace_tensors(thing: Any, put: Callable[[Tensor], Tensor]) -> Any:
    """The same thing with `put(tensor)` for each floating-point tensor in it, in a fixed order.

    Args:
        thing: A tensor, a mapping, or a dataclass, of such things; anything else is left as it is.
        put: What to put in a tensor's place.
    """
    if isinstance(thing, Tensor):
        return put(thing) if thing.is_floating_point() else thing
    if isinstance(thing, Mapping):
        return {name: replace_tensors(part, put) for name, part in thing.items()}
    if is_dataclass(thing) and not isinstance(thing, type):
        parts = {field.name: getattr(thing, field.name) for field in fields(thing) if field.init}
        others = {name: replace_tensors(part, put) for name, part in parts.items()}
        changed = {name: other for name, other in others.items() if other is not parts[name]}
        return replace(thing, **changed) if changed else thing
    return thing


def tensors_of(thing: Any) -> list[Tensor]:
    """The floating-point tensors in a thing, in the order of `replace_tensors`."""
    found: list[Tensor] = []

    def collect(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    replace_tensors(thing, collect)
    return found
