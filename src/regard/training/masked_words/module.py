"""The masked language model as lightning trains it: its loss, and what is measured on the validation set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from regard.models import Bert
from regard.nn.cross_entropy import TokenLoss, linear_cross_entropy
from regard.text.masking import IGNORED
from regard.text.scores import perplexity
from regard.text.sentences import MaskedTexts
from regard.training.masked_words.data import MaskedWordsData
from regard.training.masked_words.recipe import MaskedWordsRecipe
from regard.training.module import TrainedModule


class MaskedWordsModule(TrainedModule):
    """A Bert that tells hidden words, with its loss.

    Args:
        recipe: The recipe.
    """

    recipe: MaskedWordsRecipe
    model: Bert

    @property
    def data(self) -> MaskedWordsData:
        return super().data

    def build(self) -> Bert:
        return self.recipe.build(self.data.tokenizer, "masked_words")

    def _told(self, batch: MaskedTexts) -> tuple[Tensor, Tensor]:
        """What the final map is given at the places to be told, (places, d_model), and the words there."""
        head = self.model.words
        assert head is not None
        hidden, _ = self.model.states(batch.words, batch.lengths)
        told = batch.labels != IGNORED
        return head.before_words(hidden[told]), batch.labels[told]

    def _loss(self, told: Tensor, labels: Tensor, label_smoothing: float) -> TokenLoss:
        head = self.model.words
        assert head is not None
        to_words = head.to_words
        return linear_cross_entropy(
            told, to_words.weight, labels, bias=to_words.bias, label_smoothing=label_smoothing, ignore_index=IGNORED
        )

    def training_step(self, batch: MaskedTexts, batch_idx: int) -> dict[str, Any]:
        """Give the loss of telling the hidden words."""
        found = self._loss(*self._told(batch), self.recipe.optimizer.label_smoothing)
        return {"loss": found.loss, "parts": [found.loss.detach()]}

    def sums(self, batch: MaskedTexts) -> tuple[Tensor, Tensor, Tensor]:
        """The negative log-likelihood, the number of words, and how many of them are told rightly."""
        told, labels = self._told(batch)
        head = self.model.words
        assert head is not None
        found = self._loss(told, labels, 0.0)
        return found.nll, found.tokens, (head.to_words(told).argmax(-1) == labels).sum()

    def measured(self, sums: Sequence[float]) -> dict[str, float]:
        """``valid_loss`` in nats a hidden word, ``perplexity``, and ``accuracy`` in percent."""
        nll, words, right = sums
        loss = nll / words
        return {"valid_loss": loss, "perplexity": perplexity(loss), "accuracy": 100 * right / words}
