"""Causal language modeling: running text and a decoder-only Transformer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Tag
from torch import Tensor

from regard.checks import Checks
from regard.data.batching import ResumableLoader
from regard.data.blocks import BlockBatch, TokenStream, block_loader, read_text, stream_blocks, tokenize_stream
from regard.data.streaming import FilePart, StreamLoader
from regard.metrics.classification import perplexity
from regard.models import GPT, GPTConfig
from regard.text.tokenizer import Tokenizer, train_bpe, train_char
from regard.training.recipe import VALID_LOSS, Metric, Recipe
from regard.training.recipe_sections import (
    Column,
    Count,
    Fraction,
    ModelSection,
    StreamedDataConfig,
    ValidationConfig,
    architecture_or,
)
from regard.training.tasks.base import Split, Task
from regard.validation import config_class

DERIVED_FIELDS = ("vocab_size", "pad_id", "bos_id", "eos_ids", "sample_by")
LLAMA_DEFAULTS = dataclasses.asdict(GPTConfig.llama(9))


@config_class
class GPTSection(ModelSection, GPTConfig, derived=DERIVED_FIELDS):
    """A GPT."""

    architecture: Literal["gpt"] = "gpt"


@config_class
class LlamaSection(ModelSection, GPTConfig, derived=DERIVED_FIELDS, defaults=LLAMA_DEFAULTS):
    """A GPT with Llama's defaults."""

    architecture: Literal["llama"] = "llama"


class TextDataConfig(StreamedDataConfig):
    """The text."""

    valid_fraction: Fraction = 0.0
    """Without ``valid``: fraction of each training file's characters, at its end, that are held out for validation."""
    text_column: Column = "text"
    """Column of the texts in Parquet and JSON Lines; ``translation.en`` is ``en`` in the column ``translation``."""
    sample_by: Literal["document", "line"] = "document"
    """Whether a file or a line is one document, which the end-of-text token closes; rows of Parquet and JSON Lines
    always are."""
    block_size: Count = 256
    """Tokens of a row."""
    batch_size: Count = 32
    """Rows of a batch."""


class CausalLMValidationConfig(ValidationConfig):
    """Validation during training."""

    monitor: Literal["valid_loss", "perplexity", "bits_per_character"] = "valid_loss"
    """Metric that selects the best weights."""


class CausalLMRecipe(Recipe):
    """The recipe of a causal language model: a GPT, with ``architecture: llama`` with Llama's defaults."""

    metrics = (VALID_LOSS, Metric("perplexity", "min"), Metric("bits_per_character", "min"))

    task: Literal["causal_lm"]
    data: TextDataConfig
    model: Annotated[
        Annotated[GPTSection, Tag("gpt")] | Annotated[LlamaSection, Tag("llama")], architecture_or("gpt")
    ] = GPTSection.from_dict({})
    validation: CausalLMValidationConfig = CausalLMValidationConfig()

    @property
    def has_validation(self) -> bool:
        return super().has_validation or self.data.valid_fraction > 0

    def build_task(self) -> CausalLMTask:
        return CausalLMTask(self)

    def check(self, checks: Checks) -> None:
        block_size, limit = self.data.block_size, self.model.max_seq_len
        if block_size > limit:
            checks.fail(f"data.block_size: expected at most model.max_seq_len={limit}, got {block_size}")
        if self.data.valid is not None and self.data.valid_fraction:
            checks.fail(f"data.valid_fraction: expected 0 with data.valid, got {self.data.valid_fraction}")
        if self.is_streamed and self.data.valid_fraction:
            expected = "expected 0 with data.streaming; pass the files to hold out as data.valid"
            checks.fail(f"data.valid_fraction: {expected}, got {self.data.valid_fraction}")


class CausalLMTask(Task):
    """Trains a causal language model."""

    recipe: CausalLMRecipe
    train_data: TokenStream
    valid_data: TokenStream | None

    def train_tokenizer(self) -> Tokenizer:
        sample_by = self.recipe.data.sample_by
        if self.recipe.tokenizer.type == "char":  # of all text, so that validation has no unknown characters
            parts = read_text([*self.train_files, *self.valid_files], **self.reading)
            return train_char(chain.from_iterable(parts), sample_by=sample_by)
        parts = read_text(self.train_files, (0.0, 1 - self.recipe.data.valid_fraction), **self.reading)
        texts = self.tokenizer_texts(chain.from_iterable(parts))
        return train_bpe(texts, self.recipe.tokenizer.vocab_size, sample_by=sample_by)

    @property
    def reading(self) -> dict[str, Any]:
        """How the files are read."""
        return {"sample_by": self.recipe.data.sample_by, **self.recipe.data.columns}

    def tokenize(self, files: Sequence[Path], split: Split, cache: Path) -> TokenStream:
        end = 1 - self.recipe.data.valid_fraction
        part = (end, 1.0) if split == "valid" and not self.valid_files else (0.0, end)
        options = {"fraction_range": part, "hashes": self.hashes, **self.reading}
        return tokenize_stream(files, self.tokenizer, cache, **options)

    def describe(self, dataset: TokenStream) -> str:
        return f"{len(dataset)} tokens, {dataset.num_characters} characters"

    def loader(self, dataset: TokenStream, **options: Any) -> ResumableLoader:
        data = self.recipe.data
        return block_loader(dataset, data.block_size, data.batch_size, **options)

    def stream(self, parts: Sequence[FilePart], **options: Any) -> StreamLoader:
        data = self.recipe.data
        sizes = {"block_size": data.block_size, "batch_size": data.batch_size, "buffer_size": data.buffer_size}
        return stream_blocks(parts, self.tokenizer, **sizes, **self.reading, **options)

    def build_model(self) -> GPT:
        model: ModelSection = self.recipe.model
        eos_ids = () if self.tokenizer.eos_id is None else (self.tokenizer.eos_id,)
        special_ids = {"pad_id": self.tokenizer.pad_id, "bos_id": self.tokenizer.bos_id, "eos_ids": eos_ids}
        sample_by = self.recipe.data.sample_by
        return GPT(model.build_config(self.tokenizer.vocab_size, sample_by=sample_by, **special_ids))

    def losses(self, model: GPT, batch: BlockBatch) -> dict[str, Tensor]:
        return {
            "loss": model.loss(batch.input_ids, batch.labels, label_smoothing=self.recipe.loss.label_smoothing).loss
        }

    def validation_sums(self, model: GPT, batch: BlockBatch) -> Sequence[Tensor]:
        loss = model.loss(batch.input_ids, batch.labels)
        return loss.nll, loss.num_tokens

    def compute_metrics(self, model: GPT, sums: Sequence[float]) -> dict[str, float]:
        assert self.valid_data is not None
        nll, num_tokens = sums
        loss, bits = nll / num_tokens, nll / math.log(2) / max(self.valid_data.num_characters, 1)
        return {"valid_loss": loss, "perplexity": perplexity(loss), "bits_per_character": bits}
