"""Masked language modeling: texts and a BERT that predicts masked tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from torch import Tensor

from regard.checks import Checks
from regard.data.batching import ResumableLoader
from regard.data.masking import masked_lm_loader, stream_masked
from regard.data.streaming import FilePart, StreamLoader
from regard.data.texts import TextBatch, TextDataset, tokenize_texts
from regard.errors import InvalidFile
from regard.metrics.classification import perplexity
from regard.models import Bert
from regard.text.tables import read_texts
from regard.training.recipe import VALID_LOSS, Metric
from regard.training.recipe_sections import Column, Count, StreamedDataConfig, ValidationConfig
from regard.training.tasks.base import Split
from regard.training.tasks.bert import BertDataConfig, BertRecipe, BertTask


class MaskedDataConfig(StreamedDataConfig, BertDataConfig):
    """The texts, one per line or row."""

    text_column: Column = "text"
    """Column of the texts in Parquet and JSON Lines; ``translation.en`` is ``en`` in the column ``translation``."""
    max_tokens_per_batch: Count = 8000
    """Maximum size of a batch in tokens, with padding."""
    mlm_probability: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Fraction of the tokens to predict; of these, 80 % become the mask token and 10 % a random token."""


class MaskedLMValidationConfig(ValidationConfig):
    """Validation during training."""

    monitor: Literal["valid_loss", "perplexity", "accuracy"] = "valid_loss"
    """Metric that selects the best weights."""


class MaskedLMRecipe(BertRecipe):
    """The recipe of a masked language model."""

    head = "masked_lm"
    target_unit = "masked tokens"
    metrics = (VALID_LOSS, Metric("perplexity", "min"), Metric("accuracy", "max", "%"))

    task: Literal["masked_lm"]
    data: MaskedDataConfig
    validation: MaskedLMValidationConfig = MaskedLMValidationConfig()

    def build_task(self) -> MaskedLMTask:
        return MaskedLMTask(self)

    def check(self, checks: Checks) -> None:
        super().check(checks)
        length, limit = self.data.max_length, self.data.max_tokens_per_batch
        expected = f"expected at most data.max_tokens_per_batch={limit}"
        checks.that(length <= limit, f"data.max_length: {expected}, got {length}")


class MaskedLMTask(BertTask):
    """Trains a masked language model."""

    recipe: MaskedLMRecipe

    def training_texts(self) -> Iterable[str]:
        return (text for path in self.train_files for text in read_texts(path, self.recipe.data.text_column))

    def tokenize(self, files: Sequence[Path], split: Split, cache: Path) -> TextDataset:
        options = {"max_length": self.recipe.data.max_length, "hashes": self.hashes, **self.recipe.data.columns}
        return tokenize_texts(files, self.tokenizer, cache, **options)

    def loader(self, dataset: TextDataset, **options: Any) -> ResumableLoader:
        return masked_lm_loader(
            dataset,
            self.recipe.data.max_tokens_per_batch,
            pad_id=self.tokenizer.pad_id,
            mask_id=self._mask_id,
            vocab_size=self.tokenizer.vocab_size,
            mlm_probability=self.recipe.data.mlm_probability,
            **options,
        )

    def stream(self, parts: Sequence[FilePart], **options: Any) -> StreamLoader:
        data = self.recipe.data
        return stream_masked(
            parts,
            self.tokenizer,
            data.max_tokens_per_batch,
            mask_id=self._mask_id,
            max_length=data.max_length,
            buffer_size=data.buffer_size,
            mlm_probability=data.mlm_probability,
            text_column=data.text_column,
            **options,
        )

    @property
    def _mask_id(self) -> int:
        if self.tokenizer.mask_id is None:
            raise InvalidFile(f"{self.recipe.model.checkpoint}: expected a tokenizer with a mask token, got none")
        return self.tokenizer.mask_id

    def build_model(self) -> Bert:
        return self.build_bert()

    def validation_sums(self, model: Bert, batch: TextBatch) -> Sequence[Tensor | int]:
        nll, predicted, labels = self.predict(model, batch)
        return nll, len(labels), (predicted == labels).sum()

    def compute_metrics(self, model: Bert, sums: Sequence[float]) -> dict[str, float]:
        nll, num_tokens, num_correct = sums
        loss = nll / num_tokens
        return {"valid_loss": loss, "perplexity": perplexity(loss), "accuracy": 100 * num_correct / num_tokens}
