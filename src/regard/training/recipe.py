"""The recipe: one YAML file that tells a whole experiment, read, overridden and checked."""

from __future__ import annotations

import copy
import datetime
import difflib
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import pydantic
import yaml
from pydantic import BaseModel, Field

from regard.errors import InvalidArgument, InvalidFile, InvalidRecipe, did_you_mean, raise_problems
from regard.files import atomic_write
from regard.training.sections import Checkpoint, Data, Folder, Loss, Optimizer, Section, Trainer, Validation

FILE = "recipe.yaml"
BUNDLED_RECIPES = Path(__file__).parent.parent / "recipes"
# what a resumed training would ignore or could not serve; that the data are the same, their digests tell
_FIXED = (
    "task",
    "seed",
    "data.",
    "tokenizer.",
    "model.",
    "optimizer.",
    "loss.",
    "attention_loss.",
    "trainer.accumulate_grad_batches",
    "validation.monitor",
)
_FREE = ("data.folder", "data.train", "data.valid")  # among these: where the data lie
_PATHS = {
    *_FREE,
    "output_dir",
    "model.checkpoint",
    "attention_loss.alignment.file",
    "attention_loss.kl_divergence.teacher",
}
SMALL = ("perplexity", "bits_per_character")  # of what can be monitored the values that are to be small
# PyYAML lets through what Python says of an impossible date, of "!!int foo", or of brackets in brackets without end
_YAML_ERRORS = (yaml.YAMLError, ValueError, LookupError, AttributeError, OverflowError, RecursionError)


# What a recipe is about, and where its keys are told; each is loaded when it is asked for.
TASKS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "translation": ("regard.training.translation.recipe", "TranslationRecipe"),
        "causal_lm": ("regard.training.language_model.recipe", "LanguageModelRecipe"),
        "masked_lm": ("regard.training.masked_lm.recipe", "MaskedLMRecipe"),
        "classification": ("regard.training.classification.recipe", "ClassificationRecipe"),
    }
)


class Recipe(Section):
    """A whole experiment: what the recipes of all tasks have.

    Args:
        output_dir: The folder of the run: weights, logs, the training state and a copy of the recipe.
        seed: Of all that is random: initial weights, dropout, order of batches.
        task: What is learned.
        data: See :class:`Data`.
        optimizer: See :class:`Optimizer`.
        loss: See :class:`Loss`.
        trainer: See :class:`Trainer`.
        validation: See :class:`Validation`.
        checkpoint: See :class:`Checkpoint`.
    """

    output_dir: Folder
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 1
    task: str
    data: Data
    optimizer: Optimizer = Optimizer()
    loss: Loss = Loss()
    trainer: Trainer
    validation: Validation = Validation()
    checkpoint: Checkpoint = Checkpoint()

    @staticmethod
    def from_dict(config: Mapping[str, Any]) -> Recipe:
        """Build the recipe of a task from nested sections.

        Args:
            config: Sections and their values, as in the YAML file; ``task`` selects the kind of recipe.

        Raises:
            InvalidRecipe: With every key that is unknown, missing or impossible.

        Example:
            >>> trainer = {"max_step": 9, "max_steps": 9}
            >>> Recipe.from_dict({"output_dir": "r", "data": {"train": "a.tsv"}, "trainer": trainer})
            Traceback (most recent call last):
            regard.errors.InvalidRecipe: trainer.max_step: no such key, did you mean 'trainer.max_steps'?
        """
        return _build(config)

    @classmethod
    def variant(cls, keys: Mapping[str, Any]) -> type[Recipe]:
        """The recipe that these keys are of, where a task has several."""
        return cls

    @property
    def validates(self) -> bool:
        """Whether there is something to validate with."""
        return self.data.valid is not None

    @property
    def losses(self) -> list[str]:
        """What the parts of the training loss are called, that of the task first."""
        return ["loss"]

    @property
    def told(self) -> str:
        """What a model of the task tells, each of which counts as much as another in its loss."""
        return "tokens"

    @property
    def columns(self) -> list[str]:
        """What is measured, beside losses and speed."""
        return ["valid_loss"]

    @property
    def monitored(self) -> tuple[str, Literal["min", "max"]]:
        """The name of what decides which weights are best, and whether it is to be small or large."""
        name = self.validation.monitor
        return ("valid_loss", "min") if name == "loss" else (name, "min" if name in SMALL else "max")

    def parts(self) -> tuple[Any, Any]:
        """Make the data and the module that lightning trains."""
        raise NotImplementedError

    def conflicts(self) -> list[str]:
        """Say which keys, each possible alone, do not go together.

        Raises:
            InvalidArgument: If the architecture cannot be built.
        """
        return []

    def absolute(self, keys: dict[str, Any]) -> dict[str, Any]:
        """Make all paths among the keys absolute."""
        keys["output_dir"] = str(self.output_dir.absolute())
        keys["data"]["folder"] = str(self.data.folder.absolute())
        return keys

    def to_yaml(self) -> str:
        """Write all keys, defaults included, with absolute paths: enough to repeat or resume from anywhere."""
        keys = self.absolute(self.model_dump(mode="json"))
        return yaml.safe_dump(keys, sort_keys=False, allow_unicode=True)


def by_architecture(keys: Mapping[str, Any], kinds: Mapping[str, type[Recipe]]) -> type[Recipe]:
    """The recipe of the architecture that keys name; the first where they name none.

    Raises:
        InvalidRecipe: If there is no such architecture.
    """
    model = keys.get("model")
    name = model.get("architecture") if isinstance(model, Mapping) else None
    if name is None:
        return next(iter(kinds.values()))
    if not isinstance(name, str) or name not in kinds:
        known = " or ".join(map(repr, kinds))
        raise InvalidRecipe(f"model.architecture: should be {known}, but is {name!r}{did_you_mean(str(name), kinds)}")
    return kinds[name]


def bundled_recipes() -> dict[str, Path]:
    """The recipes of the package, by name."""
    return {path.stem: path for path in sorted(BUNDLED_RECIPES.glob("*.yaml"))}


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe from YAML.

    Args:
        path: The file, or the name of a recipe of the package, such as ``"tatoeba-en-de"``. A file of that name is
            preferred. The ``data.folder`` that a recipe of the package names is in the package, too.
        overrides: As for :func:`apply_overrides`.

    Returns:
        The recipe.

    Raises:
        InvalidFile: If the file is missing or no YAML.
        InvalidRecipe: With every key that is unknown, missing or impossible.
    """
    recipes = bundled_recipes()
    if not Path(path).exists():
        path = recipes.get(str(path), path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        hint = did_you_mean(str(path), recipes) or f"; recipes of the package: {', '.join(recipes)}"
        raise InvalidFile(f"{path}: no such file{hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidFile(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    try:
        keys = yaml.load(text, _Once)
    except _YAML_ERRORS as error:
        raise InvalidFile(f"{path}: is not YAML: {_why(error)}") from error
    if keys is None:
        raise InvalidRecipe(f"{path}: is empty, but a recipe names at least the data it trains on")
    if not isinstance(keys, dict):
        raise InvalidRecipe(f"{path}: a recipe is a mapping of keys to values, but this is {type(keys).__name__}")
    if Path(path).parent == BUNDLED_RECIPES and isinstance(data := keys.get("data"), dict) and "folder" in data:
        data["folder"] = str(BUNDLED_RECIPES / data["folder"])
    return Recipe.from_dict(apply_overrides(keys, overrides))


def _why(error: Exception) -> str:
    """What a reader of YAML says, and where."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}: {error.problem}"
    return " ".join(str(error).split())


class _Once(yaml.SafeLoader):
    """Reads what `yaml.safe_load` reads, but for a key that is given twice, of which that would take the last."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._seen: set[yaml.MappingNode] = set()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Take up what a mapping merges (``<<``), which happens again where it is merged itself: look at it before."""
        if node not in self._seen:
            self._seen.add(node)
            self._refuse_twice(node)
        super().flatten_mapping(node)

    def _refuse_twice(self, node: yaml.MappingNode) -> None:
        names: set[str] = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:str":
                continue
            if key.value in names:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            names.add(key.value)


def _build(config: Mapping[str, Any]) -> Recipe:
    kind = _kind(config)
    try:
        recipe = kind.model_validate(dict(config))
        conflicts = recipe.conflicts()
    except pydantic.ValidationError as error:
        raise_problems([_sentence(dict(problem), kind) for problem in error.errors()], InvalidRecipe)
        raise AssertionError from error
    except InvalidArgument as error:
        raise InvalidRecipe(f"model: {error}") from error
    raise_problems(conflicts, InvalidRecipe)
    return recipe


def _kind(keys: Mapping[str, Any]) -> type[Recipe]:
    task = keys.get("task", "translation")
    if not isinstance(task, str) or task not in TASKS:
        known = " or ".join(map(repr, TASKS))
        raise InvalidRecipe(f"task: should be {known}, but is {task!r}{did_you_mean(str(task), TASKS)}")
    module, name = TASKS[task]
    return getattr(importlib.import_module(module), name).variant(keys)


def apply_overrides(keys: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Set keys by their dotted names, as on a command line.

    Args:
        keys: A nested mapping; it is left as it is.
        overrides: ``--section.key value`` or ``--section.key=value`` in any number; values are read as YAML.

    Returns:
        A new nested mapping.

    Raises:
        InvalidRecipe: If an override is not of this form, or a name leads through a value.

    Example:
        >>> apply_overrides({"trainer": {"max_steps": 9}}, ["--trainer.max_steps", "100", "--data.train=[a.en, a.de]"])
        {'trainer': {'max_steps': 100}, 'data': {'train': ['a.en', 'a.de']}}
    """
    changed = copy.deepcopy(dict(keys))
    rest = list(overrides)
    while rest:
        option = rest.pop(0)
        name, equals, value = option.removeprefix("--").partition("=")
        if not option.startswith("--") or not name:
            raise InvalidRecipe(f"an override is written --section.key value, but there is {option!r}")
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise InvalidRecipe(f"{option}: a value should follow{_nearest_option(name)}")
            value = rest.pop(0)
        *sections, key = name.split(".")
        target = changed
        for section in sections:
            target = target.setdefault(section, {})
            if not isinstance(target, dict):
                raise InvalidRecipe(f"{option}: '{section}' is a value and has no keys")
        try:
            found = yaml.safe_load(value)
        except _YAML_ERRORS as error:
            raise InvalidRecipe(f"{option}: {value!r} is not YAML: {_why(error)}") from error
        # a path is named as it was typed: 2024_1 is no number there
        as_typed = name in _PATHS and isinstance(found, (int, float, datetime.date))
        target[key] = value if as_typed else found
    return changed


def _nearest_option(name: str) -> str:
    known = [path for task in TASKS for path in _key_paths(_kind({"task": task}))]
    return "" if name in known else did_you_mean(f"--{name}", ["--resume", *(f"--{key}" for key in known)])


def _key_paths(section: type[BaseModel], prefix: str = "") -> list[str]:
    """The dotted names of all keys that a recipe may have, sections included."""
    paths: list[str] = []
    for name, field in section.model_fields.items():
        paths.append(prefix + name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            paths += _key_paths(field.annotation, f"{prefix}{name}.")
    return paths


def _sentence(problem: dict[str, Any], kind: type[Recipe]) -> str:
    known = _key_paths(kind)
    names = [str(part) for part in problem["loc"]]
    path = ".".join(names)
    if problem["type"] == "extra_forbidden":
        section = path.rpartition(".")[0]
        siblings = {key.rpartition(".")[2]: key for key in known if key.rpartition(".")[0] == section}
        # it may stand in the wrong section; what lies deeper is too special to be meant
        anywhere = {key.rpartition(".")[2]: key for key in known if key.count(".") < 2}
        for keys in (siblings, anywhere):
            if near := difflib.get_close_matches(names[-1], keys, n=1):
                return f"{path}: no such key, did you mean '{keys[near[0]]}'?"
        return f"{path}: no such key; keys there are {', '.join(siblings)}"
    while path and path not in known:  # pydantic goes on into unions and sequences
        path = path.rpartition(".")[0]
    if problem["type"] == "missing":
        return f"{path}: is missing"
    if problem["type"] == "invalid_key":
        return f"{'.'.join(names)}: a key should be a name, but is {problem['input']!r}"
    message = problem["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    if problem["type"] == "model_type":
        message = "a mapping of keys to values"
    return f"{path}: should be {message}, but is {problem['input']!r}"


def write_recipe(recipe: Recipe) -> None:
    """Put the resolved recipe into its run folder.

    Raises:
        InvalidFile: If it cannot be written.
    """
    with atomic_write(recipe.output_dir / FILE, text=True) as file:
        file.write(recipe.to_yaml())


def is_copy(path: Path) -> bool:
    """Whether a file is just what :func:`write_recipe` wrote, so that nothing of anyone's own is lost with it."""
    try:
        return path.read_text(encoding="utf-8") == load_recipe(path).to_yaml()
    except (InvalidFile, InvalidRecipe):
        return False


def check_resumable(recipe: Recipe) -> None:
    """Refuse to go on with a run whose state, data or order of batches another recipe would not fit.

    Raises:
        InvalidRecipe: With every key that differs from the copy in the run folder and may not.
    """
    now, then = (_flat(yaml.safe_load(each.to_yaml())) for each in (recipe, load_recipe(recipe.output_dir / FILE)))
    raise_problems(
        [
            f"{key}: the run began with {then.get(key)!r}, but is to go on with {now.get(key)!r}; it cannot change"
            for key in dict.fromkeys((*now, *then))
            if key.startswith(_FIXED) and key not in _FREE and now.get(key) != then.get(key)
        ],
        InvalidRecipe,
    )


def _flat(keys: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested mapping as one of dotted names."""
    flat: dict[str, Any] = {}
    for key, value in keys.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat
