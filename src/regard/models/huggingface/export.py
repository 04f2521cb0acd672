"""Save models in the format of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from regard.checks import Checks
from regard.errors import InvalidArgument
from regard.models.architectures import model_from_config
from regard.models.huggingface import CONVERTERS, CheckpointConverter
from regard.models.weights import init_empty_weights


class TransformersCheckpoint(NamedTuple):
    """What is written into the folder of a checkpoint of transformers."""

    config: dict[str, Any]
    """The values of config.json."""
    weights: dict[str, Tensor]
    """The tensors, by name."""
    files: dict[str, Any]
    """The values of other JSON files, by name."""


def converter_for(config: Any) -> CheckpointConverter:
    """The converter that saves a model of a configuration in the format of transformers.

    Raises:
        InvalidArgument: If there is none, with everything that the most similar model of transformers cannot express.
    """
    problems: list[Checks] = []
    for converter in (each for each in CONVERTERS.values() if type(config) is each.config_type):
        checks = Checks()
        converter.check_config(config, checks)
        if not checks.problems:
            return converter
        problems.append(checks)
    if not problems:
        name = type(config).__name__.removesuffix("Config")
        raise InvalidArgument(f"format: expected 'regard' for an {name}, got 'transformers', which has no such model")
    min(problems, key=lambda checks: len(checks.problems)).raise_problems()
    raise AssertionError


def export_model(config: Any, parameters: Mapping[str, Tensor]) -> TransformersCheckpoint:
    """Convert the configuration and the parameters of a model, by name, to the format of transformers.

    Raises:
        InvalidArgument: As `converter_for`.
    """
    converter = converter_for(config)
    saved = converter.equivalent_config(config)
    with init_empty_weights():
        shapes = {name: tuple(each.shape) for name, each in model_from_config(saved).named_parameters()}
    dtype = next(iter(parameters.values())).dtype
    missing = {
        name: converter.missing_weight(config, name, shape).to(dtype)
        for name, shape in shapes.items()
        if name not in parameters
    }
    weights = converter.export_weights(saved, {**parameters, **missing})
    return TransformersCheckpoint(converter.write_config(saved), weights, converter.extra_files(saved))


def transformers_class(config: Any) -> str:
    """The class of transformers that loads a saved model of a configuration.

    Raises:
        InvalidArgument: As `converter_for`.

    Examples:
        >>> from regard.models import GPTConfig
        >>> transformers_class(GPTConfig(9)), transformers_class(GPTConfig.llama(9))
        ('GPT2LMHeadModel', 'LlamaForCausalLM')
    """
    converter = converter_for(config)
    return converter.write_config(converter.equivalent_config(config))["architectures"][0]
