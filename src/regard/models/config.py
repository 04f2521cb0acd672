"""What the configurations of all models check: types by their annotations, sizes, rates, and words of a vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from regard.errors import InvalidType, count_problems

Config = TypeVar("Config")
# Sizes beyond it are slips of the pen; below it, the bytes of every matrix can be counted in 63 bits.
LARGEST = 2**28


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
        value = getattr(config, name)
        if value is None and kind.endswith("None"):
            continue
        if kind.startswith("int") and type(value) is not int:
            objections.append(f"{name} must be an int, but is {value!r}")
        if kind.startswith("float") and type(value) not in (int, float):
            objections.append(f"{name} must be a number, but is {value!r}")
        if kind == "bool" and type(value) is not bool:
            objections.append(f"{name} must be true or false, but is {value!r}")
        if kind.startswith("tuple"):
            inner = str if kind.startswith("tuple[str") else int
            if not isinstance(value, list | tuple) or not all(type(each) is inner for each in value):
                objections.append(f"{name} must be a sequence of {inner.__name__}, but is {value!r}")
    return objections


def size_objections(config: Any, *names: str) -> list[str]:
    """Say which of the named sizes, where they are given, are below 1 or beyond reason."""
    sizes = {name: getattr(config, name) for name in names}
    beyond = {name: size for name, size in sizes.items() if size is not None and size > LARGEST}
    return count_problems(**sizes) + [f"{name} must be at most {LARGEST}, but is {beyond[name]}" for name in beyond]


def word_id_objections(vocab_size: int, **words: int | Sequence[int] | None) -> list[str]:
    """Say which of the named ids are no words of a vocabulary."""
    return [
        f"{name} must be from 0 to vocab_size - 1 = {vocab_size - 1}, but is {word}"
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
    objections += word_id_objections(min(source, target), **specials)
    if config.eos_id in (config.pad_id, config.bos_id):
        objections.append(
            f"eos_id must differ from pad_id and bos_id, but they are {config.eos_id}, {config.pad_id}, {config.bos_id}"
        )
    return objections
