"""The keys of recipes with their defaults and meanings, from the sections themselves."""

from __future__ import annotations

import inspect
import json
import re
from typing import NamedTuple

from pydantic.fields import FieldInfo

from regard.training.recipe import TASKS, recipe_class
from regard.training.recipe_errors import Section, key_fields, sections_of
from regard.validation import fields_of


class RecipeKey(NamedTuple):
    """A key of a recipe.

    Args:
        name: With its sections: ``trainer.max_steps``.
        default: As in YAML; empty for a key that is required.
        meaning: One or two sentences.
    """

    name: str
    default: str
    meaning: str


def recipe_keys(task: str) -> dict[str, list[RecipeKey]]:
    """The keys of the recipes of a task, in their order: under ``""``, and those of each architecture under its name.

    Examples:
        >>> keys = {key.name: key for key in recipe_keys("classification")[""]}
        >>> keys["validation.patience"].default, keys["trainer.max_steps"].default
        ('null', '')
    """
    recipe = recipe_class(task)
    models = sections_of(fields_of(recipe)["model"].annotation).values()
    shared = [key for key in _keys_of(recipe) if key.name != "task" and not key.name.startswith("model.")]
    return {"": shared, **{_architecture(section): _model_keys(section) for section in models}}


def keys_of_all_tasks() -> dict[str, list[RecipeKey]]:
    """Keys by heading: those that all tasks have, the others of each task, and those of each architecture."""
    keys = {task: recipe_keys(task) for task in TASKS}
    own = {task: groups.pop("") for task, groups in keys.items()}
    shared = [key for key in next(iter(own.values())) if all(key in others for others in own.values())]
    groups = {"all tasks": shared}
    for task, models in keys.items():
        groups[f"task: {task}"] = [key for key in own[task] if key not in shared]
        groups |= {f"task: {task}, {name}": fields for name, fields in models.items()}
    return groups


def _keys_of(section: Section, prefix: str = "") -> list[RecipeKey]:
    return [
        RecipeKey(name, _default(field), _one_line(field.description or ""))
        for name, field in key_fields(section, prefix).items()
        if not sections_of(field.annotation)
    ]


def _model_keys(section: Section) -> list[RecipeKey]:
    """The fields of a model's config, whose docstring has their meanings."""
    meanings: dict[str, str] = {}
    for config in reversed(section.__mro__):
        entries = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", inspect.cleandoc(config.__doc__ or ""), re.MULTILINE)
        meanings |= {f"model.{name}": _one_line(text) for name, text in entries}
    keys = [key for key in _keys_of(section, "model.") if key.name != "model.architecture"]
    return [key._replace(meaning=key.meaning or meanings.get(key.name, "")) for key in keys]


def _architecture(section: Section) -> str:
    fields = fields_of(section)
    is_pretrained = "checkpoint" in fields and fields["checkpoint"].is_required()
    return f"model.architecture: {fields['architecture'].default}" + ", pretrained" * is_pretrained


def _default(field: FieldInfo) -> str:
    return "" if field.is_required() else json.dumps(field.get_default(), default=str, ensure_ascii=False)


def _one_line(text: str) -> str:
    return " ".join(text.replace("``", "`").split())
