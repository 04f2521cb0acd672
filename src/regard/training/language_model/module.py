"""The language model as lightning trains it: its loss, and what is measured on the validation text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from regard.data.blocks import BlockBatch
from regard.metrics.classification import perplexity
from regard.models import GPT
from regard.nn.linear_cross_entropy import TokenLoss
from regard.training.language_model.data import LanguageModelData
from regard.training.language_model.recipe import LanguageModelRecipe
from regard.training.module import TaskModule


class LanguageModelModule(TaskModule):
    """A GPT with its loss.

    Args:
        recipe: The recipe.
    """

    recipe: LanguageModelRecipe
    model: GPT

    @property
    def data(self) -> LanguageModelData:
        return super().data

    def build(self) -> GPT:
        tokenizer = self.data.tokenizer
        ends = () if tokenizer.eos_id is None else (tokenizer.eos_id,)
        specials = {"pad_id": tokenizer.pad_id, "bos_id": tokenizer.bos_id, "eos_ids": ends}
        return GPT(self.recipe.config(tokenizer.vocab_size, sample_by=self.recipe.data.sample_by, **specials))

    def _loss(self, batch: BlockBatch, label_smoothing: float) -> TokenLoss:
        hidden, _ = self.model.forward_features(batch.input_ids)
        return self.model.lm_head.loss(hidden, batch.labels, label_smoothing=label_smoothing)

    def losses(self, batch: BlockBatch) -> dict[str, Any]:
        """Give the loss of telling each next word."""
        found = self._loss(batch, self.recipe.loss.label_smoothing)
        return {"loss": found.loss, "parts": [found.loss.detach()]}

    def sums(self, batch: BlockBatch) -> tuple[Tensor, Tensor]:
        """The negative log-likelihood and the number of words."""
        found = self._loss(batch, 0.0)
        return found.nll, found.num_tokens

    def measured(self, sums: Sequence[float]) -> dict[str, float]:
        """``valid_loss`` in nats a word, ``perplexity``, and ``bits_per_character``."""
        nll, words = sums
        assert self.data.valid is not None
        bits = nll / math.log(2) / max(self.data.valid.num_characters, 1)
        return {"valid_loss": nll / words, "perplexity": perplexity(nll / words), "bits_per_character": bits}
