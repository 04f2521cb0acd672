"""The translator as lightning trains it: its loss, its optimizer, and what is measured on the validation set."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.data.pairs import PairBatch, encoder_batch
from regard.generation.greedy import greedy
from regard.metrics.translation import corpus_scores
from regard.models import Attentions, EncoderDecoder
from regard.models.checkpoint import model_from_config
from regard.nn.linear_cross_entropy import TokenLoss
from regard.training.module import TaskModule
from regard.training.translation.attention import AttentionLosses
from regard.training.translation.data import TranslationData
from regard.training.translation.recipe import TranslationRecipe

log = logging.getLogger("regard.training")
_ROWS = 64  # sentences translated together in validation


class TranslationModule(TaskModule):
    """A translator with its loss.

    Args:
        recipe: The recipe.
    """

    recipe: TranslationRecipe
    model: EncoderDecoder

    def __init__(self, recipe: TranslationRecipe) -> None:
        super().__init__(recipe)
        self._signed = False

    @property
    def data(self) -> TranslationData:
        return super().data

    def build(self) -> EncoderDecoder:
        self._attention = AttentionLosses(self.recipe, self.data.tokenizer)
        return model_from_config(self.recipe.config(self.data.tokenizer.vocab_size))

    def _loss(self, batch: PairBatch, label_smoothing: float) -> tuple[TokenLoss, Attentions]:
        hidden, attentions = self.model.forward_features(batch.input_ids, batch.decoder_input_ids, batch.lengths)
        pad_id = self.model.config.pad_id
        loss = self.model.lm_head.loss(hidden, batch.labels, label_smoothing=label_smoothing, ignore_index=pad_id)
        return loss, attentions

    def losses(self, batch: PairBatch) -> dict[str, Any]:
        """Give the label-smoothed loss of a batch, with the losses on attention that the recipe asks for."""
        found, attentions = self._loss(batch, self.recipe.loss.label_smoothing)
        losses = self._attention(attentions, batch)
        loss = found.loss
        for name, keys in self.recipe.attention_loss.losses.items():
            loss = loss + keys.weight * losses[name]
        return {"loss": loss, "parts": [part.detach() for part in (found.loss, *losses.values())]}

    def sums(self, batch: PairBatch) -> tuple[Tensor, Tensor]:
        """The negative log-likelihood, without smoothing, and the number of tokens."""
        found, _ = self._loss(batch, label_smoothing=0.0)
        return found.nll, found.num_tokens

    def measured(self, sums: Sequence[float]) -> dict[str, float]:
        """``valid_loss`` (nats a token), ``bleu`` and ``chrf``."""
        nll, tokens = sums
        metrics = {"valid_loss": nll / tokens}
        if self.data.sentences:
            hypotheses = self._translations([source for source, _ in self.data.sentences])
            scores = corpus_scores(hypotheses, [references for _, references in self.data.sentences], ["bleu", "chrf"])
            metrics |= {name: found.score for name, found in scores.items()}
            if not self._signed:
                self._signed = True
                log.info("validation: %s", ", ".join(f"{name} is {each.signature}" for name, each in scores.items()))
        return metrics

    def _translations(self, sources: list[str]) -> list[str]:
        """Translate greedily; every process takes its share, and all get the whole."""
        ids = self.data.tokenizer.encode(sources)
        by_length = sorted(range(len(ids)), key=lambda place: len(ids[place]))
        chunks = [by_length[start : start + _ROWS] for start in range(0, len(by_length), _ROWS)]
        found: dict[int, list[int]] = {}
        for chunk in chunks[self.trainer.global_rank :: self.trainer.world_size]:
            src, src_lengths = encoder_batch([ids[place] for place in chunk])
            with self.trainer.precision_plugin.val_step_context():
                best = greedy(self.model, src.to(self.device), src_lengths.to(self.device))
            found |= {place: hypothesis.tokens for place, hypothesis in zip(chunk, best, strict=True)}
        if self.trainer.world_size > 1:
            shares: list[Any] = [None] * self.trainer.world_size
            torch.distributed.all_gather_object(shares, found)
            found = {place: tokens for share in shares for place, tokens in share.items()}
        return self.data.tokenizer.decode([found[place] for place in range(len(ids))])
