"""Rules: the base of masks, scores and measures. Defining a subclass registers it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self
from weakref import WeakValueDictionary

import torch
from typing_extensions import dataclass_transform

from regard.checks import Checks, as_device, describe
from regard.errors import InvalidArgument, InvalidType, did_you_mean, short_repr
from regard.ops.steps import Place, Step
from regard.ops.tile import Shape
from regard.ops.tree import map_tensors

_BUILTIN: dict[type[Rule], dict[str, type[Rule]]] = {}
_USER: dict[type[Rule], MutableMapping[str, type[Rule]]] = {}


@dataclass_transform(eq_default=False)
class Rule:
    """Base of `Mask`, `Score` and `Measure`.

    A class that annotates fields becomes a dataclass without a decorator, and cannot be a frozen one. Tensors that a
    rule holds as attributes, also in lists, tuples, dicts, dataclasses and other rules, get gradients and move with
    `to`; slots are not a part of a rule, and copies of it lack them. Where gradients are computed, tensors in half
    precision are in float32 (float64 for float64), in which sums are added up. To be saved in a recording, a rule must
    keep each argument of its constructor as an attribute of the same name.

    Attributes:
        name: The class's name in snake case: what ``measure="..."`` and ``score="..."`` take. Set it by
            ``class TopK(Measure, name="topk")``.
        builtin: Whether the class is part of `regard.ops`.
        required_arguments: Names of the constructor's arguments without a default.
        has_python_callable: Whether the rule holds a Python function, which can be neither compiled into one operator
            nor saved.
        is_bias: Whether it is a score meant to be added to another one, as errors then suggest.
        hints: For each method, the attributes that describe its result and allow shortcuts. A subclass that overrides
            the method but not the attribute gets the base class's safe default, never its parent's value.
    """

    base: ClassVar[type[Rule]]
    name: ClassVar[str]
    builtin: ClassVar[bool]
    required_arguments: ClassVar[tuple[str, ...]]
    hints: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    is_tree_node: ClassVar[bool] = True  # see `tree`
    has_python_callable: ClassVar[bool] = False
    is_bias: ClassVar[bool] = False

    def check(self, checks: Checks, shape: Shape, head_dim: int, device: torch.device) -> None:
        """Add the problems with this rule for a weight matrix of a shape, on a device; head_dim is 0 if unknown."""

    def steps(self, place: Place) -> list[Step] | None:
        """The rule as steps, for kernels in other languages; None if it cannot be written so."""
        return None

    def __init_subclass__(cls, *, name: str | None = None, abstract: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if Rule in cls.__bases__:  # Mask, Score and Measure
            cls.base, _BUILTIN[cls], _USER[cls] = cls, {}, WeakValueDictionary()
            return
        if inspect.get_annotations(cls):  # else a class such as Causal would lose its own __init__
            _make_dataclass(cls)
        for method, hints in cls.hints.items():
            for hint in hints:
                if _depth(cls, hint) > _depth(cls, method):
                    setattr(cls, hint, inspect.getattr_static(cls.base, hint))
        cls.builtin = cls.__module__.startswith("regard.ops.")
        parameters = list(inspect.signature(cls).parameters.values())
        required = [each for each in parameters if each.default is each.empty and each.kind is not each.VAR_POSITIONAL]
        cls.required_arguments = tuple(each.name for each in required if each.kind is not each.VAR_KEYWORD)
        if name is not None or not {"name"} & vars(cls).keys():
            cls.name = name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        if isinstance(cls.name, str) and not abstract:  # pyright: ignore[reportUnnecessaryIsInstance]
            if cls.builtin:
                _BUILTIN[cls.base][cls.name] = cls
            else:
                _USER[cls.base][class_id(cls)] = cls

    def to(self, device: torch.device | str) -> Self:
        """The same rule with its tensors on a device."""
        device = as_device(device)
        return map_tensors(self, lambda tensor: tensor.to(device))

    def __repr__(self) -> str:
        values = (f"{name}={_brief(value)}" for name, value in vars(self).items())
        return f"{type(self).__name__}({', '.join(values)})"


def _make_dataclass(cls: type) -> None:
    """Make a class a dataclass; one that annotates class variables only keeps an inherited constructor."""
    has_init, annotated = "__init__" in vars(cls), inspect.get_annotations(cls)
    try:
        dataclass(eq=False, repr=False)(cls)
    except TypeError:  # a field without a default after an inherited one with a default
        dataclass(eq=False, repr=False, kw_only=True)(cls)
    arguments = {*inspect.signature(cls).parameters, *(each.name for each in fields(cls))}
    if not has_init and not annotated.keys() & arguments:
        del cls.__init__


def registered(base: type[Rule]) -> dict[str, type[Rule]]:
    """The public classes of a base by name; a user's class does not replace a built-in one."""
    classes = {cls.name: cls for cls in list(_USER[base].values())} | _BUILTIN[base]
    return {name: cls for name, cls in classes.items() if not name.startswith("_")}


def builtin_classes(*bases: type[Rule]) -> Iterator[Any]:
    """The built-in masks, scores and measures; only those of some bases, if there are any."""
    for base, classes in _BUILTIN.items():
        if not bases or base in bases:
            yield from classes.values()


def has_steps(cls: type[Rule]) -> bool:
    """Whether the rules of a class can be written as steps, for kernels in other languages."""
    return cls.steps is not cls.base.steps


def class_id(cls: type[Rule]) -> str:
    """How files name a class: a built-in one by its name, a user's by module and qualified name."""
    return cls.__name__ if cls.builtin else f"{cls.__module__}.{cls.__qualname__}"


def class_by_id(name: str) -> type[Rule]:
    """The class that a file names.

    Raises:
        InvalidArgument: If it has not been defined in this process: a file never imports code.
    """
    for user in _USER.values():
        if name in user:
            return user[name]
    for cls in builtin_classes():
        if cls.__name__ == name:
            return cls
    raise InvalidArgument(f"unknown class {name}; import the module that defines it before reading the file")


def resolve(base: type[Rule], value: Any, argument: str) -> Any:
    """The rule that an argument means: a rule, or the name of a class that needs no arguments.

    Args:
        base: `Score` or `Measure`.
        value: What was passed.
        argument: The argument's name, for errors.

    Raises:
        InvalidArgument: If the name is unknown or its class needs arguments.
        InvalidType: If the value is neither a name nor a rule.
    """
    if isinstance(value, base):
        return value
    if isinstance(value, str):
        builtin = _BUILTIN[base].get(value)
        if builtin is not None and not builtin.required_arguments:
            return builtin()
        cls = registered(base).get(value)
        if cls is None:
            known = sorted(registered(base))
            raise InvalidArgument(
                f"{argument}: unknown name '{value}'{did_you_mean(value, known)}; known: {', '.join(known)}"
            )
        if cls.required_arguments:
            call = f"{'regard.' if cls.builtin else ''}{cls.__name__}({', '.join(cls.required_arguments)})"
            call = f"regard.ScaledDotProduct() + {call}" if cls.is_bias else call
            raise InvalidArgument(f"{argument}: '{value}' needs arguments; pass {call}")
        return cls()
    if isinstance(value, type) and issubclass(value, base):
        raise InvalidType(
            f"{argument}: expected an instance, got the class {value.__name__}; use {value.__name__}(...)"
        )
    raise InvalidType(
        f"{argument}: expected a name or a {base.__name__}, got {type(value).__name__} {short_repr(value)}"
    )


def _depth(cls: type, name: str) -> int:
    """How far up the class hierarchy an attribute is defined."""
    return next(depth for depth, owner in enumerate(cls.__mro__) if name in vars(owner))


def _brief(value: Any) -> str:
    return describe(value) if isinstance(value, torch.Tensor) else repr(value)
