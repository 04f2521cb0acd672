"""Masked language modeling: texts and a BERT that predicts masked tokens."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from torch import Tensor

from regard.checks import Checks
from regard.data.batching import ResumableLoader
from regard.data.masking import masked_lm_loader
from regard.data.texts import TextBatch, TextDataset, tokenize_texts
from regard.errors import InvalidFile
from regard.metrics.classification import perplexity
from regard.models import Bert
from regard.text.readers import read_lines
from regard.training.recipe import VALID_LOSS, Metric
from regard.training.recipe_sections import Count, ValidationConfig
from regard.training.tasks.base import Split
from regard.training.tasks.bert import BertDataConfig, BertRecipe, BertTask


class MaskedDataConfig(BertDataConfig):
    """The texts, one per line."""

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
        return itertools.chain.from_iterable(map(read_lines, self.train_files))

    def tokenize(self, files: Sequence[Path], split: Split, cache: Path) -> TextDataset:
        options = {"max_length": self.recipe.data.max_length, "hashes": self.hashes}
        return tokenize_texts(files, self.tokenizer, cache, **options)

    def loader(self, dataset: TextDataset, **options: Any) -> ResumableLoader:
        if self.tokenizer.mask_id is None:
            raise InvalidFile(f"{self.recipe.model.checkpoint}: expected a tokenizer with a mask token, got none")
        return masked_lm_loader(
            dataset,
            self.recipe.data.max_tokens_per_batch,
            pad_id=self.tokenizer.pad_id,
            mask_id=self.tokenizer.mask_id,
            vocab_size=self.tokenizer.vocab_size,
            mlm_probability=self.recipe.data.mlm_probability,
            **options,
        )

    def build_model(self) -> Bert:
        return self.build_bert()

    def losses(self, model: Bert, batch: TextBatch) -> dict[str, Tensor]:
        smoothing = self.recipe.loss.label_smoothing
        loss = model.masked_lm_loss(batch.input_ids, batch.lengths, batch.labels, label_smoothing=smoothing)
        return {"loss": loss.loss}

    def validation_sums(self, model: Bert, batch: TextBatch) -> Sequence[Tensor]:
        loss = model.masked_lm_loss(batch.input_ids, batch.lengths, batch.labels, count_correct=True)
        assert loss.num_correct is not None
        return loss.nll, loss.num_tokens, loss.num_correct

    def compute_metrics(self, model: Bert, sums: Sequence[float]) -> dict[str, float]:
        nll, num_tokens, num_correct = sums
        loss = nll / num_tokens
        return {"valid_loss": loss, "perplexity": perplexity(loss), "accuracy": 100 * num_correct / num_tokens}
