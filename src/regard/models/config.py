"""Configurations of models: their fields state their bounds in annotations, and one function checks them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from operator import ge, gt, le, lt
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from regard.checks import Checks
from regard.errors import InvalidType

NormOrder = Literal["post", "pre"]

Config = TypeVar("Config")

MAX_SIZE = 2**28
"""Larger sizes are mistakes; below it, the bytes of every matrix can be counted in 63 bits."""


@dataclass(frozen=True)
class Range:
    """The bounds of a number, for annotations: low <= number <= high, above < number < below."""

    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None

    def __contains__(self, number: float) -> bool:
        bounds = ((self.low, ge), (self.high, le), (self.above, gt), (self.below, lt))
        return all(bound is None or holds(number, bound) for bound, holds in bounds)

    def __str__(self) -> str:
        bounds = {"of at least": self.low, "above": self.above, "at most": self.high, "below": self.below}
        return " and ".join(f"{words} {bound}" for words, bound in bounds.items() if bound is not None)


Size = Annotated[int, Range(1, MAX_SIZE)]
Count = Annotated[int, Range(0, MAX_SIZE)]
TokenId = Annotated[int, Range(0, MAX_SIZE)]
Rate = Annotated[float, Range(0, below=1)]
Positive = Annotated[float, Range(above=0)]
Epsilon = Annotated[float, Range(0)]


class FrozenDict(dict[str, float]):
    """A dict that is hashable and cannot be changed, as the configuration that it is part of."""

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type[FrozenDict], tuple[dict[str, float]]]:
        return FrozenDict, (dict(self),)

    def _refuse(self, *args: Any, **options: Any) -> NoReturn:
        raise TypeError("a configuration cannot be changed; make another one with dataclasses.replace")

    __setitem__ = __delitem__ = __ior__ = update = pop = popitem = clear = setdefault = _refuse  # pyright: ignore[reportAssignmentType]


def checked(config: Config, kind: type[Config]) -> Config:
    """The configuration that a model was given.

    Raises:
        InvalidType: If it is of another kind.
    """
    if not isinstance(config, kind):
        raise InvalidType(f"config: expected a {kind.__name__}, got {type(config).__name__}")
    return config


def validate(config: Any, checks: Checks) -> bool:
    """Check each field of a dataclass against its annotation: type, bounds, choices, and that numbers are finite.

    Wrong types are problems with values, because configurations are read from files.

    Returns:
        bool: Whether all types are right, so that fields can be compared; bounds may be exceeded.
    """
    comparable = True
    for name, hint in _hints(type(config)).items():
        value = getattr(config, name)
        if get_origin(hint) is Literal:
            checks.choice(name, value, get_args(hint))
        elif not _fits(value, hint):
            checks.fail(f"{name}: expected {_expected(hint)}, got {value!r:.80}")
            comparable = comparable and _fits(value, hint, bounded=False)
    return comparable


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _fits(value: Any, hint: Any, *, bounded: bool = True) -> bool:
    kind, parts = get_origin(hint), get_args(hint)
    if kind is Annotated:
        return _fits(value, parts[0]) and (not bounded or value in parts[1])
    if kind in (Union, UnionType):
        return any(_fits(value, part, bounded=bounded) for part in parts)
    if kind is tuple:  # a list in JSON
        return isinstance(value, list | tuple) and all(_fits(each, parts[0], bounded=bounded) for each in value)
    if kind is Mapping:
        return isinstance(value, dict) and all(_fits(each, parts[1], bounded=bounded) for each in value.values())
    if hint is float:
        return type(value) in (int, float) and abs(value) <= sys.float_info.max  # which NaN is not
    return type(value) is hint  # a bool is not an int


def _expected(hint: Any) -> str:
    kind, parts = get_origin(hint), get_args(hint)
    if kind is Annotated:
        return f"{_expected(parts[0])} {parts[1]}"
    if kind in (Union, UnionType):
        return ", or ".join(map(_expected, parts))
    if kind is tuple:
        return f"a sequence, each entry {_expected(parts[0])}"
    if kind is Mapping:
        return f"a dict, each value {_expected(parts[1])}"
    return {int: "an int", float: "a finite number", bool: "True or False", str: "a str", NoneType: "None"}[hint]


def check_below(checks: Checks, limit: str, size: int, **ids: int | None) -> None:
    """Check that token ids are below the size of a vocabulary, which messages call `limit`."""
    for name, token in ids.items():
        if token is not None and token >= size:
            checks.fail(f"{name}: expected an id below {limit}={size}, got {token}")


def check_translator(checks: Checks, config: Any) -> None:
    """Check the vocabularies of a translator: whether they can be tied, and the special tokens."""
    source, target = config.vocab_size, config.target_vocab_size
    if config.tie_embeddings == "all" and source != target:
        sizes = f"vocab_size={source} and tgt_vocab_size={target}"
        checks.fail(f"tie_embeddings: expected 'decoder' or 'none' for {sizes}, got 'all', which needs one vocabulary")
    specials = {name: getattr(config, name) for name in ("pad_id", "bos_id", "eos_id")}
    check_below(checks, "vocab_size" if source <= target else "tgt_vocab_size", min(source, target), **specials)
    if config.eos_id in (config.pad_id, config.bos_id):
        others = f"pad_id={config.pad_id} and bos_id={config.bos_id}"
        checks.fail(f"eos_id: expected another id than {others}, got {config.eos_id}")
