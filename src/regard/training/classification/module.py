"""The classifier as lightning trains it: its loss, and what is measured on the validation set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from regard.data.texts import TextBatch
from regard.metrics.classification import classification_metrics
from regard.models import Bert
from regard.training.classification.data import ClassificationData
from regard.training.classification.recipe import ClassificationRecipe
from regard.training.module import TaskModule


class ClassificationModule(TaskModule):
    """A Bert that tells classes, with its loss.

    Args:
        recipe: The recipe.
    """

    recipe: ClassificationRecipe
    model: Bert

    @property
    def data(self) -> ClassificationData:
        return super().data

    def build(self) -> Bert:
        return self.recipe.build(self.data.tokenizer, "sequence_classification", self.data.labels)

    def _logits(self, batch: TextBatch) -> Tensor:
        logits = self.model(batch.input_ids, batch.lengths).logits
        assert logits is not None
        return logits.float()

    def losses(self, batch: TextBatch) -> dict[str, Any]:
        """Give the loss of telling the classes."""
        smoothing = self.recipe.loss.label_smoothing
        loss = functional.cross_entropy(self._logits(batch), batch.labels, label_smoothing=smoothing)
        return {"loss": loss, "parts": [loss.detach()]}

    def sums(self, batch: TextBatch) -> list[float]:
        """The negative log-likelihood, and how many texts of each class (rows) were taken for which (columns)."""
        logits, count = self._logits(batch), len(self.data.labels)
        loss = functional.cross_entropy(logits, batch.labels, reduction="sum")
        pairs = torch.bincount(batch.labels * count + logits.argmax(-1), minlength=count * count)
        return [float(loss), *pairs.tolist()]

    def measured(self, sums: Sequence[float]) -> dict[str, float]:
        """``valid_loss`` in nats a text, ``accuracy`` and ``f1`` in percent."""
        nll, *pairs = sums
        count = len(self.data.labels)
        scores = classification_metrics(torch.tensor(pairs).view(count, count))
        return {"valid_loss": nll / sum(pairs), **scores}
