"""The recipe: one YAML file that tells a whole experiment; its defaults are here, and only here."""

from __future__ import annotations

import dataclasses
import difflib
import os
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

from regard.errors import InvalidArgument, InvalidFile, InvalidRecipe, refuse
from regard.models import TransformerConfig

FILE = "recipe.yaml"


class Section(BaseModel):
    """A part of a recipe: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)


def _files(value: object) -> object:
    files = [value] if isinstance(value, (str, Path)) else value
    if not isinstance(files, (list, tuple)) or not 1 <= len(files) <= 2:
        raise ValueError("one TSV or a list of two line-aligned files")
    return files


Files = Annotated[tuple[Path, ...], BeforeValidator(_files)]
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]


class Data(Section):
    """Which pairs, and how many at a time."""

    folder: Path = Path()
    """Where relative paths of files begin."""
    train: Files
    """One TSV (source, tab, target) or two line-aligned files, plain or .gz."""
    valid: Files | None = None
    """The same for validation; none: nothing is validated, and ``best`` is not written."""
    max_length: Count = 128
    """Training pairs with more tokens on a side are skipped, and counted."""
    batch_tokens: Count = 8000
    """The most tokens of a batch on the larger of its two sides, padding counted."""


class Vocabulary(Section):
    """The subwords."""

    size: Annotated[int, Field(ge=259)] = 8000
    """Entries of the joint BPE vocabulary; 3 special tokens and 256 bytes are among them."""


class Optimizer(Section):
    """Adam, its learning rate and the loss."""

    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """The peak, reached at the end of the warm-up; from there it falls with 1/√step."""
    warmup_steps: Count = 4000
    """Steps of linear rise."""
    betas: tuple[Share, Share] = (0.9, 0.98)
    """Decay of Adam's two means."""
    eps: Annotated[float, Field(gt=0)] = 1e-9
    """Adam's ε."""
    clip_norm: Annotated[float, Field(ge=0)] = 1.0
    """The largest norm of the gradient; 0: not clipped."""
    label_smoothing: Share = 0.1
    """Probability spread over all words in the loss."""


class Trainer(Section):
    """How long, on what, in which precision."""

    max_steps: Count
    """Steps of the optimizer."""
    accumulate: Count = 1
    """Batches a step (on each process)."""
    precision: Literal["32", "bf16-mixed"] = "32"
    """Of the products; weights are float32 in all."""
    accelerator: Literal["auto", "cpu", "gpu", "mps"] = "auto"
    """The kind of device."""
    devices: Count | Literal["auto"] = "auto"
    """How many; auto: all, one on a CPU, or as many processes as torchrun started."""
    nodes: Count = 1
    """Machines."""
    log_every: Count = 50
    """Steps between rows in the logs."""


class Validation(Section):
    """What is measured while training, and when it is good enough."""

    every: Count = 1000
    """Steps between validations."""
    sentences: Annotated[int, Field(ge=0)] = 500
    """Different source sentences that are translated (greedily) for BLEU and chrF; 0: none."""
    monitor: Literal["bleu", "chrf", "loss"] = "bleu"
    """What decides which weights are best."""
    patience: Count | None = None
    """Validations without a better value before training stops; default: it goes on."""


class Checkpoint(Section):
    """What is saved, and when."""

    every: Count = 500
    """Steps between saves of the training state."""
    minutes: Annotated[float, Field(gt=0)] = 10
    """The state is saved at least so often, also."""
    average: Annotated[int, Field(ge=0)] = 0
    """How many snapshots of the weights, the last ones, are averaged; 0: none."""
    average_every: Count = 500
    """Steps between snapshots."""


def _model_section() -> type[Section]:
    """The keys of the architecture's config, with its defaults, less those that the vocabulary decides."""
    decided = {"vocab_size", "tgt_vocab_size", "pad_id", "bos_id", "eos_id"}
    hints = typing.get_type_hints(TransformerConfig)
    keys: dict[str, Any] = {
        field.name: (hints[field.name], field.default)
        for field in dataclasses.fields(TransformerConfig)
        if field.name not in decided
    }
    return create_model("Model", __base__=Section, __doc__="The architecture.", **keys)


Model = _model_section()


class Recipe(Section):
    """A whole experiment.

    Args:
        run: The folder of the run: weights, logs, the training state and a copy of the recipe.
        seed: Of all that is random: initial weights, dropout, order of batches.
        data: See :class:`Data`.
        vocabulary: See :class:`Vocabulary`.
        model: The keys of :class:`regard.models.TransformerConfig`.
        optimizer: See :class:`Optimizer`.
        trainer: See :class:`Trainer`.
        validation: See :class:`Validation`.
        checkpoint: See :class:`Checkpoint`.
    """

    run: Path
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 1
    data: Data
    vocabulary: Vocabulary = Vocabulary()
    model: Model = Model()  # pyright: ignore[reportInvalidTypeForm] - built from the fields of TransformerConfig
    optimizer: Optimizer = Optimizer()
    trainer: Trainer
    validation: Validation = Validation()
    checkpoint: Checkpoint = Checkpoint()

    def config(self, vocab_size: int) -> TransformerConfig:
        """Give the architecture for a vocabulary."""
        return TransformerConfig(vocab_size, **self.model.model_dump())

    def to_yaml(self) -> str:
        """Write all keys, defaults included, with absolute paths: enough to repeat or resume from anywhere."""
        keys = self.model_dump(mode="json")
        keys["run"] = str(self.run.absolute())
        keys["data"]["folder"] = str(self.data.folder.absolute())
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
        keys = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidFile(f"{path}: no such recipe") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidFile(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except yaml.YAMLError as error:
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
    return recipe


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
    changed = _copied(keys)
    rest = list(overrides)
    while rest:
        option = rest.pop(0)
        name, equals, value = option.removeprefix("--").partition("=")
        if not option.startswith("--") or not name:
            raise InvalidRecipe(f"an override is written --section.key value, but there is {option!r}")
        if not equals:
            if not rest:
                raise InvalidRecipe(f"{option}: a value should follow")
            value = rest.pop(0)
        *sections, key = name.split(".")
        target = changed
        for section in sections:
            target = target.setdefault(section, {})
            if not isinstance(target, dict):
                raise InvalidRecipe(f"{option}: '{section}' is a value and has no keys")
        try:
            target[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise InvalidRecipe(f"{option}: {value!r} is not YAML: {' '.join(str(error).split())}") from error
    return changed


def _copied(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copied(value) if isinstance(value, Mapping) else value for key, value in keys.items()}


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
        siblings = [key for key in known if key.rpartition(".")[0] == path.rpartition(".")[0]]
        # first among its neighbours; then by its last name anywhere: a key may stand in the wrong section
        near = difflib.get_close_matches(path, siblings, n=1, cutoff=0.7) or [
            key
            for key in known
            if key.rpartition(".")[2] in difflib.get_close_matches(names[-1], [key.rpartition(".")[2]])
        ]
        choices = f"; keys there are {', '.join(key.rpartition('.')[2] for key in siblings)}" if siblings else ""
        return f"{path}: no such key" + (f", did you mean '{near[0]}'?" if near else choices)
    while path and path not in known:  # pydantic goes on into unions and sequences
        path = path.rpartition(".")[0]
    if problem["type"] == "missing":
        return f"{path}: is missing"
    message = problem["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return f"{path}: should be {message}, but is {problem['input']!r}"


def write_recipe(recipe: Recipe) -> None:
    """Put the resolved recipe into its run folder."""
    draft = recipe.run / f".{FILE}.{os.getpid()}"
    draft.write_text(recipe.to_yaml(), encoding="utf-8")
    draft.replace(recipe.run / FILE)
