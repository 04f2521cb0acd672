"""The recipe of a training: its sections, and what follows from them."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import pydantic
from pydantic import Field

from regard.checks import Checks
from regard.errors import (
    InvalidArgument,
    InvalidFile,
    InvalidRecipe,
    InvalidType,
    did_you_mean,
    raise_problems,
    short_repr,
)
from regard.input_files import exists
from regard.models.config import TransformerLayerConfig
from regard.models.huggingface.export import transformers_class
from regard.nn.positions import position_classes
from regard.nn.relative_positions import AttentionPositions
from regard.text.tables import check_first_row
from regard.training.recipe_errors import describe_errors
from regard.training.recipe_sections import (
    CheckpointConfig,
    DataConfig,
    Folder,
    LossConfig,
    OptimizerConfig,
    Section,
    StreamedDataConfig,
    TokenizerConfig,
    TrainerConfig,
    ValidationConfig,
    get_key,
)

if TYPE_CHECKING:
    from regard.training.tasks.base import Task

TASKS: Mapping[str, str] = MappingProxyType(
    {
        "translation": "TranslationRecipe",
        "causal_lm": "CausalLMRecipe",
        "masked_lm": "MaskedLMRecipe",
        "classification": "ClassificationRecipe",
        "tagging": "TaggingRecipe",
    }
)
"""The class of each task's recipe, in the module of ``regard.training.tasks`` with the task's name."""


class Metric(NamedTuple):
    """A number that validation computes, or the mean of an added loss: a column of ``metrics.csv``.

    Args:
        name: Name of the column.
        best: Whether lower or higher is better.
        unit: What the log writes after the number.
    """

    name: str
    best: Literal["min", "max"]
    unit: Literal["", "%"] = ""


VALID_LOSS = Metric("valid_loss", "min")


class Recipe(Section, ABC):
    """A training: data, tokenizer, model, optimizer, and what is validated and saved.

    `load_recipe` and `from_dict` make one, of the task's subclass, which adds the model and its own keys.
    """

    target_unit: ClassVar[str] = "tokens"
    """What the loss and the throughput count."""
    metrics: ClassVar[tuple[Metric, ...]]
    """What the task's validation computes, and its added losses; another number is an error."""

    output_dir: Folder
    """Folder of the run: models, logs, training state and a copy of the recipe."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 1
    """Seed of initial weights, dropout and the order of batches."""
    task: str
    """The name of the task, one of `TASKS`."""
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

        Examples:
            >>> trainer = {"max_step": 9, "max_steps": 9}
            >>> Recipe.from_dict({"output_dir": "r", "data": {"train": "a.tsv"}, "trainer": trainer})
            Traceback (most recent call last):
            regard.errors.InvalidRecipe: trainer.max_step: no such key, did you mean 'trainer.max_steps'?
        """
        if not isinstance(config, Mapping):
            raise InvalidType(f"config: expected a mapping of sections, got {short_repr(config)}")
        recipe_type = recipe_class(config.get("task", "translation"))
        try:
            recipe = recipe_type.model_validate(dict(config))
        except pydantic.ValidationError as error:
            raise_problems(describe_errors(error, recipe_type), InvalidRecipe)
            raise AssertionError from error
        with Checks() as checks:
            checks.error = InvalidRecipe
            recipe.check(checks)
            recipe.check_layers(checks)
            names = [metric.name for metric in recipe.metrics]
            for name in (recipe.validation.monitor, *recipe.loss_weights):
                checks.that(name in names, f"{recipe_type.__name__}.metrics: expected {name} among them, got {names}")
            reason = recipe.export_class()[1]
            if reason and recipe.checkpoint.format == "transformers" and not checks.problems:
                checks.fail(f"checkpoint.format: expected 'regard' for this model, got 'transformers'; {reason}")
        return recipe

    @property
    def files(self) -> dict[str, list[Path]]:
        """The data files by key; their contents must not change while a run is resumed."""
        return {"data.train": self.data.paths(self.data.train), "data.valid": self.data.paths(self.data.valid)}

    def check_files(self) -> None:
        """Check that the data files exist, and that the first row or line of each can be read.

        Raises:
            InvalidFile: With every file that is missing, damaged or without a column.
            MissingExtra: If there is a Parquet file and pyarrow is not installed.
        """
        missing = [(key, path) for key, paths in self.files.items() for path in paths if not exists(path)]
        hint = f"or data.folder, which is {self.data.folder.absolute()}"
        raise_problems([f"{key}: no such file: {path}; change {key} {hint}" for key, path in missing], InvalidFile)
        problems: list[str] = []
        for key, path in [(key, path) for key, paths in self.files.items() for path in paths]:
            try:
                check_first_row(path, {f"data.{name}": column for name, column in self.data.columns.items()})
            except InvalidFile as error:
                problems.append(f"{key}: {error}")
        raise_problems(problems, InvalidFile)

    @property
    def has_validation(self) -> bool:
        """Whether there is validation data."""
        return self.data.valid is not None

    @property
    def is_streamed(self) -> bool:
        """Whether the training files are tokenized while the model trains."""
        return isinstance(self.data, StreamedDataConfig) and self.data.streaming

    @property
    def loss_weights(self) -> dict[str, float]:
        """Weights of the losses that are added to the task's."""
        return {}

    @property
    def monitor(self) -> tuple[str, Literal["min", "max"]]:
        """The metric that selects the best weights, and whether lower or higher is better."""
        name = self.validation.monitor
        return name, next(metric.best for metric in self.metrics if metric.name == name)

    @property
    def placeholder_config(self) -> Any:
        """The config of the model, with sizes that stand for those that follow from the data."""
        return self.model.build_config(2**16)

    def export_class(self) -> tuple[str | None, str]:
        """The class of transformers that can load the model after `regard export`, or None and the reason."""
        try:
            return transformers_class(self.placeholder_config), ""
        except InvalidArgument as error:
            return None, " ".join(line.strip() for line in str(error).splitlines())

    def describe_export(self) -> str:
        """Whether transformers can load the model after `regard export`, for the log."""
        name, reason = self.export_class()
        if name is None:
            return f"export: transformers does not have this model; {reason}"
        if self.checkpoint.format == "transformers":
            return f"export: transformers can load the models of this run as {name}"
        return f"export: transformers can load this model as {name}, after `regard export {self.output_dir}`"

    @abstractmethod
    def build_task(self) -> Task:
        """Build the task's tokenizer, data, model and losses from the recipe."""

    def check(self, checks: Checks) -> None:
        """Check whether keys fit together; each of them is valid alone."""
        if self.tokenizer.type == "char" and self.task != "causal_lm":
            checks.fail(f"tokenizer.type: expected 'bpe' for the task {self.task}, got 'char'")
        if get_key(self.model, "checkpoint") is not None:
            for name, value in self.tokenizer.model_dump(exclude_defaults=True).items():
                expected = "expected none with model.checkpoint, which has its own tokenizer"
                checks.fail(f"tokenizer.{name}: {expected}, got {short_repr(value)}; leave one out")

    def check_layers(self, checks: Checks) -> None:
        """Check whether the trainer can divide, compile and recompute the layers of the model."""
        config, trainer, size = self.placeholder_config, self.trainer, self.trainer.tensor_parallel
        if not isinstance(config, TransformerLayerConfig):
            expected = f"for model.architecture {short_repr(self.model.architecture)}, which has no Transformer layers"
            for key, default in (("tensor_parallel", 1), ("activation_checkpointing", False), ("compile", False)):
                value = getattr(trainer, key)
                checks.that(value == default, f"trainer.{key}: expected {default} {expected}, got {value}")
            return
        if size == 1:
            return
        if trainer.strategy == "ddp":
            checks.fail(f"trainer.strategy: expected 'auto' or 'fsdp' with trainer.tensor_parallel={size}, got 'ddp'")
        for name in ("num_heads", "num_kv_heads", "d_ff"):
            value = getattr(config, name)
            expected = f"expected a divisor of model.{name}={value}"
            checks.that(value is None or value % size == 0, f"trainer.tensor_parallel: {expected}, got {size}")
        positions: Any = position_classes()[config.positions]
        if issubclass(positions, AttentionPositions) and positions.head_axes is None:
            expected = f"expected 1 with {config.positions} positions, whose class has no head_axes"
            checks.fail(f"trainer.tensor_parallel: {expected}, got {size}")
        if self.loss_weights:
            expected = f"expected 1 with {', '.join(self.loss_weights)}, for which one process needs all heads"
            checks.fail(f"trainer.tensor_parallel: {expected}, got {size}")


def recipe_class(task: object) -> type[Recipe]:
    """The recipe class of a task.

    Raises:
        InvalidRecipe: If there is no such task.
    """
    if not isinstance(task, str) or task not in TASKS:
        known = ", ".join(TASKS)
        raise InvalidRecipe(f"task: expected one of {known}, got {short_repr(task)}{did_you_mean(task, TASKS)}")
    return getattr(importlib.import_module(f"regard.training.tasks.{task}"), TASKS[task])
