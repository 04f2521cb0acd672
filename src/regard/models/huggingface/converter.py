"""CheckpointConverter: converts configurations and weights between our models and transformers."""

from __future__ import annotations

import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from torch import Tensor

from regard.checks import Checks
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


class CheckpointConverter(ABC):
    """Reads and writes one kind of checkpoint of transformers."""

    name: ClassVar[str]
    """What messages call the model."""
    model_type: ClassVar[str]
    """``model_type`` in transformers' config.json."""
    architecture: ClassVar[str]
    """``architecture`` in our config.json."""
    architectures: ClassVar[Mapping[str, str]]
    """The classes of transformers that can be loaded, each with its head; the first is the default."""
    prefix: ClassVar[str]
    """Prefix of all weights outside the head; checkpoints of a model without a head may lack it."""
    ignored_weights: ClassVar[re.Pattern[str]]
    """Stored tensors that are not parameters: masks, position tables."""
    config_keys: ClassVar[Mapping[str, tuple[str, Any]]]
    """The key in config.json for each field of our configuration, and its default."""
    fixed_fields: ClassVar[Mapping[str, Any]]
    """Fields of our configuration that have one value in all checkpoints of this kind."""
    attribute_map: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Other names of keys that transformers accepts."""

    @abstractmethod
    def read_config(self, values: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
        """Our configuration for the values of config.json and the stored tensors.

        Raises:
            InvalidArgument: With everything that our model does not support.
        """

    @abstractmethod
    def write_config(self, config: Any) -> dict[str, Any]:
        """The values of config.json for our configuration.

        Raises:
            InvalidArgument: With everything that this kind of checkpoint cannot express.
        """

    def read_head(self, values: Mapping[str, Any], checks: Checks) -> str:
        """The head of the class that config.json names.

        Names are compared from "For" on, because the rest is spelled in several ways (``LLaMAForCausalLM``). A name
        without "For" or "Model" says nothing about the head, and neither does a missing one: both mean the default.
        """
        names, default = values.get("architectures") or [], next(iter(self.architectures))
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            checks.fail(f"architectures: expected a list of class names, got {names!r:.80}")
            return ""
        heads = {_head_name(name): head for name, head in self.architectures.items()}
        name = _head_name(names[0] if names else default)
        if name not in heads and (name.startswith("For") or name.endswith("Model")):
            checks.choice("architectures", names[0], self.architectures)
        return heads.get(name, self.architectures[default])

    def read_fields(self, values: Mapping[str, Any], checks: Checks) -> dict[str, Any]:
        """The fields of our configuration for the values of config.json, with our name of the activation."""
        values = {**values, **{key: values[alias] for alias, key in self.attribute_map.items() if alias in values}}
        fields = {field: values.get(key, default) for field, (key, default) in self.config_keys.items()}
        if checks.choice(self.config_keys["activation"][0], fields["activation"], ACTIVATIONS):
            fields["activation"] = ACTIVATIONS[fields["activation"]]
        return fields

    def write_fields(self, config: Any) -> dict[str, Any]:
        """The values of config.json for the fields of our configuration, with transformers' name of the activation."""
        values = {key: getattr(config, field) for field, (key, _) in self.config_keys.items()}
        activation = next(name for name, ours in ACTIVATIONS.items() if ours == config.activation)
        return values | {self.config_keys["activation"][0]: activation}

    def check_fixed_fields(self, config: Any, checks: Checks) -> None:
        """Check that a checkpoint of this kind can express our configuration; None equals the value it stands for."""
        resolved = {
            "num_kv_heads": config.num_heads,
            "head_dim": config.d_model // config.num_heads,
            "attention_out_bias": config.attention_bias,
        }
        for field, expected in self.fixed_fields.items():
            got = getattr(config, field)
            if got != expected and not (expected is None and got == resolved.get(field)):
                checks.fail(f"{field}: expected {expected!r} in a checkpoint of {self.name}, got {got!r}")

    def use_checkpoint_names(self, message: str) -> str:
        """Replace names of our fields in a message by keys of config.json."""
        return re.sub(r"\w+", lambda name: self.config_keys.get(name[0], name)[0], message)

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
        """The tensors to store, by name."""
        sources = self.weight_map(config)
        weights = {}
        for name, parameter in parameters.items():
            weights |= sources[name].split(parameter)
        return weights | self.extra_weights(config)


def _head_name(name: str) -> str:
    """The end of a class name that names the head, such as ForCausalLM; else all of it."""
    return name[max(name.find("For"), 0) :]


def require_values(checks: Checks, values: Mapping[str, Any], allowed: Mapping[str, Collection[Any]]) -> None:
    """Check that keys of config.json, where present, have a value that our model supports."""
    for key, choices in allowed.items():
        if key in values and values[key] not in choices:
            checks.fail(f"{key}: expected {' or '.join(map(repr, choices))}, got {values[key]!r:.80}")


def require_objects(checks: Checks, values: Mapping[str, Any], *keys: str) -> None:
    """Check that keys of config.json, where present, hold a JSON object."""
    for key in keys:
        if values.get(key) is not None and not isinstance(values[key], dict):
            checks.fail(f"{key}: expected an object, got {values[key]!r:.80}")


def projection_sizes(config: Any) -> tuple[int, int, int]:
    """Rows of the query, key and value projections, which `MultiHeadAttention` keeps in one matrix."""
    kv_size = config.resolved_head_dim * (config.num_kv_heads or config.num_heads)
    return config.resolved_head_dim * config.num_heads, kv_size, kv_size


def drop_unknown_ids(fields: dict[str, Any]) -> None:
    """Drop special token ids outside the vocabulary, with a warning: transformers loads such checkpoints."""
    size = fields["vocab_size"]
    for name in ("pad_id", "bos_id", "eos_ids"):
        ids = as_tuple(fields[name])
        outside = [each for each in ids if type(each) is int and type(size) is int and each >= size]
        if outside:
            message = f"{name}: {outside} lies outside the vocabulary of {size} tokens and is ignored"
            warnings.warn(message, stacklevel=2)
            fields[name] = [each for each in ids if each not in outside] if name == "eos_ids" else None


def generation_config(config: Any) -> dict[str, Any]:
    """The special token ids that transformers' ``generate`` reads, by the name of their file."""
    return {GENERATION_FILE: {"bos_token_id": config.bos_id, **special_token_ids(config)}}


def special_token_ids(config: Any) -> dict[str, Any]:
    """The EOS and padding ids in config.json.

    ``pad_token_id`` is left unset when it equals the first EOS id, the default on load: transformers passes it as
    ``padding_idx``, which would freeze the EOS embedding.
    """
    pad_id = None if config.pad_id == default_pad_id(config.eos_ids) else config.pad_id
    eos_ids = config.eos_ids[0] if len(config.eos_ids) == 1 else list(config.eos_ids) or None
    return {"eos_token_id": eos_ids, "pad_token_id": pad_id}


def default_pad_id(eos_ids: Sequence[int]) -> int:
    """The padding id of a checkpoint without one: the first EOS id, or 0."""
    return (*eos_ids, 0)[0]


def as_tuple(ids: Any) -> tuple[int, ...]:
    """Token ids as a tuple, from one id, a list, or None."""
    return () if ids is None else tuple(ids) if isinstance(ids, list) else (ids,)
