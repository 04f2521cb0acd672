"""Recipe files: reading YAML, overriding keys, and the copy in the run folder that a resumed run must agree with."""

from __future__ import annotations

import copy
import datetime
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from regard.errors import InvalidFile, InvalidRecipe, did_you_mean, raise_problems, short_repr
from regard.files import as_path, atomic_write
from regard.input_files import exists, read_file
from regard.text.validation import check_texts
from regard.training.recipe import TASKS, Recipe, recipe_class
from regard.training.recipe_errors import contains_type, key_fields

RECIPE_FILE = "recipe.yaml"
DATA_SUFFIXES = (".tsv", ".csv", ".txt", ".gz")
MAX_VALUES, MAX_DEPTH = 10_000, 20
"""Bounds of the values in a recipe, each counted as often as aliases repeat it, and of their nesting."""
BUNDLED_RECIPES = Path(__file__).parent.parent / "recipes"
CHANGEABLE_PATHS = ("output_dir", "data.folder", "data.train", "data.valid")
"""Keys that a resumed run may change, because the contents of the files are compared by their hashes."""
CHANGEABLE_SECTIONS = ("trainer.", "validation.", "checkpoint.")
"""Beginnings of other keys that it may change, such as the duration and where the run computes."""
FIXED = ("trainer.accumulate_grad_batches", "validation.monitor")
"""Exceptions, which it must not change."""
# PyYAML passes on Python's errors for impossible dates, "!!int foo" and deeply nested brackets
_YAML_ERRORS = (yaml.YAMLError, ValueError, LookupError, AttributeError, OverflowError, RecursionError)


def bundled_recipes() -> dict[str, Path]:
    """The recipes in the package, by name."""
    return {path.stem: path for path in sorted(BUNDLED_RECIPES.glob("*.yaml"))}


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe from YAML.

    Args:
        path: A file, a run folder, whose ``recipe.yaml`` is read, or the name of a bundled recipe, such as
            ``"tatoeba-en-de"``, unless there is a file of that name. The ``data.folder`` of a bundled recipe is
            relative to the folder of the bundled recipes; with ``--data.train`` it is the working directory. A run
            folder that was copied or moved is the ``output_dir``.
        overrides: Keys and values, ``--section.key value``, as for `apply_overrides`.

    Returns:
        The recipe.

    Raises:
        InvalidType: If the path is not a path, or the overrides are not a sequence of str.
        InvalidFile: If the file is missing or not YAML.
        InvalidRecipe: With every key that is unknown, missing or invalid.
        InvalidCheckpoint: If the pretrained model cannot be read.
    """
    recipes = bundled_recipes()
    path = _resolve(path)
    if path.suffix in DATA_SUFFIXES:
        example = f"`regard train toy-translation --data.train {path} --data.valid null`"
        raise InvalidFile(f"{path}: expected a recipe (YAML), got data; choose a recipe for it, as in {example}")
    if os.path.isdir(path):
        raise InvalidFile(f"{path}: expected a recipe or a run folder, got a folder without {RECIPE_FILE}")
    if not exists(path):
        is_name = len(path.parts) == 1  # not a path
        hint = (did_you_mean(str(path), recipes) or f"; bundled recipes: {', '.join(recipes)}") if is_name else ""
        raise InvalidFile(f"{path}: no such file{hint}")
    try:
        config = yaml.load(read_file(path).decode(), UniqueKeyLoader)
    except _YAML_ERRORS as error:
        raise InvalidFile(f"{path}: not valid YAML: {_reason(error)}") from error
    if not isinstance(config, dict):
        got = "an empty file" if config is None else f"a {type(config).__name__}"
        raise InvalidRecipe(f"{path}: expected keys and values, got {got}")
    if path.name == RECIPE_FILE and is_copy(path):
        config["output_dir"] = os.path.abspath(path.parent)
    data = config.get("data")
    if path.parent == BUNDLED_RECIPES and isinstance(data, dict) and "folder" in data:
        names = {option.partition("=")[0] for option in overrides}
        if "--data.train" in names and not names & {"--data.valid", "--data.folder"}:
            raise InvalidRecipe(
                "data.valid: expected --data.valid with --data.train, because the recipe's own validation data is of "
                "other texts; add `--data.valid FILE`, or `--data.valid null` to train without validation"
            )
        data["folder"] = "." if "--data.train" in names else str(BUNDLED_RECIPES / data["folder"])
    return Recipe.from_dict(apply_overrides(config, overrides))


def _resolve(path: str | Path) -> Path:
    """The file of a recipe, which a run folder and the name of a bundled recipe stand for."""
    path = as_path(path)
    if exists(path / RECIPE_FILE):
        return path / RECIPE_FILE
    return path if exists(path) and not os.path.isdir(path) else bundled_recipes().get(str(path), path)


def data_source(path: str | Path) -> str | None:
    """Where to get the data of a bundled recipe, from the comment at its beginning; None for other recipes."""
    path = _resolve(path)
    text = path.read_text(encoding="utf-8") if path.parent == BUNDLED_RECIPES else ""
    comment = re.search(r"^# Data: (.*(?:\n# .*)*?)\n# Time", text, re.MULTILINE)
    return comment[1].replace("\n# ", " ") if comment else None


def apply_overrides(config: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Set keys by their dotted names, as on the command line.

    Args:
        config: Nested sections; not changed.
        overrides: Any number of ``--section.key value`` or ``--section.key=value``; values are read as YAML.

    Returns:
        New nested sections.

    Raises:
        InvalidType: If the overrides are not a sequence of str.
        InvalidRecipe: If an override has another form, or its section is a value.

    Examples:
        >>> apply_overrides({"trainer": {"max_steps": 9}}, ["--trainer.max_steps", "100", "--data.train=[a.en, a.de]"])
        {'trainer': {'max_steps': 100}, 'data': {'train': ['a.en', 'a.de']}}
    """
    check_texts(overrides, "overrides")
    changed = copy.deepcopy(dict(config))
    rest = list(overrides)
    while rest:
        option = rest.pop(0)
        name, equals, text = option.removeprefix("--").partition("=")
        if not option.startswith("--") or not all(name.split(".")):
            raise InvalidRecipe(f"overrides: expected --section.key value, got {short_repr(option)}")
        if not equals:
            if not rest or rest[0].startswith("--"):
                known = ["--resume", *(f"--{key}" for key in _all_keys())]
                hint = "" if option in known else did_you_mean(option, known)
                raise InvalidRecipe(f"{option}: expected a value, got none{hint}")
            text = rest.pop(0)
        *sections, key = name.split(".")
        section = changed
        for part in sections:
            section = section.setdefault(part, {})
            if not isinstance(section, dict):
                raise InvalidRecipe(
                    f"{option}: expected a section {short_repr(part)}, got the value {short_repr(section)}"
                )
        try:
            value = yaml.load(text, UniqueKeyLoader) if text else text
        except _YAML_ERRORS as error:
            raise InvalidRecipe(f"{option}: expected YAML, got {short_repr(text)}: {_reason(error)}") from error
        # a path such as 2024_1 is not a number
        is_path = _all_keys().get(name) and isinstance(value, (int, float, datetime.date))
        section[key] = text if is_path else value
    return changed


def write_recipe(recipe: Recipe) -> None:
    """Write the copy of a recipe, defaults included, into its run folder.

    Raises:
        InvalidFile: If it cannot be written.
    """
    with atomic_write(recipe.output_dir / RECIPE_FILE, text=True) as file:
        file.write(_to_yaml(recipe))


def is_copy(path: Path) -> bool:
    """Whether `write_recipe` wrote a file, so that it can be overwritten."""
    try:
        content = read_file(path)
        config = yaml.load(content.decode(), UniqueKeyLoader)
        return isinstance(config, dict) and content == _to_yaml(Recipe.from_dict(config)).encode()
    except (InvalidFile, InvalidRecipe, *_YAML_ERRORS):
        return False


def is_changeable(key: str) -> bool:
    """Whether a resumed run may change a key; a key of a new section may not."""
    return key in CHANGEABLE_PATHS or (key.startswith(CHANGEABLE_SECTIONS) and key not in FIXED)


def check_resumable(recipe: Recipe) -> list[str]:
    """Check that a recipe fits the training state in its run folder.

    Returns:
        The keys that have changed, each with its old and its new value.

    Raises:
        InvalidRecipe: With every key that differs from the copy in the run folder and must not.
    """
    new, old = (
        _flatten(version.model_dump(mode="json")) for version in (recipe, load_recipe(recipe.output_dir / RECIPE_FILE))
    )
    changed = [key for key in dict.fromkeys((*new, *old)) if new.get(key) != old.get(key)]
    raise_problems(
        [
            f"{key}: expected {short_repr(old.get(key))} as in the run, got {short_repr(new.get(key))}; "
            "it cannot change"
            for key in changed
            if not is_changeable(key)
        ],
        InvalidRecipe,
    )
    return [f"{key} from {short_repr(old.get(key))} to {short_repr(new.get(key))}" for key in changed]


def values_without_paths(recipe: Recipe) -> dict[str, Any]:
    """The values of all keys but paths, whose contents are compared: what all processes of a training must share."""
    values = _flatten(recipe.model_dump(mode="json"))
    return {key: value for key, value in values.items() if key not in CHANGEABLE_PATHS}


@cache
def _all_keys() -> dict[str, bool]:
    """The keys of all tasks, and whether they are paths."""
    return {
        key: contains_type(field.annotation, Path)
        for task in TASKS
        for key, field in key_fields(recipe_class(task)).items()
    }


def _to_yaml(recipe: Recipe) -> str:
    """All keys, defaults included, with absolute folders."""
    return yaml.dump(recipe.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def _flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested sections as one mapping of dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


def _reason(error: Exception) -> str:
    """The reason and position of a YAML error."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}: {error.problem}"
    return " ".join(str(error).split())


class UniqueKeyLoader(yaml.SafeLoader):
    """`yaml.SafeLoader` that refuses duplicate keys and huge values, and reads 1e-3 as a number, as YAML 1.2 does."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.sizes: dict[yaml.Node, int] = {}  # of complete values, with what aliases repeat
        self.depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """A value; aliases can make it huge (six levels of nine are half a million) before it is constructed."""
        mark, is_alias = self.peek_event().start_mark, self.check_event(yaml.AliasEvent)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(None, None, f"expected at most {MAX_DEPTH} levels of values", mark)
        node: Any = super().compose_node(parent, index)
        self.depth -= 1
        if is_alias and node not in self.sizes:
            raise yaml.MarkedYAMLError(None, None, "a value contains itself", mark)
        if not is_alias:
            parts = [] if isinstance(node, yaml.ScalarNode) else node.value
            parts = [part for pair in parts for part in pair] if isinstance(node, yaml.MappingNode) else parts
            self.sizes[node] = 1 + sum(self.sizes[part] for part in parts)
            if self.sizes[node] > MAX_VALUES:
                message = f"expected at most {MAX_VALUES:,} values, with those that aliases repeat"
                raise yaml.MarkedYAMLError(None, None, message, mark)
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        """A mapping as it is written, before merge keys (``<<``) bring keys that it may repeat."""
        node = super().compose_mapping_node(anchor)
        names: set[str] = set()
        for key in [key for key, _ in node.value if key.tag == "tag:yaml.org,2002:str"]:
            if key.value in names:
                raise yaml.MarkedYAMLError(None, None, f"duplicate key {short_repr(key.value)}", key.start_mark)
            names.add(key.value)
        return node


class _Dumper(yaml.SafeDumper):
    """Quotes strings that `UniqueKeyLoader` would read as numbers."""


_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$")
for _class in (UniqueKeyLoader, _Dumper):
    _class.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))
