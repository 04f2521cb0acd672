"""Configurations that pydantic validates, with errors in the words of this library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import islice
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, dataclass_transform, get_args, get_origin

import pydantic.dataclasses
from pydantic import ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ArgsKwargs, ErrorDetails, PydanticCustomError

from regard.checks import Checks, describe_range
from regard.errors import InvalidArgument, did_you_mean, raise_problems, short_repr

ConfigT = TypeVar("ConfigT", bound="Config")
MISSING = "{}: expected a value, got none"
_BOUNDS = {"ge": "low", "gt": "above", "lt": "below", "le": "high"}


class Config:
    """Base class of configurations, which `config_class` decorates: frozen, with validated fields.

    Types of fields are pydantic's. Numbers and booleans are best strict, as in `regard.models.config`: True is not an
    int, and "3" is not one either.
    """

    def __post_init__(self) -> None:
        checks = Checks()
        self.check(checks)
        if checks.problems:
            raise inconsistent(checks.problems)

    def check(self, checks: Checks) -> None:
        """Check whether fields fit together; each of them is valid alone."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Any:
        """The configuration with these fields, as read from a file.

        Raises:
            InvalidArgument: With every field that is unknown, missing, invalid or inconsistent.
        """
        return _validate(cls, dict(values))


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field, pydantic.Field))
def config_class(cls: type[ConfigT]) -> type[ConfigT]:
    """Make a frozen dataclass of a subclass of `Config`, whose constructor raises one `InvalidArgument`."""
    options = ConfigDict(extra="forbid", allow_inf_nan=False)
    decorated: Any = pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=options)(cls)
    decorated.__init__ = _init
    return decorated


def _init(self: Any, /, *args: Any, **values: Any) -> None:
    _validate(type(self), ArgsKwargs(args, values), self_instance=self)


def _validate(cls: Any, values: Any, **options: Any) -> Any:
    try:
        return cls.__pydantic_validator__.validate_python(values, **options)
    except ValidationError as error:
        problems = [problem for details in error.errors() for problem in _describe(details, fields_of(cls))]
    raise_problems(problems, InvalidArgument)
    raise AssertionError  # pydantic lists at least one problem


def fields_of(cls: Any) -> dict[str, FieldInfo]:
    """The fields that a configuration or a pydantic model can be built with, by name."""
    fields = getattr(cls, "__pydantic_fields__", {})
    return {name: field for name, field in fields.items() if field.init is not False}


def inconsistent(problems: Sequence[str]) -> PydanticCustomError:
    """The error of fields that do not fit together, with a sentence for each problem; to be raised in validators."""
    return PydanticCustomError("inconsistent", "{problems}", {"problems": list(problems)})


def _describe(details: ErrorDetails, fields: Mapping[str, FieldInfo]) -> list[str]:
    """The sentences of an error in a configuration; the items of a field have an index or a key."""
    field, *parts = details["loc"] or ("",)
    if isinstance(field, int):  # a positional argument
        field = next(islice((name for name, each in fields.items() if not each.kw_only), field, None), "arguments")
    name = field + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    if details["type"] == "unexpected_keyword_argument":
        return [f"{name}: no such field{did_you_mean(name, fields)}"]
    return describe(details, name, fields.get(field), len(parts))


def describe(details: ErrorDetails, name: str, field: FieldInfo | None = None, depth: int = 0) -> list[str]:
    """The sentences of an error, such as ``d_model: expected an int of at least 1, got 0``.

    Args:
        details: The error.
        name: What the sentences call the value.
        field: The field that has it. Default: unknown.
        depth: 1 if the value is an item of the field's, a sequence or a dict.
    """
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    if kind == "inconsistent":
        return [f"{name}.{problem}".lstrip(".") for problem in context["problems"]]
    if name.endswith(".[key]"):
        return [f"{name.partition('[')[0].partition('.')[0]}: expected strings as keys, got {short_repr(value)}"]
    if kind == "missing":
        return [MISSING.format(name)]
    if kind in ("unexpected_positional_argument", "multiple_argument_values"):
        return [f"{name}: expected the field once and with its name, got {short_repr(value)}"]
    hint = ""
    if kind == "literal_error":
        choices = context["expected"].split("'")[1::2]
        expected, hint = f"one of {', '.join(choices)}", did_you_mean(value, choices)
    elif kind == "value_error" or field is None or not (expected := _expected(field.annotation, field.metadata, depth)):
        expected = details["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    return [f"{name}: expected {expected}, got {short_repr(value)}{hint}"]


def _expected(annotation: Any, metadata: Sequence[Any] = (), depth: int = 0) -> str:
    """The values that an annotation allows, in words."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _expected(parts[0], parts[1:], depth)
    if origin in (Union, UnionType):
        words = " or ".join(_expected(part, (), depth) for part in parts if part is not NoneType)
        return f"{words}, or None" if NoneType in parts else words
    if origin in (tuple, Mapping):
        item = _expected(parts[origin is Mapping])
        return item if depth else f"a {'dict, each value' if origin is Mapping else 'sequence, each entry'} {item}"
    if annotation in (int, float):
        bounds: dict[str, Any] = {}
        for each in metadata:
            for bound in each.metadata if isinstance(each, FieldInfo) else [each]:
                bounds |= {text: getattr(bound, name) for name, text in _BOUNDS.items() if hasattr(bound, name)}
        return describe_range("an int" if annotation is int else "a finite number", optional=False, **bounds)
    return {bool: "True or False", str: "a str"}.get(annotation, "")
