"""What the configurations of all models check: types by their annotations, sizes, rates, and words of a vocabulary."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Literal, NoReturn, TypeVar

from regard.errors import InvalidType, count_problems

NormOrder = Literal["post", "pre"]

Config = TypeVar("Config")
# Sizes beyond it are slips of the pen; below it, the bytes of every matrix can be counted in 63 bits.
LARGEST = 2**28


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
    """Give the configuration of a model back, which was given one.

    Raises:
        InvalidType: If it is of another kind.
    """
    if not isinstance(config, kind):
        raise InvalidType(f"config must be a {kind.__name__}, but is a {type(config).__name__}")
    return config


def field_objections(config: Any) -> list[str]:
    """Say which fields of a dataclass are not what their annotations say: ints and numbers, or None where it may be."""
    objections = []
    for name, kind in config.__annotations__.items():
        value: Any = getattr(config, name)
        if value is None and kind.endswith("None"):
            continue
        if kind.startswith("int") and type(value) is not int:
            objections.append(f"{name} must be an int, but is {value!r}")
        elif kind.startswith("int") and value is not None and value > LARGEST:
            objections.append(f"{name} must be at most {LARGEST}, but is {value}")
        if kind.startswith("float") and not is_finite(value):
            objections.append(f"{name} must be a finite number, but is {value!r}")
        if kind.startswith("bool") and type(value) is not bool:
            objections.append(f"{name} must be true or false, but is {value!r}")
        if kind.startswith("tuple"):
            inner = str if kind.startswith("tuple[str") else int
            if not isinstance(value, list | tuple) or not all(type(each) is inner for each in value):
                objections.append(f"{name} must be a sequence of {inner.__name__}, but is {value!r}")
    return objections


def is_finite(value: Any) -> bool:
    """Whether a value is a number that a float can hold."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max  # NaN is not


def size_objections(config: Any, *names: str) -> list[str]:
    """Say which of the named sizes, where they are given, are below 1."""
    return count_problems(**{name: getattr(config, name) for name in names})


def word_id_objections(vocab_size: int, limit: str = "vocab_size", /, **words: int | Sequence[int] | None) -> list[str]:
    """Say which of the named ids are no words of a vocabulary, whose size has the name `limit` in messages."""
    return [
        f"{name} must be from 0 to {limit} - 1 = {vocab_size - 1}, but is {word}"
        for name, given in words.items()
        for word in ([] if given is None else [given] if isinstance(given, int) else given)
        if not 0 <= word < vocab_size
    ]


def two_sided_objections(config: Any) -> list[str]:
    """Say what is wrong with the vocabularies of a translator: their sizes, whether they can be tied, special words."""
    source, target = config.vocab_size, config.target_vocab_size
    objections = []
    if config.tie_embeddings == "all" and source != target:
        objections.append(
            f"tie_embeddings='all' needs one vocabulary, but vocab_size is {source} and tgt_vocab_size {target}: "
            "use 'decoder' or 'none'"
        )
    specials = {name: getattr(config, name) for name in ("pad_id", "bos_id", "eos_id")}
    limit = "vocab_size" if source <= target else "tgt_vocab_size"
    objections += word_id_objections(min(source, target), limit, **specials)
    if config.eos_id in (config.pad_id, config.bos_id):
        objections.append(
            f"eos_id must differ from pad_id and bos_id, but they are {config.eos_id}, {config.pad_id}, {config.bos_id}"
        )
    return objections
