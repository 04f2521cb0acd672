"""What lightning trains: what the modules of all tasks share."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from regard.errors import InvalidCheckpoint, TrainingDiverged, raise_problems
from regard.training.checkpoint_io import FILE as STATE
from regard.training.recipe import Recipe
from regard.training.schedules import rate

log = logging.getLogger("regard.training")


class TaskModule(L.LightningModule):
    """A model with its loss and its optimizer.

    The model is made in :meth:`configure_model`, when the vocabulary is known; its weights follow from the seed.

    Args:
        recipe: The recipe.
    """

    model: Any

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        self._sums = torch.zeros(0)
        self._num_targets = 0

    @property
    def data(self) -> Any:
        """The data module."""
        return self.trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue] - missing in lightning's annotations

    @abstractmethod
    def build(self) -> nn.Module:
        """Make the model."""

    @abstractmethod
    def losses(self, batch: Any) -> dict[str, Any]:
        """The mean ``loss`` of a batch, and its detached ``parts`` in the order of the recipe's ``losses``."""

    @abstractmethod
    def sums(self, batch: Any) -> Sequence[float | Tensor]:
        """What is added up over the batches of the validation set."""

    @abstractmethod
    def measured(self, sums: Sequence[float]) -> dict[str, float]:
        """The values that the sums over the whole validation set give, ``valid_loss`` among them."""

    def configure_model(self) -> None:
        """Make the model."""
        if not hasattr(self, "model"):
            torch.manual_seed(self.recipe.seed)
            self.model = self.build()
            log.info("model: %d parameters", sum(parameter.numel() for parameter in self.model.parameters()))

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """The losses of a batch, whose gradient is weighted by its number of targets if a step has several batches.

        A step with k batches over W processes has the gradient of Σᵢ nᵢ lossᵢ / Σᵢ nᵢ, with nᵢ targets in batch i, so
        that it does not depend on how the targets are divided among batches. Here lossᵢ is multiplied by nᵢ; lightning
        divides by k and W, and `on_before_optimizer_step` by the rest.
        """
        losses = self.losses(batch)
        if self._has_several_batches:
            self._num_targets += batch.num_targets
            losses["loss"] = losses["loss"] * batch.num_targets
        return losses

    @property
    def _has_several_batches(self) -> bool:
        return self.trainer.accumulate_grad_batches * self.trainer.world_size > 1

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Divide gradients by the number of targets of the step, before they are clipped."""
        if not self._has_several_batches:
            return
        total = torch.tensor(float(self._num_targets), device=self.device)
        total = self.trainer.strategy.reduce(total, reduce_op="sum")
        self._num_targets = 0
        factor = self.trainer.accumulate_grad_batches * self.trainer.world_size / total
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a state whose tensors are not those of the model.

        Raises:
            InvalidCheckpoint: With every weight that does not fit.
        """
        saved = {name: tuple(value.shape) for name, value in checkpoint["state_dict"].items()}
        needed = {name: tuple(value.shape) for name, value in self.state_dict().items()}
        raise_problems(
            [
                f"{self.recipe.output_dir / STATE}: the training state does not fit the model: {name} should be "
                f"{needed.get(name, 'absent')}, but is {saved.get(name, 'absent')}"
                for name in sorted(saved.keys() | needed.keys())
                if saved.get(name) != needed.get(name)
            ],
            InvalidCheckpoint,
        )

    def configure_optimizers(self) -> Any:
        """Make AdamW and its schedule."""
        keys, steps = self.recipe.optimizer, self.recipe.trainer.max_steps
        optimizer = torch.optim.AdamW(
            decayed(self.model.parameters(), keys.weight_decay),
            lr=keys.learning_rate,
            betas=keys.betas,
            eps=keys.eps,
            fused=True,
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, keys, steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        """Clip the norm of the whole gradient; lightning's own way refuses the fused optimizer."""
        if self.recipe.optimizer.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.optimizer.max_grad_norm)

    def check_weights(self) -> None:
        """Stop where the training has diverged, before anything of it is saved.

        Raises:
            TrainingDiverged: If the norm of the weights is no number.
        """
        norm = float(torch.nn.utils.get_total_norm(parameter.detach() for parameter in self.model.parameters()))
        if not math.isfinite(norm):
            raise TrainingDiverged(
                f"step {self.global_step}: the training has diverged: the norm of the model's weights is {norm}. In a "
                "new run lower optimizer.learning_rate, raise optimizer.warmup_steps, or clip gradients by "
                "optimizer.max_grad_norm"
            )

    def on_validation_epoch_start(self) -> None:
        """Begin to sum."""
        self.check_weights()
        self._sums = torch.zeros(0)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Add what a batch gives."""
        found = torch.tensor([float(each) for each in self.sums(batch)], dtype=torch.float64)
        self._sums = found if not self._sums.numel() else self._sums + found

    def on_validation_epoch_end(self) -> None:
        """Log what was measured."""
        sums = self._sums
        if self.device.type != "mps":  # which has no float64
            sums = sums.to(self.device)
        metrics = self.measured(self.trainer.strategy.reduce(sums, reduce_op="sum").tolist())
        told = ", ".join(
            f"{name.replace('_', ' ')} {value:.4g}" for name, value in metrics.items() if name != "valid_loss"
        )
        told = f", {told}" if told else ""
        log.info("step %d: valid_loss %.4f%s", self.global_step, metrics["valid_loss"], told)
        # for early stopping and the best; the processes agree, and lightning wants to be told
        self.log_dict(metrics, logger=False, sync_dist=self.trainer.world_size > 1)
        for logger in self.trainer.loggers:
            logger.log_metrics(metrics, step=self.global_step)


def decayed(parameters: Iterable[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Parameters in two groups: matrices, which decay, and vectors, that is biases and norms, which do not."""
    given = list(parameters)
    matrices = [parameter for parameter in given if parameter.ndim > 1]
    vectors = [parameter for parameter in given if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
