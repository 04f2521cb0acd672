"""The sections of a recipe: every key, what it means, and its default, which is stated here and only here."""

from __future__ import annotations

import dataclasses
import datetime
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, field_validator

from regard.models import TransformerConfig


class Section(BaseModel):
    """A part of a recipe: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_values(cls, value: object) -> object:
        """No key is one, but True would pass for 1."""
        if isinstance(value, bool):
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


def _files(value: object) -> object:
    files = [value] if isinstance(value, (str, Path)) else value
    if not isinstance(files, (list, tuple)) or not 1 <= len(files) <= 2:
        raise ValueError("one TSV or a list of two line-aligned files")
    return files


def _numbers(value: object) -> object:
    return [value] if isinstance(value, int) else value


Folder = Annotated[Path, BeforeValidator(_path)]
Files = Annotated[tuple[Folder, ...], BeforeValidator(_files)]
Count = Annotated[int, Field(ge=1)]
Numbers = Annotated[tuple[int, ...], BeforeValidator(_numbers)]
Share = Annotated[float, Field(ge=0, lt=1)]


class Data(Section):
    """Which pairs, and how many at a time."""

    folder: Folder = Path()
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
    betas: Annotated[tuple[Share, Share], BeforeValidator(_two)] = (0.9, 0.98)
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


class LayersLoss(Section):
    """A loss on attention: how much it counts, and which layers and heads it is the mean over."""

    weight: Annotated[float, Field(ge=0)] = 0.0
    """How much it counts beside the loss of the translation; 0: not at all."""
    of: Literal["encoder", "decoder", "cross"] = "cross"
    """Self-attention of the encoder or the decoder, or attention from target to source."""
    layers: Numbers | None = None
    """Their numbers, from 0; -1 is the last. Default: all."""
    heads: Numbers | None = None
    """Their numbers, from 0. Default: all."""


class EntropyLoss(LayersLoss):
    """Keeps the entropy of rows within bounds: :func:`regard.nn.entropy_loss`."""

    floor: float | None = None
    """In nats."""
    ceiling: float | None = None
    """In nats."""


class CoverageLoss(LayersLoss):
    """Makes each key receive about as much: :func:`regard.nn.coverage_loss`."""


class AlignmentLoss(LayersLoss):
    """Teaches heads of the cross-attention which words belong together: :func:`regard.nn.alignment_loss`."""

    of: Literal["cross"] = "cross"
    """Attention from target to source."""
    layers: Numbers | None = (-1,)
    """Their numbers, from 0; -1 is the last."""
    heads: Numbers | None = (0,)
    """Their numbers, from 0."""
    file: Folder | None = None
    """A line for each training pair, ``0-0 1-2``: numbers of source word and target word, as parted by white space, as
    word aligners write it; a relative path begins at data.folder."""


class DivergenceLoss(LayersLoss):
    """Makes attend as another model does: :func:`regard.nn.divergence_loss`."""

    layers: Numbers | None = (-1,)
    """Their numbers, from 0; -1 is the last; the same in both models."""
    teacher: Folder | None = None
    """The folder of a trained model with the same vocabulary and as many heads."""


class Attention(Section):
    """Losses on attention, beside that of the translation."""

    entropy: EntropyLoss = EntropyLoss()
    """How spread rows are."""
    alignment: AlignmentLoss = AlignmentLoss()
    """Which words belong together."""
    coverage: CoverageLoss = CoverageLoss()
    """How evenly keys are attended to."""
    divergence: DivergenceLoss = DivergenceLoss()
    """What another model attends to."""

    @property
    def losses(self) -> dict[str, LayersLoss]:
        """Those that count, by name."""
        return {name: keys for name, keys in self if keys.weight}


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
