"""What tells one kind of checkpoint from another: how its configuration reads, and where each parameter is stored."""

from __future__ import annotations

import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from torch import Tensor

from regard.errors import InvalidArgument, did_you_mean
from regard.models.weights import WeightSource

GENERATION_FILE = "generation_config.json"
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


_HEAD = re.compile(r"(For[A-Z]\w*|DoubleHeadsModel|LMHeadModel|MTModel|Model)$")


class Format(ABC):
    """One kind of checkpoint."""

    model_type: ClassVar[str]
    """What config.json calls it."""
    architecture: ClassVar[str]
    """What we call it."""
    prefix: ClassVar[str]
    """What stands before all names but those of the head; files of a bare model leave it out."""
    needless: ClassVar[re.Pattern[str]]
    """Tensors that a file may hold and that say nothing: masks, tables."""
    keys: ClassVar[Mapping[str, tuple[str, Any]]]
    """What config.json calls the fields of our configuration, and what it means where it does not say."""
    aliases: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Other names that transformers takes for a key."""

    @abstractmethod
    def config(self, values: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
        """Our configuration, of what config.json holds and of the file's tensors.

        Raises:
            InvalidArgument: With everything that our model cannot do.
        """

    @abstractmethod
    def values(self, config: Any) -> dict[str, Any]:
        """What config.json is to hold for one of our configurations.

        Raises:
            InvalidArgument: With everything that this kind of checkpoint cannot tell.
        """

    def fields(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of our configuration, as config.json gives them; the activation in our word.

        Raises:
            InvalidArgument: If the activation is none of ours.
        """
        values = {**values, **{key: values[alias] for alias, key in self.aliases.items() if alias in values}}
        found = {ours: values.get(key, default) for ours, (key, default) in self.keys.items()}
        name = found["activation"]
        if not isinstance(name, str) or name not in ACTIVATIONS:
            known = f"{', '.join(map(repr, ACTIVATIONS))}, but is {name!r}{did_you_mean(str(name), ACTIVATIONS)}"
            raise InvalidArgument(f"{self.keys['activation'][0]} must be one of {known}")
        return found | {"activation": ACTIVATIONS[name]}

    def their_values(self, config: Any) -> dict[str, Any]:
        """The fields of our configuration by the keys of config.json; the activation in the word of transformers."""
        found = {key: getattr(config, ours) for ours, (key, _) in self.keys.items()}
        word = next(name for name, ours in ACTIVATIONS.items() if ours == config.activation)
        return found | {self.keys["activation"][0]: word}

    def their_words(self, message: str) -> str:
        """A message about fields of our configuration, as one about the keys of config.json."""
        return re.sub(r"\w+", lambda word: self.keys.get(word[0], word)[0], message)

    @abstractmethod
    def names(self, config: Any) -> dict[str, WeightSource]:
        """Where each parameter of the model is stored, by our name for it."""

    def files(self, config: Any) -> dict[str, Any]:
        """Further JSON files that belong to a checkpoint, by their names."""
        return {}

    def tables(self, config: Any) -> dict[str, Tensor]:
        """Further tensors, which are no parameters of ours."""
        return {}

    def to_theirs(self, config: Any, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors that a file is to hold, by its names."""
        names = self.names(config)
        pieces = (names[ours].split(parameter) for ours, parameter in parameters.items())
        return {name: piece for each in pieces for name, piece in each.items()} | self.tables(config)


def demanded(values: Mapping[str, Any], wanted: Mapping[str, Collection[Any]]) -> list[str]:
    """Say which keys, where they are there, have a value that our model cannot serve."""
    return [
        f"{key} must be {' or '.join(map(repr, possible))}, which is what this model can do, but is {values[key]!r}"
        for key, possible in wanted.items()
        if key in values and values[key] not in possible
    ]


def of_another_head(values: Mapping[str, Any], *served: str) -> list[str]:
    """Say what a checkpoint is, where it says so, and it is under none of the heads that are served.

    Classes are told apart by their ends, as ``ForCausalLM``: what stands before is spelt in more than one way.
    """
    name = named_class(values) or served[0]
    head, *heads = (match and match[0] for match in map(_HEAD.search, (name, *served)))
    if head is None or head in heads:
        return []
    return [f"architectures must be {' or '.join(map(repr, served))}, which this model is, but is {name!r}"]


def named_class(values: Mapping[str, Any]) -> str | None:
    """The class of transformers that a checkpoint says it is of.

    Raises:
        InvalidArgument: If it says so by something else than a list of names.
    """
    names = values.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidArgument(f"architectures must be a list of names, but is {names!r}")
    return names[0] if names else None


def objects(values: Mapping[str, Any], *keys: str) -> list[str]:
    """Say which keys, where they are there, hold no object of JSON."""
    return [
        f"{key} must be an object, but is {values[key]!r}"
        for key in keys
        if values.get(key) is not None and not isinstance(values[key], dict)
    ]


def fixed(config: Any, form: str, **wanted: Any) -> list[str]:
    """Say which fields of our configuration a kind of checkpoint cannot tell, as it knows one value only."""
    return [
        f"{name} must be {value!r} in a checkpoint of {form}, but is {getattr(config, name)!r}"
        for name, value in wanted.items()
        if getattr(config, name) != value
    ]


def drop_unknown_ids(fields: dict[str, Any]) -> None:
    """Leave out special token ids beyond the vocabulary with a warning, as transformers reads such a checkpoint."""
    size = fields["vocab_size"]
    for name in ("pad_id", "bos_id", "eos_ids"):
        ids = one_of(fields[name])
        beyond = [each for each in ids if type(each) is int and type(size) is int and each >= size]
        if beyond:
            warnings.warn(f"{name}: {beyond} lies outside the vocabulary of {size} tokens and is ignored", stacklevel=2)
            known = [each for each in ids if each not in beyond]
            fields[name] = known if name == "eos_ids" else None


def generation_file(config: Any) -> dict[str, Any]:
    """What transformers is to know of generation, by the name of its file."""
    return {GENERATION_FILE: {"bos_token_id": config.bos_id, **special_words(config)}}


def special_words(config: Any) -> dict[str, Any]:
    """What ends a text and fills it up, in transformers' words.

    None fills it up where a checkpoint without such a word would be read as this one: transformers' Llama gives the
    embedding of the word that it names no gradient, which an end must have.
    """
    pad = None if config.pad_id == assumed_pad(config.eos_ids) else config.pad_id
    ends = config.eos_ids[0] if len(config.eos_ids) == 1 else list(config.eos_ids) or None
    return {"eos_token_id": ends, "pad_token_id": pad}


def assumed_pad(ends: Sequence[int]) -> int:
    """What fills texts up where a checkpoint does not say: the first word that ends one."""
    return (*ends, 0)[0]


def one_of(ids: Any) -> tuple[int, ...]:
    """Ids of words that are given as one number, as several, or not at all."""
    return () if ids is None else tuple(ids) if isinstance(ids, list) else (ids,)
