"""The sections of a recipe: pydantic models, with every default."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, get_type_hints

import pydantic
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StrictBool,
    ValidationInfo,
)

from regard.models import load_config
from regard.models.checkpoint import resolve_folder
from regard.training.recipe_errors import contains_type
from regard.validation import Config, fields_of, inconsistent


class Section(BaseModel):
    """A section of a recipe. Unknown keys are errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, coerce_numbers_to_str=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

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


def _precision(value: object) -> object:
    """YAML reads 32 as a number."""
    return "32" if type(value) is int and value == 32 else value


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
Column = Annotated[str, Field(min_length=1)]
DataPaths = Annotated[tuple[DataPath, ...], sequence_of("a path or a list of paths")]
Count = Annotated[int, Field(ge=1, lt=2**31)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class DataConfig(Section):
    """The data files."""

    folder: Folder = Path()
    """Folder that relative paths of data files start from."""
    train: DataPaths
    """Training files: text, plain or .gz, or .parquet, .jsonl or .json."""
    valid: DataPaths | None = None
    """Validation files; without them there is no validation and no ``best`` model."""

    @property
    def columns(self) -> dict[str, str]:
        """The names of the columns of Parquet and JSON Lines files, by key."""
        return {key: getattr(self, key) for key in type(self).model_fields if key.endswith("_column")}

    def paths(self, files: Sequence[Path] | None) -> list[Path]:
        """The paths of files in the data folder."""
        return [self.folder / path for path in files or ()]


class StreamedDataConfig(DataConfig):
    """Data files that can be larger than the disk that holds the run."""

    streaming: StrictBool = False
    """Whether training files are read and tokenized while the model trains; else once, into ``data/`` of the run."""
    buffer_size: Count = 4_000_000
    """With ``streaming``: characters that each process, or worker, tokenizes and shuffles together."""


class TokenizerConfig(Section):
    """The tokenizer, trained on the training files; a pretrained model has its own."""

    type: Literal["bpe", "char"] = "bpe"
    """Byte-level BPE, or one token for each character of all files (``causal_lm`` only)."""
    vocab_size: Annotated[int, Field(ge=260)] = 8000
    """Size of the BPE vocabulary, up to 4 special tokens and 256 bytes included."""
    max_characters: Annotated[int, Field(ge=1)] | None = None
    """Train the BPE on as many characters at the beginning of the training files. Default: on all."""


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
    precision: Annotated[Literal["32", "bf16-mixed", "bf16-true"], BeforeValidator(_precision)] = "32"
    """``32``; ``bf16-mixed``, matrix products in bfloat16 and weights in float32; or ``bf16-true``, weights and Adam's
    moments in bfloat16, too: half the memory, but updates below 0.4 % of a weight are lost."""
    accelerator: Literal["auto", "cpu", "gpu", "mps"] = "auto"
    """Kind of device."""
    devices: Annotated[Count | Literal["auto"], pydantic.WrapValidator(_count_or_auto)] = "auto"
    """Number of devices; auto: all GPUs, one CPU, or the processes that torchrun or Slurm started."""
    num_nodes: Annotated[Count | Literal["auto"], pydantic.WrapValidator(_count_or_auto)] = "auto"
    """Number of machines; auto: those of torchrun or Slurm, else one."""
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    """What each of several processes stores: the whole model (``ddp``); or a part of the weights, gradients and Adam's
    moments, of which a layer's weights are gathered when it is computed (``fsdp``, which is FSDP2). auto: ``ddp``, or
    ``fsdp`` where tensor_parallel is above 1 and below the number of processes."""
    tensor_parallel: Count = 1
    """Number of processes that compute one model together, each some heads and hidden features of every layer; a
    divisor of the number of processes, of num_heads, num_kv_heads and d_ff. They read the same batches."""
    activation_checkpointing: bool = False
    """Store only the inputs of each layer, and compute the layer again for its gradients: less memory, more time."""
    compile: bool = False
    """Compile feed-forward networks and residual connections with ``torch.compile``: it takes seconds at the start and
    needs a C++ compiler, and Triton on GPUs. On CPUs it gains nothing."""
    num_workers: Annotated[int, Field(ge=0)] = 0
    """Processes that prepare the batches of each training process; 0: the training process does."""
    log_every_n_steps: Count = 50
    """Steps between rows in ``metrics.csv``."""


class ValidationConfig(Section):
    """Validation during training."""

    every_n_steps: Count = 1000
    """Steps between validations; the last step is always validated."""
    monitor: str = "valid_loss"
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
    format: Literal["regard", "transformers"] = "regard"
    """Format of the models; a model that transformers does not have is refused at the start."""


class ModelSection(Config):
    """A model's config as a section of a recipe, for ``class GPTSection(ModelSection, GPTConfig, derived=...)``.

    Args:
        derived: Fields that follow from the data: they are no keys, and the section has placeholders for them.
        defaults: Other defaults than those of the config.
    """

    config_type: ClassVar[type[Any]]
    architecture: str

    def __init_subclass__(cls, *, derived: Sequence[str], defaults: Mapping[str, Any] = MappingProxyType({})) -> None:
        super().__init_subclass__()
        cls.config_type = cls.__bases__[-1]
        placeholders = {field.name: field.default for field in fields(cls.config_type)} | {"vocab_size": 2**16}
        hidden = {name: Field(placeholders[name], init=False, exclude=True) for name in derived}
        types = get_type_hints(cls.config_type, include_extras=True)
        for name, value in {**defaults, **hidden}.items():
            cls.__annotations__[name] = types[name]
            setattr(cls, name, value)

    def build_config(self, vocab_size: int, **derived: Any) -> Any:
        """The config for a vocabulary and other fields that follow from the data."""
        values = {field.name: getattr(self, field.name) for field in fields(self.config_type)}
        return self.config_type(**{**values, "vocab_size": vocab_size, **derived})


class PretrainedSection(Section):
    """A pretrained model, for ``class PretrainedBertSection(PretrainedSection)``; only its dropout can be changed."""

    new_section: ClassVar[type[ModelSection]]
    """The section of a new model, whose keys are refused."""
    checkpoint: Annotated[Folder, AfterValidator(resolve_folder)]
    """Folder of a model, whose weights and tokenizer the training starts from, or the name of one that a package has:
    ``tatoeba-en-de``, the bundled translator, or ``minilm``."""
    dropout: Fraction | None = None
    """Dropout rate. Default: the pretrained model's."""
    attention_dropout: Fraction | None = None
    """Dropout rate of attention weights. Default: the pretrained model's."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _refuse_architecture(cls, values: Any) -> Any:
        keys = [key for key in values if key in fields_of(cls.new_section) and key not in cls.model_fields]
        if keys:
            problems = [f"{key}: expected none with model.checkpoint, which decides it; leave one out" for key in keys]
            raise inconsistent(problems)
        return values

    @property
    def rates(self) -> dict[str, float]:
        """The dropout rates that are not the pretrained model's."""
        return self.model_dump(include={"dropout", "attention_dropout"}, exclude_none=True)

    def load_config(self, expected: type[Any]) -> Any:
        """The pretrained model's config, with these dropout rates."""
        return replace(load_config(self.checkpoint, expected=expected), **self.rates)


def get_key(model: Any, name: str, default: Any = None) -> Any:
    """The value of a key of a model's section, which can still be a mapping."""
    value = model.get(name) if isinstance(model, Mapping) else getattr(model, name, None)
    return default if value is None else value


def architecture_or(default: str) -> pydantic.Discriminator:
    """Selects a model section by its ``architecture``."""
    return pydantic.Discriminator(lambda model: str(get_key(model, "architecture", default)))
