"""Any model of transformers, made tiny from its configuration, offline.

Numbers in a configuration are made small by what they are called (`config_sizes.RULES`), lists that have one entry a
layer by picking a layer of each kind, sub-configurations likewise. `config_sizes.OVERRIDES` has what some
configurations need beyond that.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, models
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from helpers.model_zoo.config_sizes import OPEN, OVERRIDES, RULES, SIDE, WIDTH

LARGEST = 15_000_000


@lru_cache
def classes() -> dict[str, type[PreTrainedModel]]:
    """One model class for each class of configurations, by name: the one that `AutoModel` takes, or else the first."""
    for package in pkgutil.iter_modules(models.__path__):
        for file in sorted(Path(models.__path__[0], package.name).glob("modeling_*.py")):
            try:
                importlib.import_module(f"transformers.models.{package.name}.{file.stem}")
            except ImportError:  # of a package that is not here
                continue
    of_config: dict[type, list[type[PreTrainedModel]]] = defaultdict(list)
    for model in _below(PreTrainedModel):
        if inspect.isclass(model.config_class) and model.forward is not nn.Module.forward:
            of_config[model.config_class].append(model)
    result = {}
    for config, several in of_config.items():
        names = MODEL_MAPPING_NAMES.get(config.model_type, ())
        names = names if isinstance(names, (tuple, list)) else (names,)
        model = next((each for each in several if each.__name__ in names), several[0])
        result[model.__name__] = model
    return dict(sorted(result.items()))


def named(name: str) -> type[PreTrainedModel]:
    """One class, without importing the others."""
    kind = getattr(transformers, name, None)
    if kind is None:  # a part of another model
        files = (
            path for path in Path(models.__path__[0]).glob("*/modeling_*.py") if f"class {name}(" in path.read_text()
        )
        path = next(files)
        kind = getattr(importlib.import_module(f"transformers.models.{path.parent.name}.{path.stem}"), name)
    return kind


def _below(kind: type) -> Iterator[Any]:
    seen = {}
    for each in kind.__subclasses__():
        seen |= {each: None} | dict.fromkeys(_below(each))
    return iter(seen)


def config_of(model: type[PreTrainedModel]) -> PreTrainedConfig:
    """A small configuration."""
    config: Any = model.config_class
    more = {
        name: value for pattern, each in OVERRIDES if re.search(pattern, model.__name__) for name, value in each.items()
    }
    try:
        values = _small(config())
    except Exception:  # noqa: BLE001 (its defaults alone are none)
        values = _small(config(**_nested(more)))
    for path, value in more.items():
        if "." in path or not _set(values, path, value):
            *parents, name = path.strip(".").split(".")
            level = values
            for parent in parents:
                level = level[parent]
            level[name] = value
    return config(
        **{name: value for name, value in values.items() if name != "model_type" and not _is_fixed(config, name)}
    )


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by paths with dots, as dictionaries of dictionaries."""
    nested: dict[str, Any] = {}
    for path, value in values.items():
        *parents, name = path.strip(".").split(".")
        level = nested
        for parent in parents:
            level = level.setdefault(parent, {})
        level[name] = value
    return nested


def _is_fixed(config: type, name: str) -> bool:
    attribute = getattr(config, name, None)
    return isinstance(attribute, property) and attribute.fset is None


def _set(values: dict[str, Any], name: str, value: Any) -> bool:
    """Set a value wherever the name occurs; return whether it occurs."""
    is_set = name in values
    if is_set:
        values[name] = value
    for each in values.values():
        if isinstance(each, dict):
            is_set |= _set(each, name, value)
    return is_set


COUNTS = ("num_hidden_layers", "num_layers", "n_layer")
RESNET = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]}


def _small(config: PreTrainedConfig) -> dict[str, Any]:
    values = config.to_dict()
    count = next((name for name in COUNTS if isinstance(values.get(name), int) and values[name]), "")
    lists = {name: each for name, each in values.items() if _is_of_layers(each, values.get(count))}
    per_layer = {int(number): each for number, each in (values.get("per_layer_config") or {}).items()}
    if per_layer:
        lists["per_layer_config"] = [per_layer.get(number, {}) for number in range(values[count])]
    kinds = list(zip(*lists.values(), strict=True))
    chosen = [number for number, kind in enumerate(kinds) if kinds.index(kind) == number]
    chosen = sorted({*chosen, 0, 1})[:6] if kinds else []
    result = {}
    for name, value in values.items():
        sub = vars(config).get(name)
        if isinstance(sub, PreTrainedConfig):
            result[name] = RESNET if sub.model_type == "timm_backbone" else _small(sub) | {"model_type": sub.model_type}
        elif name in lists:
            result[name] = [_smaller(name, lists[name][number], values) for number in chosen]
        elif name == count and chosen:
            result[name] = len(chosen)
        else:
            result[name] = _smaller(name, value, values)
    if per_layer:
        result["per_layer_config"] = {
            number: {name: _smaller(name, each, values) for name, each in one.items()}
            for number, one in enumerate(result["per_layer_config"])
            if one
        }
    if count and len(values.get("stage_names") or ()) == values[count] + 1:  # each layer gives a feature
        indices = values.get("out_indices") or values.get("_out_indices") or ()
        result[count] = max(len(indices), 2)
        result |= {name: None for name in ("out_features", "_out_features") if name in values}
        result |= {name: list(range(1, len(indices) + 1)) for name in ("out_indices", "_out_indices") if name in values}
        result["stage_names"] = ["stem", *(f"stage{number + 1}" for number in range(result[count]))]
    rope = result.get("rope_parameters")
    if isinstance(rope, dict) and not any(isinstance(each, dict) for each in rope.values()):
        half = int((result.get("head_dim") or 16) * (rope.get("partial_rotary_factor") or 1)) // 2
        rope["mrope_section"] = [half - 2 * (3 * half // 8), 3 * half // 8, 3 * half // 8]
    return result


def _is_of_layers(value: Any, layers: Any) -> bool:
    return isinstance(value, (list, tuple)) and isinstance(layers, int) and len(value) == layers > 2


def _smaller(name: str, value: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        return {key: _smaller(key, each, values) for key, each in value.items()} if name.startswith("rope") else value
    if name in ("depths", "stage_numb_of_layers", "blocks_per_stage") and not isinstance(value, int):
        return [1] * len(value)
    most = next((most for pattern, most in RULES if re.search(pattern, name)), None)
    if name == "image_size" and isinstance(value, (list, tuple)):
        return [SIDE] * len(value)
    if name == "hidden_sizes" and "stage_out_channels" in values:
        return value  # the same numbers once more
    if isinstance(value, (list, tuple)):
        wide = most == WIDTH and value and all(isinstance(each, int) for each in value) and max(value) > WIDTH
        return [max(each * WIDTH // max(value), 1) for each in value] if wide else value
    if value is None:
        return OPEN.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    if re.search(r"(token|_pad|_bos|_eos)_(id|index)$|_id$", name):
        ids = [each for each in values if re.search(r"_(id|index)$", each)]
        return value if 0 <= value < 3 else 190 - ids.index(name)
    if "key_value" in name and value in (
        values.get(name.replace("key_value", "attention")),
        values.get("num_attention_heads"),
    ):
        most = 4
    if name == "embed_dim" and isinstance(values.get("num_heads"), (list, tuple)):
        return 8 * values["num_heads"][0]
    return value if most is None else min(most, value)


def built(model: type[PreTrainedModel]) -> PreTrainedModel:
    """A small model, always the same."""
    config = config_of(model)
    with torch.device("meta"):
        size = sum(each.numel() for each in model(config).parameters())
    if size > LARGEST:
        raise ValueError(f"{model.__name__}: {size:,} parameters are not tiny")
    torch.manual_seed(0)
    config = config_of(model)
    for each in configs(config):
        if getattr(each, "use_cache", False):
            each.use_cache = False
    torch.use_deterministic_algorithms(
        True, warn_only=True
    )  # uninitialized memory is NaN then, which is detected below
    try:
        made = model(config).eval()
    finally:
        torch.use_deterministic_algorithms(False)
    with torch.no_grad():
        for module in made.modules():  # scores that differ, so that a wrong weight shows
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.05)
        for each in made.parameters():
            if not bool(each.isfinite().all()):
                nn.init.normal_(each, std=0.05)
    return made


def configs(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    """A configuration and those within it."""
    yield config
    for each in vars(config).values():
        if isinstance(each, PreTrainedConfig):
            yield from configs(each)


def quiet() -> None:
    """Silence warnings about tiny configurations."""
    from transformers.utils import logging

    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()
