"""Error messages of recipes: dotted key, what was expected, what it is, and the nearest key that exists."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any, get_args

from pydantic import BaseModel, Tag, ValidationError
from pydantic.fields import FieldInfo

from regard.errors import MAX_REPR, did_you_mean, short_repr

SYNONYMS = {"device": "trainer.accelerator", "epochs": "trainer.max_steps", "lr": "optimizer.learning_rate"}
"""Names that other programs have for keys."""
MISSING = "{}: expected a value, got none"


def key_fields(section: type[BaseModel], prefix: str = "") -> dict[str, FieldInfo]:
    """All keys of a recipe by dotted name, sections included."""
    keys: dict[str, FieldInfo] = {}
    for name, field in section.model_fields.items():
        keys[prefix + name] = field
        for nested in _sections(field.annotation).values():
            keys |= key_fields(nested, f"{prefix}{name}.")
    return keys


def contains_type(annotation: Any, *types: type[Any]) -> bool:
    """Whether an annotation is one of these types, or of several of them."""
    return annotation in types or any(contains_type(part, *types) for part in get_args(annotation))


def describe_errors(error: ValidationError, recipe_type: type[BaseModel]) -> list[str]:
    """A message for each error, such as ``trainer.max_steps: expected a valid integer, got 'many'``."""
    messages = [message for problem in error.errors() for message in _describe(dict(problem), recipe_type)]
    suggested = re.findall(r"did you mean '(.+?)'", "\n".join(messages))
    misspelt = {MISSING.format(key) for key in suggested}  # a misspelt key is one problem, not also a missing one
    return [message for message in messages if message not in misspelt]


def _sections(annotation: Any, tag: str = "") -> dict[str, type[BaseModel]]:
    """The sections in an annotation: one, or those of a union by their tags."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {tag: annotation}
    parts = get_args(annotation)
    tags = [part.tag for part in parts if isinstance(part, Tag)]
    return {name: section for part in parts for name, section in _sections(part, *tags).items()}


def _describe(problem: dict[str, Any], recipe_type: type[BaseModel]) -> list[str]:
    names: list[str] = []
    sections: dict[str, type[BaseModel]] = {"": recipe_type}
    for part in map(str, problem["loc"]):
        fields = [section.model_fields[part] for section in sections.values() if part in section.model_fields]
        if part and part in sections:
            sections = {"": sections[part]}
        elif fields:
            names.append(part)
            sections = {tag: section for field in fields for tag, section in _sections(field.annotation).items()}
        elif problem["type"] in ("extra_forbidden", "invalid_key"):
            names.append(part)
        else:  # an item of a sequence, or a member of a union
            break
    key, value, kind = ".".join(names), problem["input"], problem["type"]
    if kind == "extra_forbidden":
        siblings = [name for section in sections.values() for name in section.model_fields]
        return [_unknown(names, siblings, key_fields(recipe_type))]
    if kind == "missing":
        return [MISSING.format(key)]
    if kind == "invalid_key":
        return [f"{key}: expected a string as key, got {short_repr(value)}"]
    if kind == "union_tag_invalid":
        architecture = value["architecture"]
        hint = did_you_mean(architecture, sections)
        return [f"{key}.architecture: expected one of {', '.join(sections)}, got {short_repr(architecture)}{hint}"]
    if kind == "value_error" and sections:  # of a model's config, with the field in each line
        first, *lines = str(problem["ctx"]["error"]).split("\n  - ")
        return [f"{key}.{line}" for line in lines or [first]]
    expected = problem["msg"].removeprefix("Input should be ").removeprefix("Value error, ").partition(", unable")[0]
    if kind == "model_type":
        expected = "a section of keys and values"
    elif expected.startswith(("greater", "less")):
        expected = f"a number {expected}"
    return [f"{key}: expected {expected}, got {short_repr(value)}"]


def _unknown(names: list[str], siblings: Iterable[str], known: Iterable[str]) -> str:
    """The message for an unknown key, which may be misspelt or in the wrong section."""
    *sections, name = (name[:MAX_REPR] or "''" for name in names)
    section = ".".join(sections)
    prefix = f"{section}." if section else ""
    nearby = {name: prefix + name for name in siblings}
    anywhere = {key.rpartition(".")[2]: key for key in known if key.count(".") < 2}  # deeper keys are too special
    if name in SYNONYMS:
        return f"{prefix}{name}: no such key, did you mean '{SYNONYMS[name]}'?"
    for candidates in (nearby, anywhere):
        if close := difflib.get_close_matches(name, candidates, n=1):
            return f"{prefix}{name}: no such key, did you mean '{candidates[close[0]]}'?"
    return f"{prefix}{name}: no such key; expected one of {', '.join(nearby)}"
