"""The recipe: one YAML file that tells a whole experiment, read, overridden and checked."""

from __future__ import annotations

import copy
import datetime
import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import pydantic
import yaml
from pydantic import BaseModel, Field

from regard.errors import InvalidArgument, InvalidFile, InvalidRecipe, nearest, refuse
from regard.files import whole_file
from regard.models import TransformerConfig
from regard.training.sections import (
    Attention,
    Checkpoint,
    Data,
    Folder,
    Model,
    Optimizer,
    Section,
    Trainer,
    Validation,
    Vocabulary,
)

FILE = "recipe.yaml"
# what a resumed training would ignore or could not serve; that the data are the same, their digests tell
_FIXED = (
    "seed",
    "data.max_length",
    "data.batch_tokens",
    "vocabulary.",
    "model.",
    "optimizer.",
    "attention.",
    "trainer.accumulate",
    "validation.monitor",
)
# PyYAML lets through what Python says of an impossible date, of "!!int foo", or of brackets in brackets without end
_YAML_ERRORS = (yaml.YAMLError, ValueError, LookupError, AttributeError, OverflowError, RecursionError)


class Recipe(Section):
    """A whole experiment.

    Args:
        run: The folder of the run: weights, logs, the training state and a copy of the recipe.
        seed: Of all that is random: initial weights, dropout, order of batches.
        data: See :class:`Data`.
        vocabulary: See :class:`Vocabulary`.
        model: The keys of :class:`regard.models.TransformerConfig`.
        optimizer: See :class:`Optimizer`.
        attention: See :class:`Attention`.
        trainer: See :class:`Trainer`.
        validation: See :class:`Validation`.
        checkpoint: See :class:`Checkpoint`.
    """

    run: Folder
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 1
    data: Data
    vocabulary: Vocabulary = Vocabulary()
    model: Model = Model()  # pyright: ignore[reportInvalidTypeForm] - built from the fields of TransformerConfig
    optimizer: Optimizer = Optimizer()
    attention: Attention = Attention()
    trainer: Trainer
    validation: Validation = Validation()
    checkpoint: Checkpoint = Checkpoint()

    def config(self, vocab_size: int) -> TransformerConfig:
        """Give the architecture for a vocabulary."""
        return TransformerConfig(vocab_size, **self.model.model_dump())

    @property
    def positions(self) -> int:
        """The most tokens, the special ones counted, that the model has positions for."""
        return self.model.max_length if self.model.positions == "learned" else 2**31

    def to_yaml(self) -> str:
        """Write all keys, defaults included, with absolute paths: enough to repeat or resume from anywhere."""
        keys = self.model_dump(mode="json")
        keys["run"] = str(self.run.absolute())
        keys["data"]["folder"] = str(self.data.folder.absolute())
        if teacher := self.attention.divergence.teacher:
            keys["attention"]["divergence"]["teacher"] = str(teacher.absolute())
        return yaml.safe_dump(keys, sort_keys=False, allow_unicode=True)


def read_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe from YAML.

    Args:
        path: The file.
        overrides: As for :func:`apply_overrides`.

    Returns:
        The recipe.

    Raises:
        InvalidFile: If the file is missing or no YAML.
        InvalidRecipe: With every key that is unknown, missing or impossible.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidFile(f"{path}: no such recipe") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidFile(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    try:
        keys = yaml.safe_load(text)
    except _YAML_ERRORS as error:
        raise InvalidFile(f"{path}: is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(keys, dict):
        raise InvalidRecipe(f"{path}: a recipe is a mapping of keys to values, but this is {type(keys).__name__}")
    return make_recipe(apply_overrides(keys, overrides))


def make_recipe(keys: Mapping[str, Any]) -> Recipe:
    """Check a nested mapping and make the recipe of it.

    Raises:
        InvalidRecipe: With every key that is unknown, missing or impossible.

    Example:
        >>> make_recipe({"run": "r", "data": {"train": "a.tsv"}, "trainer": {"max_step": 9, "max_steps": 9}})
        Traceback (most recent call last):
        regard.errors.InvalidRecipe: trainer.max_step: no such key, did you mean 'trainer.max_steps'?
    """
    try:
        recipe = Recipe.model_validate(dict(keys))
        recipe.config(recipe.vocabulary.size)
    except pydantic.ValidationError as error:
        refuse([_sentence(dict(problem)) for problem in error.errors()], InvalidRecipe)
        raise AssertionError from error
    except InvalidArgument as error:
        raise InvalidRecipe(f"model: {error}") from error
    refuse(_conflicts(recipe), InvalidRecipe)
    return recipe


def _conflicts(recipe: Recipe) -> list[str]:
    """Say which keys, each possible alone, do not go together."""
    conflicts = []
    most = min(recipe.data.batch_tokens, recipe.positions) - 1
    if recipe.data.max_length > most:
        conflicts.append(
            f"data.max_length: should be at most {most}, so that the longest pair fits data.batch_tokens and, where "
            f"positions are learned, model.max_length, but is {recipe.data.max_length}"
        )
    conflicts += _attention_conflicts(recipe)
    if recipe.validation.monitor != "loss" and not recipe.validation.sentences:
        conflicts.append(
            f"validation.sentences: is 0, but validation.monitor is {recipe.validation.monitor!r}, which needs "
            "translations; monitor 'loss', or translate some"
        )
    return conflicts


def _attention_conflicts(recipe: Recipe) -> list[str]:
    conflicts = []
    for name, loss in recipe.attention.losses.items():
        key = f"attention.{name}"
        count = recipe.model.num_encoder_layers if loss.of == "encoder" else recipe.model.num_decoder_layers
        for kind, numbers, size in (("layers", loss.layers, count), ("heads", loss.heads, recipe.model.num_heads)):
            wrong = [number for number in numbers or () if not -size <= number < size]
            conflicts += [f"{key}.{kind}: there are {size}, numbered from 0, but no {number}" for number in wrong]
            if numbers == ():
                conflicts.append(f"{key}.{kind}: names none; leave it out for all")
        for needed in ("file", "teacher"):
            if getattr(loss, needed, "") is None:
                conflicts.append(f"{key}.{needed}: is missing, but {key}.weight is {loss.weight}")
    entropy = recipe.attention.entropy
    if entropy.weight and entropy.floor is None and entropy.ceiling is None:
        conflicts.append("attention.entropy: has a weight, but neither floor nor ceiling")
    if entropy.floor is not None and entropy.ceiling is not None and entropy.floor > entropy.ceiling:
        conflicts.append(
            f"attention.entropy.floor: should be at most the ceiling, {entropy.ceiling}, but is {entropy.floor}"
        )
    return conflicts


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
            raise InvalidRecipe(f"{option}: {value!r} is not YAML: {' '.join(str(error).split())}") from error
        # a folder is named as it was typed: 2024_1 is no number there
        as_typed = name in ("run", "data.folder") and isinstance(found, (int, float, datetime.date))
        target[key] = value if as_typed else found
    return changed


def _nearest_option(name: str) -> str:
    known = _key_paths()
    return "" if name in known else nearest(f"--{name}", ["--resume", *(f"--{key}" for key in known)])


def _key_paths(section: type[BaseModel] = Recipe, prefix: str = "") -> list[str]:
    """The dotted names of all keys that a recipe may have, sections included."""
    paths: list[str] = []
    for name, field in section.model_fields.items():
        paths.append(prefix + name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            paths += _key_paths(field.annotation, f"{prefix}{name}.")
    return paths


def _sentence(problem: dict[str, Any]) -> str:
    known = _key_paths()
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
    with whole_file(recipe.run / FILE, text=True) as file:
        file.write(recipe.to_yaml())


def is_copy(path: Path) -> bool:
    """Whether a file is just what :func:`write_recipe` wrote, so that nothing of anyone's own is lost with it."""
    try:
        return path.read_text(encoding="utf-8") == read_recipe(path).to_yaml()
    except (InvalidFile, InvalidRecipe):
        return False


def check_resumable(recipe: Recipe) -> None:
    """Refuse to go on with a run whose state, data or order of batches another recipe would not fit.

    Raises:
        InvalidRecipe: With every key that differs from the copy in the run folder and may not.
    """
    now, then = (_flat(given.model_dump()) for given in (recipe, read_recipe(recipe.run / FILE)))
    refuse(
        [
            f"{key}: the run began with {then.get(key)!r}, but is to go on with {now.get(key)!r}; it cannot change"
            for key in now
            if key.startswith(_FIXED) and now.get(key) != then.get(key)
        ],
        InvalidRecipe,
    )


def _flat(keys: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested mapping as one of dotted names."""
    flat: dict[str, Any] = {}
    for key, value in keys.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat
