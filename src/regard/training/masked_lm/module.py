"""The masked language model as lightning trains it: its loss, and what is measured on the validation set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from regard.data.masking import IGNORE_INDEX, MaskedBatch
from regard.metrics.classification import perplexity
from regard.models import Bert
from regard.models.bert import MaskedLMHead
from regard.training.masked_lm.data import MaskedLMData
from regard.training.masked_lm.recipe import MaskedLMRecipe
from regard.training.module import TaskModule


class MaskedLMModule(TaskModule):
    """A Bert that tells hidden words, with its loss.

    Args:
        recipe: The recipe.
    """

    recipe: MaskedLMRecipe
    model: Bert

    @property
    def data(self) -> MaskedLMData:
        return super().data

    def build(self) -> Bert:
        return self.recipe.build(self.data.tokenizer, "masked_lm")

    @property
    def _head(self) -> MaskedLMHead:
        assert self.model.mlm_head is not None
        return self.model.mlm_head

    def _masked(self, batch: MaskedBatch) -> tuple[Tensor, Tensor]:
        """The hidden states of masked tokens, (masked, d_model), and their labels."""
        hidden, _ = self.model.forward_features(batch.input_ids, batch.lengths)
        is_masked = batch.labels != IGNORE_INDEX
        return hidden[is_masked], batch.labels[is_masked]

    def losses(self, batch: MaskedBatch) -> dict[str, Any]:
        """The loss of predicting masked tokens."""
        hidden, labels = self._masked(batch)
        loss = self._head.loss(hidden, labels, label_smoothing=self.recipe.loss.label_smoothing).loss
        return {"loss": loss, "parts": [loss.detach()]}

    def sums(self, batch: MaskedBatch) -> tuple[Tensor, Tensor, Tensor]:
        """The negative log-likelihood, the number of masked tokens, and how many are predicted correctly."""
        hidden, labels = self._masked(batch)
        transformed, decoder = self._head.transform(hidden), self._head.decoder
        loss = decoder.loss(transformed, labels)
        return loss.nll, loss.num_tokens, (decoder(transformed).argmax(-1) == labels).sum()

    def measured(self, sums: Sequence[float]) -> dict[str, float]:
        """``valid_loss`` in nats a hidden word, ``perplexity``, and ``accuracy`` in percent."""
        nll, words, right = sums
        loss = nll / words
        return {"valid_loss": loss, "perplexity": perplexity(loss), "accuracy": 100 * right / words}
