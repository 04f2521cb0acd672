"""Rules hold tensors as fields of dataclasses; autograd wants these tensors in a row, and others put in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from regard.errors import StaleView


def map_tensors(thing: Any, put: Callable[[Tensor], Tensor]) -> Any:
    """The same thing with `put(tensor)` for each tensor in it, in a fixed order.

    Args:
        thing: A tensor, a mapping, a tuple, a list, or a dataclass, of such things; anything else is left as it is.
        put: What to put in a tensor's place.
    """
    if isinstance(thing, Tensor):
        return put(thing)
    if isinstance(thing, Mapping):
        return {name: map_tensors(part, put) for name, part in thing.items()}
    if isinstance(thing, (tuple, list)):
        replaced = [map_tensors(part, put) for part in thing]
        if all(other is part for other, part in zip(replaced, thing, strict=True)):
            return thing
        make: Any = getattr(type(thing), "_make", type(thing))  # a named tuple takes its parts one by one
        return make(replaced)
    if is_dataclass(thing) and not isinstance(thing, type):
        parts = {field.name: getattr(thing, field.name) for field in fields(thing) if field.init}
        others = {name: map_tensors(part, put) for name, part in parts.items()}
        changed = {name: other for name, other in others.items() if other is not parts[name]}
        return replace(thing, **changed) if changed else thing
    return thing


def tensors_in(thing: Any) -> list[Tensor]:
    """The tensors in a thing, in the order of `map_tensors`."""
    if isinstance(thing, Tensor):
        return [thing]
    return [tensor for part in _parts_by(type(thing))(thing) if part is not None for tensor in tensors_in(part)]


@lru_cache(maxsize=256)
def _parts_by(cls: type) -> Callable[[Any], Iterable[Any]]:
    """What lists the parts of a thing of this class."""
    if issubclass(cls, Mapping):
        return cls.values
    if issubclass(cls, (tuple, list)):
        return iter
    names = [field.name for field in fields(cls) if field.init] if is_dataclass(cls) else []
    return lambda thing: [getattr(thing, name) for name in names]


def map_float_tensors(thing: Any, put: Callable[[Tensor], Tensor]) -> Any:
    """The same for floating-point tensors alone, which are those that can have a gradient."""
    return map_tensors(thing, lambda tensor: put(tensor) if tensor.is_floating_point() else tensor)


def tensors_out_of_reach(rule: object) -> list[str]:
    """The names of a rule's attributes that want a gradient and, being no fields of a dataclass, would get none."""
    fielded = {field.name for field in fields(rule)} if is_dataclass(rule) else set()
    names = []
    for name, part in getattr(rule, "__dict__", {}).items():
        if name in fielded and is_dataclass(part):
            names += [f"{name}.{each}" for each in tensors_out_of_reach(part)]
        held = list(part.parameters()) if isinstance(part, torch.nn.Module) else [part]
        wants = any(isinstance(tensor, Tensor) and tensor.requires_grad for tensor in held)
        if wants and (name not in fielded or isinstance(part, torch.nn.Module)):
            names.append(name)
    return names


class TensorVersions:
    """Remembers the tensors in a thing as they are, to notice when one is changed in place.

    Args:
        thing: Its tensors of inference mode count no changes, and are not watched; nor are any in compiled code.
    """

    def __init__(self, thing: Any) -> None:
        watched = () if torch.compiler.is_compiling() else tensors_in(thing)  # a compiler knows none of these three
        self._versions = [(tensor, tensor._version) for tensor in watched if not tensor.is_inference()]

    def __getstate__(self) -> dict[str, list[Tensor]]:
        return {"tensors": [tensor for tensor, _ in self._versions]}

    def __setstate__(self, state: dict[str, list[Tensor]]) -> None:
        """A copy, in memory or from a file, watches tensors of its own, whose versions begin anew."""
        self.__init__(state["tensors"])

    def check(self, what: str) -> None:
        """Raise if a tensor was changed.

        Raises:
            StaleView: Naming what the tensors are.
        """
        for tensor, version in self._versions:
            if tensor._version != version:
                raise StaleView(
                    f"{what}: the tensor of shape {tuple(tensor.shape)} was changed in place since; ask before "
                    "changing it, or clone it first"
                )


def broadcasts(tensor: Tensor, shape: Sequence[int]) -> bool:
    """Whether a tensor can be expanded to a shape."""
    own = tensor.shape
    return own == shape or (
        len(own) <= len(shape)
        and all(mine == 1 or mine == size for mine, size in zip(own[::-1], shape[::-1], strict=False))
    )


def describe_tensor(thing: Any) -> str:
    """What a tensor is, without its numbers; of a named tuple of tensors, what each of them is."""
    if isinstance(thing, Tensor):
        return f"{str(thing.dtype).removeprefix('torch.')} {tuple(thing.shape)}"
    names = getattr(thing, "_fields", range(len(thing)))
    parts = (f"{name}={describe_tensor(part)}" for name, part in zip(names, thing, strict=True))
    return f"{type(thing).__name__}({', '.join(parts)})"
