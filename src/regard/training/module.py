"""The translator as lightning trains it: its loss, its optimizer, and what is measured on the validation set."""

from __future__ import annotations

import logging
from typing import Any

import lightning as L
import torch

from regard.errors import InvalidCheckpoint, refuse
from regard.generation.greedy import greedy
from regard.models import Transformer
from regard.models.transformer import Attentions
from regard.nn.cross_entropy import TokenLoss, linear_cross_entropy
from regard.text.batches import Batch
from regard.text.padding import source_batch
from regard.text.scores import score
from regard.training.attention import AttentionLosses
from regard.training.data import TranslationData
from regard.training.recipe import Recipe
from regard.training.storage import FILE as STATE

log = logging.getLogger("regard.training")
_ROWS = 64  # sentences translated together in validation


def inverse_square_root(step: int, warmup_steps: int) -> float:
    """The learning rate after so many steps, as a multiple of its peak.

    min((step + 1) / warmup, √(warmup / (step + 1)))

    Reference:
        Vaswani et al. 2017, eq. 3, with the peak given in place of d_model.

    Example:
        >>> [round(inverse_square_root(step, warmup_steps=4), 2) for step in (0, 1, 3, 15)]
        [0.25, 0.5, 1.0, 0.5]
    """
    return min((step + 1) / warmup_steps, (warmup_steps / (step + 1)) ** 0.5)


class TranslationModule(L.LightningModule):
    """A Transformer with its loss.

    The model is made in :meth:`configure_model`, when the vocabulary is known; its weights follow from the seed.

    Args:
        recipe: The recipe.
    """

    model: Transformer

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        self._valid_nll = self._valid_tokens = 0.0
        self._signed = False

    @property
    def data(self) -> TranslationData:
        """The data module."""
        return self.trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue] - missing in lightning's annotations

    def configure_model(self) -> None:
        """Make the model."""
        if not hasattr(self, "model"):
            torch.manual_seed(self.recipe.seed)
            self.model = Transformer(self.recipe.config(self.data.tokenizer.vocab_size))
            log.info("model: %d parameters", sum(parameter.numel() for parameter in self.model.parameters()))
            self._attention = AttentionLosses(self.recipe, self.data.tokenizer)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a state whose tensors are not those of the model.

        Raises:
            InvalidCheckpoint: With every weight that does not fit.
        """
        saved = {name: tuple(value.shape) for name, value in checkpoint["state_dict"].items()}
        needed = {name: tuple(value.shape) for name, value in self.state_dict().items()}
        refuse(
            [
                f"{self.recipe.run / STATE}: the training state does not fit the model: {name} should be "
                f"{needed.get(name, 'absent')}, but is {saved.get(name, 'absent')}"
                for name in sorted(saved.keys() | needed.keys())
                if saved.get(name) != needed.get(name)
            ],
            InvalidCheckpoint,
        )

    def configure_optimizers(self) -> Any:
        """Make Adam and its schedule."""
        keys = self.recipe.optimizer
        optimizer = torch.optim.Adam(
            self.model.parameters(), lr=keys.learning_rate, betas=keys.betas, eps=keys.eps, fused=True
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: inverse_square_root(step, keys.warmup_steps)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _loss(self, batch: Batch, label_smoothing: float) -> tuple[TokenLoss, Attentions]:
        hidden, attentions = self.model.states(batch.src, batch.tgt, batch.src_lengths)  # (batch, target, d_model)
        found = linear_cross_entropy(
            hidden.flatten(0, 1),
            self.model.to_words.weight,
            batch.labels.flatten(),
            label_smoothing=label_smoothing,
            ignore_index=self.model.config.pad_id,
        )
        return found, attentions

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:
        """Give the label-smoothed loss of a batch, with the losses on attention that the recipe asks for."""
        found, attentions = self._loss(batch, self.recipe.optimizer.label_smoothing)
        losses = self._attention(attentions, batch)
        loss = found.loss
        for name, keys in self.recipe.attention.losses.items():
            loss = loss + keys.weight * losses[name]
        return {"loss": loss, "parts": [part.detach() for part in (found.loss, *losses.values())]}

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        """Clip the norm of the whole gradient; lightning's own way refuses the fused optimizer."""
        if self.recipe.optimizer.clip_norm:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.optimizer.clip_norm)

    def on_validation_epoch_start(self) -> None:
        """Begin to sum."""
        self._valid_nll = self._valid_tokens = 0.0

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Add the negative log-likelihood of a batch, without smoothing."""
        found, _ = self._loss(batch, label_smoothing=0.0)
        self._valid_nll += float(found.nll)
        self._valid_tokens += float(found.tokens)

    def on_validation_epoch_end(self) -> None:
        """Log ``valid_loss`` (nats a token), ``bleu`` and ``chrf``."""
        sums = torch.tensor([self._valid_nll, self._valid_tokens], dtype=torch.float64)
        if self.device.type != "mps":  # which has no float64
            sums = sums.to(self.device)
        nll, tokens = self.trainer.strategy.reduce(sums, reduce_op="sum").tolist()
        metrics = {"valid_loss": nll / tokens}
        if self.data.sentences:
            hypotheses = self._translations([source for source, _ in self.data.sentences])
            scores = score(hypotheses, [references for _, references in self.data.sentences], ["bleu", "chrf"])
            metrics |= {name: found.value for name, found in scores.items()}
            told = ", ".join(f"{name} {found.value:.2f}" for name, found in scores.items())
            if not self._signed:
                self._signed = True
                log.info("validation: %s", ", ".join(f"{name} is {each.signature}" for name, each in scores.items()))
        else:
            told = "nothing translated"
        log.info("step %d: valid_loss %.4f, %s", self.global_step, metrics["valid_loss"], told)
        # for early stopping and the best; the processes agree, and lightning wants to be told
        self.log_dict(metrics, logger=False, sync_dist=self.trainer.world_size > 1)
        for logger in self.trainer.loggers:
            logger.log_metrics(metrics, step=self.global_step)

    def _translations(self, sources: list[str]) -> list[str]:
        """Translate greedily; every process takes its share, and all get the whole."""
        ids = self.data.tokenizer.encode(sources)
        by_length = sorted(range(len(ids)), key=lambda place: len(ids[place]))
        chunks = [by_length[start : start + _ROWS] for start in range(0, len(by_length), _ROWS)]
        found: dict[int, list[int]] = {}
        for chunk in chunks[self.trainer.global_rank :: self.trainer.world_size]:
            src, src_lengths = source_batch([ids[place] for place in chunk])
            with self.trainer.precision_plugin.val_step_context():
                best = greedy(self.model, src.to(self.device), src_lengths.to(self.device))
            found |= {place: hypothesis.tokens for place, hypothesis in zip(chunk, best, strict=True)}
        if self.trainer.world_size > 1:
            shares: list[Any] = [None] * self.trainer.world_size
            torch.distributed.all_gather_object(shares, found)
            found = {place: tokens for share in shares for place, tokens in share.items()}
        return self.data.tokenizer.decode([found[place] for place in range(len(ids))])
