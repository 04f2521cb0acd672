"""The recipe of a training: pydantic models of its sections, with every default."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import pydantic
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationInfo
from typing_extensions import Self

from regard.checks import Checks
from regard.errors import InvalidFile, InvalidRecipe, InvalidType, did_you_mean, raise_problems
from regard.training.recipe_errors import contains_type, describe_errors

if TYPE_CHECKING:
    from regard.training.tasks.base import Task

TASKS: Mapping[str, str] = MappingProxyType(
    {
        "translation": "TranslationRecipe",
        "causal_lm": "CausalLMRecipe",
        "masked_lm": "MaskedLMRecipe",
        "classification": "ClassificationRecipe",
    }
)
"""The class of each task's recipe, in the module of ``regard.training.tasks`` with the task's name."""
LOWER_IS_BETTER = ("perplexity", "bits_per_character")
PERCENTAGES = ("accuracy", "f1")


class Section(BaseModel):
    """A section of a recipe. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True, allow_inf_nan=False)

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _refuse_bools(cls, value: object, info: ValidationInfo) -> object:
        """Refuse True for a number, which pydantic would read as 1."""
        annotation = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and contains_type(annotation, str, Path):
            raise ValueError("a string (YAML reads yes, no, on and off as booleans; quote them)")
        if isinstance(value, bool) and contains_type(annotation, int, float):
            raise ValueError("a number")
        return value


def _as_path(value: object) -> object:
    """A path as a string; YAML reads some names as numbers or dates."""
    if value == "" or not isinstance(value, (str, Path, int, float, datetime.date)):
        raise ValueError("a path")
    return str(value)


def as_list(value: object) -> object:
    """One path or number as a list of one."""
    return [value] if isinstance(value, (str, Path, int, float, datetime.date)) else value


def sequence_of(expected: str, low: int = 1, high: float = math.inf) -> BeforeValidator:
    """Takes lists of ``low`` to ``high`` items, and one item as a list of one."""

    def validate(value: object) -> object:
        items = as_list(value)
        if not isinstance(items, (list, tuple)) or not low <= len(items) <= high:
            raise ValueError(expected)
        return items

    return BeforeValidator(validate)


def _count_or_auto(value: object, validate: pydantic.ValidatorFunctionWrapHandler) -> object:
    """One error for both members of the union."""
    try:
        return validate(value)
    except pydantic.ValidationError:
        raise ValueError("a number of at least 1 or 'auto'") from None


DataPath = Annotated[Path, BeforeValidator(_as_path)]
"""Relative to ``data.folder``."""
Folder = Annotated[DataPath, PlainSerializer(lambda path: str(path.absolute()), when_used="json-unless-none")]
"""Relative to the working directory; absolute in the copy of the recipe, so that a run resumes from anywhere."""
DataPaths = Annotated[tuple[DataPath, ...], sequence_of("a path or a list of paths")]
Count = Annotated[int, Field(ge=1, lt=2**31)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class DataConfig(Section):
    """The data files."""

    folder: Folder = Path()
    """Folder that relative paths of data files start from."""
    train: DataPaths
    """Training files, plain or .gz."""
    valid: DataPaths | None = None
    """Validation files; without them there is no validation and no ``best`` model."""

    def paths(self, files: Sequence[Path] | None) -> list[Path]:
        """The paths of files in the data folder."""
        return [self.folder / path for path in files or ()]


class TokenizerConfig(Section):
    """The tokenizer, trained on the training files; a pretrained model has its own."""

    type: Literal["bpe", "char"] = "bpe"
    """Byte-level BPE, or one token for each character of all files (``causal_lm`` only)."""
    vocab_size: Annotated[int, Field(ge=260)] = 8000
    """Size of the BPE vocabulary, up to 4 special tokens and 256 bytes included."""


class OptimizerConfig(Section):
    """AdamW and its learning rate."""

    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Peak, reached at the end of the warm-up."""
    warmup_steps: Annotated[int, Field(ge=0)] = 4000
    """Steps of linear warm-up."""
    lr_schedule: Literal["inverse_sqrt", "cosine", "linear", "constant"] = "inverse_sqrt"
    """Decay after the warm-up: ``inverse_sqrt``; ``cosine`` or ``linear``, until max_steps; or ``constant``."""
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Learning rate at max_steps relative to the peak, for cosine and linear."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """AdamW weight decay of matrices; biases and norms do not decay."""
    betas: Annotated[tuple[Fraction, Fraction], sequence_of("two numbers", 2, 2)] = (0.9, 0.98)
    """Adam's β₁ and β₂."""
    eps: Annotated[float, Field(gt=0)] = 1e-9
    """Adam's ε."""
    max_grad_norm: Annotated[float, Field(ge=0)] = 1.0
    """Gradients are clipped to this norm; 0 disables clipping."""


class LossConfig(Section):
    """The cross-entropy."""

    label_smoothing: Fraction = 0.1
    """Probability that is spread evenly over the vocabulary or the classes."""


class TrainerConfig(Section):
    """Duration, devices and precision, with the names of Lightning's Trainer."""

    max_steps: Count
    """Optimizer steps."""
    accumulate_grad_batches: Count = 1
    """Batches per step and process; the gradient is the mean over all their targets."""
    precision: Literal["32", "bf16-mixed"] = "32"
    """Precision of matrix products; weights are float32."""
    accelerator: Literal["auto", "cpu", "gpu", "mps"] = "auto"
    """Kind of device."""
    devices: Annotated[Count | Literal["auto"], pydantic.WrapValidator(_count_or_auto)] = "auto"
    """Number of devices; auto: all GPUs, one CPU, or the processes that torchrun started."""
    num_nodes: Count = 1
    """Number of machines."""
    num_workers: Annotated[int, Field(ge=0)] = 0
    """Processes that prepare the batches of each training process; 0: the training process does."""
    log_every_n_steps: Count = 50
    """Steps between rows in ``metrics.csv``."""


class ValidationConfig(Section):
    """Validation during training."""

    every_n_steps: Count = 1000
    """Steps between validations; the last step is always validated."""
    monitor: str = "loss"
    """Metric that selects the best weights."""
    patience: Count | None = None
    """Stop after this many validations without improvement. Default: never."""


class CheckpointConfig(Section):
    """Saving."""

    every_n_steps: Count = 500
    """Steps between saves of the training state and of ``last``."""
    every_n_minutes: Annotated[float, Field(gt=0)] = 10
    """Save at least this often."""
    average_last: Annotated[int, Field(ge=0)] = 0
    """Number of snapshots whose mean is ``averaged``; 0 disables averaging."""
    snapshot_every_n_steps: Count = 500
    """Steps between snapshots."""


class ModelSection(Section):
    """The fields of a model's config that do not follow from the data; the config checks their values."""

    config_type: ClassVar[type[Any]]
    architecture: str

    def build_config(self, vocab_size: int, **derived: Any) -> Any:
        """The config for a vocabulary and other fields that follow from the data."""
        return self.config_type(vocab_size, **self.model_dump(exclude={"architecture", "checkpoint"}), **derived)

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        self.build_config(2**16)  # raises InvalidArgument, a ValueError that pydantic collects
        return self


def model_section(architecture: str, config_type: type[Any], derived: Sequence[str], **defaults: Any) -> Any:
    """A section with the fields of a config, except ``derived`` ones, and its defaults, unless others are named."""
    values = {field.name: field.default for field in dataclasses.fields(config_type)} | defaults
    keys: dict[str, Any] = {name: (Any, value) for name, value in values.items() if name not in derived}
    keys["architecture"] = (Literal[architecture], architecture)  # pyright: ignore[reportInvalidTypeForm]
    section = pydantic.create_model(config_type.__name__, __base__=ModelSection, __doc__="The model.", **keys)
    section.config_type = config_type
    return section


def get_key(model: Any, name: str, default: Any = None) -> Any:
    """The value of a key of a model's section, which can still be a mapping."""
    value = model.get(name) if isinstance(model, Mapping) else getattr(model, name, None)
    return default if value is None else value


def architecture_or(default: str) -> pydantic.Discriminator:
    """Selects a model section by its ``architecture``."""
    return pydantic.Discriminator(lambda model: str(get_key(model, "architecture", default)))


class Recipe(Section, ABC):
    """A training: data, tokenizer, model, optimizer, and what is validated and saved.

    :func:`load_recipe` and :meth:`from_dict` make one, of the task's subclass, which adds the model and its own keys.
    """

    target_unit: ClassVar[str] = "tokens"
    """What the loss and the throughput count."""
    metric_names: ClassVar[tuple[str, ...]]
    """Columns of ``metrics.csv`` for this task."""

    output_dir: Folder
    """Folder of the run: models, logs, training state and a copy of the recipe."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 1
    """Seed of initial weights, dropout and the order of batches."""
    task: str
    """``"translation"``, ``"causal_lm"``, ``"masked_lm"`` or ``"classification"``."""
    data: DataConfig
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: Any
    """The fields of the model's config."""
    optimizer: OptimizerConfig = OptimizerConfig()
    loss: LossConfig = LossConfig()
    trainer: TrainerConfig
    validation: ValidationConfig = ValidationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    @staticmethod
    def from_dict(config: Mapping[str, Any]) -> Recipe:
        """Build the recipe of a task from nested sections.

        Args:
            config: Sections and their values, as in the YAML file; ``task`` selects the class. Default: translation.

        Raises:
            InvalidType: If the config is not a mapping.
            InvalidRecipe: With every key that is unknown, missing or invalid.
            InvalidCheckpoint: If the pretrained model cannot be read.

        Example:
            >>> trainer = {"max_step": 9, "max_steps": 9}
            >>> Recipe.from_dict({"output_dir": "r", "data": {"train": "a.tsv"}, "trainer": trainer})
            Traceback (most recent call last):
            regard.errors.InvalidRecipe: trainer.max_step: no such key, did you mean 'trainer.max_steps'?
        """
        if not isinstance(config, Mapping):
            raise InvalidType(f"config: expected a mapping of sections, got {config!r:.80}")
        recipe_type = recipe_class(config.get("task", "translation"))
        try:
            recipe = recipe_type.model_validate(dict(config))
        except pydantic.ValidationError as error:
            raise_problems(describe_errors(error, recipe_type), InvalidRecipe)
            raise AssertionError from error
        with Checks() as checks:
            checks.error = InvalidRecipe
            recipe.check(checks)
        return recipe

    @property
    def files(self) -> dict[str, list[Path]]:
        """The data files by key; their contents must not change while a run is resumed."""
        return {"data.train": self.data.paths(self.data.train), "data.valid": self.data.paths(self.data.valid)}

    def check_files(self) -> None:
        """Check that the data files exist.

        Raises:
            InvalidFile: With every file that is missing.
        """
        missing = [(key, path) for key, paths in self.files.items() for path in paths if not path.exists()]
        hint = f"or data.folder, which is {self.data.folder.absolute()}"
        raise_problems([f"{key}: no such file: {path}; change {key} {hint}" for key, path in missing], InvalidFile)

    @property
    def has_validation(self) -> bool:
        """Whether there is validation data."""
        return self.data.valid is not None

    @property
    def loss_weights(self) -> dict[str, float]:
        """Weights of the losses that are added to the task's."""
        return {}

    @property
    def monitor(self) -> tuple[str, Literal["min", "max"]]:
        """The metric that selects the best weights, and whether lower or higher is better."""
        name = self.validation.monitor
        return ("valid_loss", "min") if name == "loss" else (name, "min" if name in LOWER_IS_BETTER else "max")

    @abstractmethod
    def build_task(self) -> Task:
        """Build the task's tokenizer, data, model and losses from the recipe."""

    def check(self, checks: Checks) -> None:
        """Check whether keys fit together; each of them is valid alone."""
        if self.tokenizer.type == "char" and self.task != "causal_lm":
            checks.fail(f"tokenizer.type: expected 'bpe' for the task {self.task}, got 'char'")


def recipe_class(task: object) -> type[Recipe]:
    """The recipe class of a task.

    Raises:
        InvalidRecipe: If there is no such task.
    """
    if not isinstance(task, str) or task not in TASKS:
        known = ", ".join(TASKS)
        raise InvalidRecipe(f"task: expected one of {known}, got {task!r}{did_you_mean(str(task), TASKS)}")
    return getattr(importlib.import_module(f"regard.training.tasks.{task}"), TASKS[task])
