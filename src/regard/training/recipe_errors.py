"""Error messages of recipes: dotted key, what was expected, what it is, and the nearest key that exists."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any, get_args

from pydantic import BaseModel, Tag, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from regard.errors import MAX_REPR, did_you_mean, short_repr
from regard.validation import MISSING, Config, describe, fields_of

UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
"""Pydantic's names for errors of unknown keys."""
SYNONYMS = {"device": "trainer.accelerator", "epochs": "trainer.max_steps", "lr": "optimizer.learning_rate"}
"""Names that other programs have for keys."""
Section = type[BaseModel] | type[Config]
"""A section of a recipe: a pydantic model, or the config of a model."""


def key_fields(section: Section, prefix: str = "") -> dict[str, FieldInfo]:
    """All keys of a recipe by dotted name, sections included."""
    keys: dict[str, FieldInfo] = {}
    for name, field in fields_of(section).items():
        keys[prefix + name] = field
        for nested in sections_of(field.annotation).values():
            keys |= key_fields(nested, f"{prefix}{name}.")
    return keys


def contains_type(annotation: Any, *types: type[Any]) -> bool:
    """Whether an annotation is one of these types, or of several of them."""
    return annotation in types or any(contains_type(part, *types) for part in get_args(annotation))


def describe_errors(error: ValidationError, recipe_type: Section) -> list[str]:
    """A message for each error, such as ``optimizer.eps: expected a finite number above 0, got 0``."""
    messages = [message for problem in error.errors() for message in _describe(problem, recipe_type)]
    suggested = re.findall(r"did you mean '(.+?)'", "\n".join(messages))
    misspelt = {MISSING.format(key) for key in suggested}  # a misspelt key is one problem, not also a missing one
    return [message for message in messages if message not in misspelt]


def sections_of(annotation: Any, tag: str = "") -> dict[str, Section]:
    """The sections in an annotation: one, or those of a union by their tags."""
    if isinstance(annotation, type) and issubclass(annotation, (BaseModel, Config)):
        return {tag: annotation}
    parts = get_args(annotation)
    tags = [part.tag for part in parts if isinstance(part, Tag)]
    return {name: section for part in parts for name, section in sections_of(part, *tags).items()}


def _describe(details: ErrorDetails, recipe_type: Section) -> list[str]:
    names: list[str] = []
    sections: dict[str, Section] = {"": recipe_type}
    fields: list[FieldInfo] = []
    kind, parts = details["type"], [*details["loc"]]
    while parts:
        part = str(parts[0])
        if part and part in sections:
            sections = {"": sections[part]}
        elif found := [known[part] for section in sections.values() if part in (known := fields_of(section))]:
            names.append(part)
            fields = found
            sections = {tag: section for field in fields for tag, section in sections_of(field.annotation).items()}
        elif kind in (*UNKNOWN, "invalid_key"):
            names.append(part)
        else:  # an item of a sequence, or a member of a union
            break
        del parts[0]
    key, value = ".".join(names), details["input"]
    if kind in UNKNOWN:
        siblings = [name for section in sections.values() for name in fields_of(section)]
        return [_unknown(names, siblings, key_fields(recipe_type))]
    if kind == "invalid_key":
        return [f"{key}: expected a string as key, got {short_repr(value)}"]
    if kind == "union_tag_invalid":
        known = dict.fromkeys(str(fields_of(section)["architecture"].default) for section in sections.values())
        architecture = value["architecture"]
        hint = did_you_mean(architecture, known)
        return [f"{key}.architecture: expected one of {', '.join(known)}, got {short_repr(architecture)}{hint}"]
    if kind in ("model_type", "dataclass_type"):
        return [f"{key}: expected a section of keys and values, got {short_repr(value)}"]
    return describe(details, key, fields[0] if fields else None, len(parts))


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
