"""CheckpointConverter: how a configuration of transformers reads, and where each parameter is stored."""

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


class CheckpointConverter(ABC):
    """Reads and writes one kind of checkpoint of transformers."""

    model_type: ClassVar[str]
    """Its name in config.json."""
    architecture: ClassVar[str]
    """The name of our model."""
    prefix: ClassVar[str]
    """The prefix of all names outside the head; files of a model without a head may lack it."""
    ignored_weights: ClassVar[re.Pattern[str]]
    """Tensors that a file may hold and that are not parameters: masks, tables."""
    config_keys: ClassVar[Mapping[str, tuple[str, Any]]]
    """The key in config.json for each field of our configuration, and its default."""
    attribute_map: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Other names of keys that transformers accepts."""

    @abstractmethod
    def read_config(self, values: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
        """Our configuration from the values of config.json and the tensors of the file.

        Raises:
            InvalidArgument: With everything that our model does not support.
        """

    @abstractmethod
    def write_config(self, config: Any) -> dict[str, Any]:
        """The values of config.json for one of our configurations.

        Raises:
            InvalidArgument: With everything that this kind of checkpoint cannot express.
        """

    def read_fields(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of our configuration from the values of config.json, with our name of the activation.

        Raises:
            InvalidArgument: If the activation is not supported.
        """
        values = {**values, **{key: values[alias] for alias, key in self.attribute_map.items() if alias in values}}
        found = {ours: values.get(key, default) for ours, (key, default) in self.config_keys.items()}
        name = found["activation"]
        if not isinstance(name, str) or name not in ACTIVATIONS:
            known = f"{', '.join(map(repr, ACTIVATIONS))}, but is {name!r}{did_you_mean(str(name), ACTIVATIONS)}"
            raise InvalidArgument(f"{self.config_keys['activation'][0]} must be one of {known}")
        return found | {"activation": ACTIVATIONS[name]}

    def write_fields(self, config: Any) -> dict[str, Any]:
        """The values of config.json from the fields of our configuration, with transformers' name of the activation."""
        found = {key: getattr(config, ours) for ours, (key, _) in self.config_keys.items()}
        word = next(name for name, ours in ACTIVATIONS.items() if ours == config.activation)
        return found | {self.config_keys["activation"][0]: word}

    def use_checkpoint_names(self, message: str) -> str:
        """A message about fields of our configuration with the keys of config.json instead."""
        return re.sub(r"\w+", lambda word: self.config_keys.get(word[0], word)[0], message)

    @abstractmethod
    def weight_map(self, config: Any) -> dict[str, WeightSource]:
        """The stored tensors of each parameter, by our name of the parameter."""

    def extra_files(self, config: Any) -> dict[str, Any]:
        """Other JSON files of a checkpoint, by name."""
        return {}

    def extra_weights(self, config: Any) -> dict[str, Tensor]:
        """Other tensors of a checkpoint, which are not parameters of our model."""
        return {}

    def export_weights(self, config: Any, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a checkpoint, by name."""
        names = self.weight_map(config)
        pieces = (names[ours].split(parameter) for ours, parameter in parameters.items())
        return {name: piece for each in pieces for name, piece in each.items()} | self.extra_weights(config)


def require_values(values: Mapping[str, Any], wanted: Mapping[str, Collection[Any]]) -> list[str]:
    """Say which keys, where they are there, have a value that our model cannot serve."""
    return [
        f"{key} must be {' or '.join(map(repr, possible))}, which is what this model can do, but is {values[key]!r}"
        for key, possible in wanted.items()
        if key in values and values[key] not in possible
    ]


def check_architecture(values: Mapping[str, Any], *served: str) -> list[str]:
    """Say what a checkpoint is, where it says so, and it is under none of the heads that are served.

    Classes are told apart by their ends, as ``ForCausalLM``: what stands before is spelt in more than one way.
    """
    name = architecture_name(values) or served[0]
    head, *heads = (match and match[0] for match in map(_HEAD.search, (name, *served)))
    if head is None or head in heads:
        return []
    return [f"architectures must be {' or '.join(map(repr, served))}, which this model is, but is {name!r}"]


def architecture_name(values: Mapping[str, Any]) -> str | None:
    """The class of transformers that a checkpoint says it is of.

    Raises:
        InvalidArgument: If it says so by something else than a list of names.
    """
    names = values.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidArgument(f"architectures must be a list of names, but is {names!r}")
    return names[0] if names else None


def require_objects(values: Mapping[str, Any], *keys: str) -> list[str]:
    """Say which keys, where they are there, hold no object of JSON."""
    return [
        f"{key} must be an object, but is {values[key]!r}"
        for key in keys
        if values.get(key) is not None and not isinstance(values[key], dict)
    ]


def require_fields(config: Any, form: str, **wanted: Any) -> list[str]:
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
        ids = as_tuple(fields[name])
        beyond = [each for each in ids if type(each) is int and type(size) is int and each >= size]
        if beyond:
            warnings.warn(f"{name}: {beyond} lies outside the vocabulary of {size} tokens and is ignored", stacklevel=2)
            known = [each for each in ids if each not in beyond]
            fields[name] = known if name == "eos_ids" else None


def generation_config(config: Any) -> dict[str, Any]:
    """What transformers is to know of generation, by the name of its file."""
    return {GENERATION_FILE: {"bos_token_id": config.bos_id, **special_token_ids(config)}}


def special_token_ids(config: Any) -> dict[str, Any]:
    """What ends a text and fills it up, in transformers' words.

    None fills it up where a checkpoint without such a word would be read as this one: transformers' Llama gives the
    embedding of the word that it names no gradient, which an end must have.
    """
    pad = None if config.pad_id == default_pad_id(config.eos_ids) else config.pad_id
    ends = config.eos_ids[0] if len(config.eos_ids) == 1 else list(config.eos_ids) or None
    return {"eos_token_id": ends, "pad_token_id": pad}


def default_pad_id(ends: Sequence[int]) -> int:
    """What fills texts up where a checkpoint does not say: the first word that ends one."""
    return (*ends, 0)[0]


def as_tuple(ids: Any) -> tuple[int, ...]:
    """Ids of words that are given as one number, as several, or not at all."""
    return () if ids is None else tuple(ids) if isinstance(ids, list) else (ids,)
