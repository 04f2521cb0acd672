"""CheckpointConverter: converts configurations and weights between our models and transformers."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.checks import Checks
from regard.errors import short_repr
from regard.models.weights import WeightSource
from regard.nn.absolute_positions import sinusoids

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
VASWANI_LAYER: Mapping[str, Any] = MappingProxyType(
    {
        "num_kv_heads": None,
        "head_dim": None,
        "gated": False,
        "norm": "layer_norm",
        "attention_bias": True,
        "attention_out_bias": None,
        "feed_forward_bias": True,
    }
)
"""Fields that have one value in all checkpoints of BERT, GPT-2, Marian and Pegasus."""
OPTIONAL_BIASES: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {"attention_bias": (False,), "attention_out_bias": (True, False), "feed_forward_bias": (False,)}
)
"""Other values of these fields: a bias that a model does not have is written as zeros."""
POSITION_TABLES = ("learned", "sinusoidal", "none")
"""Positions that are a table of vectors, which checkpoints with learned positions hold; that of none is zeros."""
UNUSED_WITHOUT_ROTARY = ("max_distance", "rotary_base", "rotary_scaling")
"""Fields of positions that checkpoints with a table of positions do not have."""


class CheckpointConverter(ABC):
    """Reads and writes one kind of checkpoint of transformers."""

    name: ClassVar[str]
    """What messages call the model."""
    model_type: ClassVar[str]
    """``model_type`` in transformers' config.json."""
    config_type: ClassVar[type[Any]]
    """The class of our configuration."""
    architectures: ClassVar[Mapping[str, str]]
    """The classes of transformers that can be loaded, each with its head; the first is the default."""
    prefix: ClassVar[str]
    """Prefix of all weights outside the head; checkpoints of a model without a head may lack it."""
    ignored_weights: ClassVar[re.Pattern[str]]
    """Stored tensors that are not parameters: masks, position tables."""
    aliases: ClassVar[Mapping[str, tuple[str, ...]]]
    """Other names of stored tensors: those of tied copies, and those in older files."""
    config_keys: ClassVar[Mapping[str, tuple[str, Any]]]
    """The key in config.json for each field of our configuration, and its default."""
    fixed_fields: ClassVar[Mapping[str, Any]]
    """Fields of our configuration that have one value in all checkpoints of this kind."""
    equivalent_values: ClassVar[Mapping[str, tuple[Any, ...]]] = MappingProxyType({})
    """Other values of ``fixed_fields``: a model with them is saved, because a checkpoint can express its outputs."""
    computed_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that `read_config` and `write_config` handle themselves."""
    unsaved_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that a checkpoint of this kind does not hold, because they have no effect in it, or only in training."""
    attribute_map: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Other names of keys that transformers accepts."""

    def __init_subclass__(cls) -> None:
        """Check that the class says what becomes of each field of the configuration, so that none can be lost.

        Raises:
            TypeError: If a field is not listed, listed twice, or not a field of the configuration.
        """
        super().__init_subclass__()
        if not hasattr(cls, "config_keys"):  # an abstract class
            return
        known = {field.name for field in fields(cls.config_type)}
        listed = Counter((*cls.config_keys, *cls.fixed_fields, *cls.computed_fields, *cls.unsaved_fields))
        problems = {
            "missing": known - listed.keys(),
            "unknown": listed.keys() - known,
            "listed twice": {field for field, count in listed.items() if count > 1},
            "not in fixed_fields, but in equivalent_values": cls.equivalent_values.keys() - cls.fixed_fields.keys(),
        }
        found = "; ".join(f"{problem}: {', '.join(sorted(names))}" for problem, names in problems.items() if names)
        if found:
            raise TypeError(
                f"{cls.__name__}: expected each field of {cls.config_type.__name__} once in config_keys, fixed_fields, "
                f"computed_fields or unsaved_fields, got {found}"
            )

    @abstractmethod
    def read_config(self, values: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
        """Our configuration for the values of config.json and the stored tensors.

        Raises:
            InvalidArgument: With everything that our model does not support.
        """

    def read_extra_files(self, config: Any, folder: Path) -> Any:
        """Our configuration with the fields that other files of the checkpoint set.

        Raises:
            InvalidArgument: If our model does not support what they contain.
            OSError: If a file is missing.
            ValueError: If a file is not valid JSON.
        """
        return config

    def read_head(self, values: Mapping[str, Any], checks: Checks) -> str:
        """The head of the class that config.json names.

        Names are compared from "For" on, because the rest is spelled in several ways (``LLaMAForCausalLM``). A name
        without "For" or "Model" says nothing about the head, and neither does a missing one: both mean the default.
        """
        names, default = values.get("architectures") or [], next(iter(self.architectures))
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            checks.fail(f"architectures: expected a list of class names, got {short_repr(names)}")
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

    def write_config(self, config: Any) -> dict[str, Any]:
        """The values of config.json for our configuration, as `equivalent_config` returns it."""
        values = {key: getattr(config, field) for field, (key, _) in self.config_keys.items()}
        return {
            "architectures": [next(iter(self.architectures))],
            "model_type": self.model_type,
            **values,
            self.config_keys["activation"][0]: self.activation_name(config.activation),
        }

    def activation_name(self, activation: str) -> str:
        """The name of an activation in config.json."""
        return next(name for name, value in ACTIVATIONS.items() if value == activation)

    def check_config(self, config: Any, checks: Checks) -> None:
        """Check that a checkpoint of this kind can express our configuration; None equals the default that it means."""
        resolved = {"num_kv_heads": config.num_heads, "head_dim": config.d_model // config.num_heads}
        for field, expected in self.fixed_fields.items():
            got, others = getattr(config, field), self.equivalent_values.get(field, ())
            if got != expected and got not in others and not (expected is None and got == resolved.get(field)):
                choices = " or ".join(map(repr, (expected, *others)))
                checks.fail(f"{field}: expected {choices} in a checkpoint of {self.name}, got {short_repr(got)}")

    def equivalent_config(self, config: Any) -> Any:
        """The configuration with equal outputs that a checkpoint of this kind holds."""
        return replace(config, **self.fixed_fields)

    def missing_weight(self, config: Any, name: str, shape: tuple[int, ...]) -> Tensor:
        """A parameter that `equivalent_config` has and our configuration does not, so that outputs stay equal."""
        if name.endswith("positions.weight") and config.positions == "sinusoidal":
            return sinusoids(*shape, interleaved=getattr(config, "interleaved_sinusoids", True))
        return torch.zeros(shape)

    def use_checkpoint_names(self, message: str) -> str:
        """Replace names of our fields in a message by keys of config.json."""
        return re.sub(r"\w+", lambda name: self.config_keys.get(name[0], name)[0], message)

    def extra_files(self, config: Any) -> dict[str, Any]:
        """Other JSON files of a checkpoint, by name."""
        return {}

    @abstractmethod
    def modules(self, config: Any) -> dict[str, str | tuple[str, ...]]:
        """For each module, that of the checkpoint, or several to concatenate; ``{}`` is the index of a layer."""

    def weight_map(self, config: Any, parameters: Collection[str]) -> dict[str, WeightSource]:
        """The stored tensors of each parameter, by name."""
        modules, sources = self.modules(config), {}
        kv_size = config.resolved_head_dim * (config.num_kv_heads or config.num_heads)
        query_key_value = (config.resolved_head_dim * config.num_heads, kv_size, kv_size)
        split_sizes = {1: (), 2: (config.d_ff, config.d_ff), 3: query_key_value}
        for parameter in parameters:
            module, _, part = parameter.rpartition(".")
            layer = "".join(re.findall(r"layers\.(\d+)", module))
            stored = modules[re.sub(r"layers\.\d+", "layers.{}", module)]
            names = tuple(f"{each.format(layer)}.{part}" for each in ((stored,) if isinstance(stored, str) else stored))
            # we and transformers have the same name for an lm_head.weight that is not tied
            aliases = tuple(name for name in self.aliases.get(names[0], ()) if name not in parameters)
            sources[parameter] = WeightSource(names, split_sizes[len(names)], aliases=aliases)
        return sources

    def export_weights(self, config: Any, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors to store, by name."""
        weights = {}
        for name, source in self.weight_map(config, parameters).items():
            weights |= source.split(parameters[name])
        return weights


def _head_name(name: str) -> str:
    """The end of a class name that names the head, such as ForCausalLM; else all of it."""
    return name[max(name.find("For"), 0) :]


def require_values(checks: Checks, values: Mapping[str, Any], allowed: Mapping[str, Collection[Any]]) -> None:
    """Check that keys of config.json, where present, have a value that our model supports."""
    for key, choices in allowed.items():
        if key in values and values[key] not in choices:
            checks.fail(f"{key}: expected {' or '.join(map(repr, choices))}, got {short_repr(values[key])}")


def require_objects(checks: Checks, values: Mapping[str, Any], *keys: str) -> None:
    """Check that keys of config.json, where present, hold a JSON object."""
    for key in keys:
        if values.get(key) is not None and not isinstance(values[key], dict):
            checks.fail(f"{key}: expected an object, got {short_repr(values[key])}")


def as_tuple(ids: Any) -> tuple[int, ...]:
    """Token ids as a tuple, from one id, a list, or None."""
    return () if ids is None else tuple(ids) if isinstance(ids, list) else (ids,)
