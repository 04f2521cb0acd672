"""The sections of a recipe: every key, what it means, and its default, which is stated here and only here."""

from __future__ import annotations

import dataclasses
import datetime
import typing
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, create_model, field_validator


class Section(BaseModel):
    """A part of a recipe: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_values(cls, value: object, info: ValidationInfo) -> object:
        """True would pass for 1."""
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError("a number or a text (YAML reads yes, no, on and off as true and false: quote them)")
        return value


def _path(value: object) -> object:
    """A folder may be named by a number or a date."""
    if not isinstance(value, (str, Path, int, float, datetime.date)):
        raise ValueError("a path")
    return str(value)


def _two(value: object) -> object:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise ValueError("two numbers")
    return value


def several(value: object) -> object:
    """One path, or several."""
    return [value] if isinstance(value, (str, Path, int, float, datetime.date)) else value


def _numbers(value: object) -> object:
    return [value] if isinstance(value, int) else value


Folder = Annotated[Path, BeforeValidator(_path)]
Files = Annotated[tuple[Folder, ...], BeforeValidator(several), Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]
Numbers = Annotated[tuple[int, ...], BeforeValidator(_numbers)]
Share = Annotated[float, Field(ge=0, lt=1)]
Schedule = Literal["inverse_sqrt", "cosine", "linear", "constant"]


class Data(Section):
    """Which files."""

    folder: Folder = Path()
    """Where relative paths of files begin."""
    train: Files
    """What is learned from, plain or .gz."""
    valid: Files | None = None
    """The same for validation; none: nothing is validated, and ``best`` is not written."""

    def paths(self, files: Sequence[Path] | None) -> list[Path]:
        """Where files lie."""
        return [self.folder / path for path in files or ()]


class Optimizer(Section):
    """AdamW and its learning rate."""

    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """The peak, reached at the end of the warm-up."""
    warmup_steps: Annotated[int, Field(ge=0)] = 4000
    """Steps of linear rise."""
    lr_schedule: Schedule = "inverse_sqrt"
    """How it falls from there: with 1/√step; as half a cosine or linearly, until max_steps; or not: constant."""
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    """What share of the peak is left at max_steps, for cosine and linear."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """What share of its value each entry of a matrix loses a step, times the learning rate; vectors lose nothing."""
    betas: Annotated[tuple[Share, Share], BeforeValidator(_two)] = (0.9, 0.98)
    """Decay of Adam's two means."""
    eps: Annotated[float, Field(gt=0)] = 1e-9
    """Adam's ε."""
    max_grad_norm: Annotated[float, Field(ge=0)] = 1.0
    """The largest norm of the gradient; 0: not clipped."""


class Loss(Section):
    """The cross-entropy."""

    label_smoothing: Share = 0.1
    """Probability mass that is spread evenly over the vocabulary, or over the classes."""


class Trainer(Section):
    """How long, on what, in which precision."""

    max_steps: Count
    """Steps of the optimizer."""
    accumulate_grad_batches: Count = 1
    """Batches a step (on each process). The gradient is the mean over all their tokens, not over batches."""
    precision: Literal["32", "bf16-mixed"] = "32"
    """Of the products; weights are float32 in all."""
    accelerator: Literal["auto", "cpu", "gpu", "mps"] = "auto"
    """The kind of device."""
    devices: Count | Literal["auto"] = "auto"
    """How many; auto: all, one on a CPU, or as many processes as torchrun started."""
    num_nodes: Count = 1
    """Machines."""
    num_workers: Annotated[int, Field(ge=0)] = 0
    """Processes that prepare batches (for each training process); 0: the training process itself."""
    log_every_n_steps: Count = 50
    """Steps between rows in the logs."""


class Validation(Section):
    """What is measured while training, and when it is good enough."""

    every_n_steps: Count = 1000
    """Steps between validations."""
    monitor: str = "loss"
    """What decides which weights are best."""
    patience: Count | None = None
    """Validations without a better value before training stops; default: it goes on."""


class Checkpoint(Section):
    """What is saved, and when."""

    every_n_steps: Count = 500
    """Steps between saves of the training state."""
    every_n_minutes: Annotated[float, Field(gt=0)] = 10
    """The state is saved at least so often, also."""
    average_last: Annotated[int, Field(ge=0)] = 0
    """How many snapshots of the weights, the last ones, are averaged; 0: none."""
    snapshot_every_n_steps: Count = 500
    """Steps between snapshots."""


def model_section(
    name: str,
    architecture: str,
    config: type[Any],
    decided: Collection[str],
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> type[Any]:
    """The keys of an architecture's config, with its defaults or others, less those that something else decides."""
    hints = typing.get_type_hints(config)
    keys: dict[str, Any] = {
        field.name: (hints[field.name], defaults.get(field.name, field.default))
        for field in dataclasses.fields(config)
        if field.name not in decided
    }
    keys["architecture"] = (Literal[architecture], architecture)  # pyright: ignore[reportInvalidTypeForm] - one word
    return create_model(name, __base__=Section, __doc__="The architecture.", **keys)
