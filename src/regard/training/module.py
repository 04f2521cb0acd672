"""The Lightning module of all tasks: optimizer, learning-rate schedule, gradients and validation."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import Any

import lightning as L
import torch
from torch import nn

from regard.errors import InvalidArgument, InvalidCheckpoint, TrainingDiverged
from regard.training.checkpoint_io import STATE_FILE
from regard.training.recipe_sections import OptimizerConfig
from regard.training.tasks.base import Task

log = logging.getLogger("regard.training")


class TaskModule(L.LightningModule):
    """Trains the model of a task, which is built when the tokenizer is known; the seed decides its initial weights."""

    model: Any

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task, self.recipe = task, task.recipe
        self._sums = torch.zeros(0)
        self._num_targets = 0

    def configure_model(self) -> None:
        if not hasattr(self, "model"):
            torch.manual_seed(self.recipe.seed)
            self.model = self.task.build_model()
            log.info("model: %d parameters", sum(parameter.numel() for parameter in self.model.parameters()))

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """The losses of a batch; in a step of several batches, gradients are weighted by their numbers of targets.

        A step with k batches on each of W processes has the gradient of Σᵢ nᵢ lossᵢ / Σᵢ nᵢ, where batch i has nᵢ
        targets: how targets are divided into batches does not matter. Here lossᵢ is multiplied by nᵢ. Lightning divides
        by k and W, and `on_before_optimizer_step` by the rest.
        """
        losses = self.task.losses(self.model, batch)
        loss = losses["loss"]
        for name, weight in self.recipe.loss_weights.items():
            loss = loss + weight * losses[name]
        if self._has_several_batches:
            self._num_targets += batch.num_targets
            loss = loss * batch.num_targets
        return {"loss": loss, "losses": [part.detach() for part in losses.values()]}

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
        """Check that the tensors of a training state fit the model.

        Raises:
            InvalidCheckpoint: With every tensor that does not fit.
        """
        try:
            self.load_state_dict(checkpoint["state_dict"])
        except RuntimeError as error:  # lists the tensors
            path = self.recipe.output_dir / STATE_FILE
            raise InvalidCheckpoint(f"{path}: expected a training state of this model, got another: {error}") from None

    def configure_optimizers(self) -> Any:
        config, max_steps = self.recipe.optimizer, self.recipe.trainer.max_steps
        optimizer = torch.optim.AdamW(
            weight_decay_groups(self.model.parameters(), config.weight_decay),
            lr=config.learning_rate,
            betas=config.betas,
            eps=config.eps,
            fused=True,
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: lr_factor(step, config, max_steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        """Clip the gradient norm; Lightning's own clipping refuses fused optimizers."""
        if self.recipe.optimizer.max_grad_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.optimizer.max_grad_norm)

    def check_finite(self) -> None:
        """Check that the weights are finite, before they are saved.

        Raises:
            TrainingDiverged: If they are not.
        """
        norm = float(nn.utils.get_total_norm(parameter.detach() for parameter in self.model.parameters()))
        if not math.isfinite(norm):
            raise TrainingDiverged(
                f"step {self.global_step}: the training has diverged: the norm of the weights is {norm}; in a new run, "
                "lower optimizer.learning_rate, raise optimizer.warmup_steps or clip by optimizer.max_grad_norm"
            )

    def on_validation_epoch_start(self) -> None:
        self.check_finite()
        self._sums = torch.zeros(0)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        values = [float(value) for value in self.task.validation_sums(self.model, batch)]
        sums = torch.tensor(values, dtype=torch.float64)
        self._sums = self._sums + sums if self._sums.numel() else sums

    def on_validation_epoch_end(self) -> None:
        sums = self._sums if self.device.type == "mps" else self._sums.to(self.device)  # mps has no float64
        sums = self.trainer.strategy.reduce(sums, reduce_op="sum").tolist()
        with self.trainer.precision_plugin.val_step_context():
            metrics = self.task.compute_metrics(self.model, sums)
        units = {metric.name: metric.unit for metric in self.recipe.metrics}
        if missing := [name for name in metrics if name not in units]:
            name = f"{type(self.recipe).__name__}.metrics"
            raise InvalidArgument(f"{name}: expected all that compute_metrics returns, got no {', '.join(missing)}")
        texts = [f"valid loss {metrics['valid_loss']:.4f}"]
        for name in [name for name in metrics if name != "valid_loss"]:
            texts.append(f"{name.replace('_', ' ')} {metrics[name]:.4g}{units[name]}")
        log.info("step %d: %s", self.global_step, ", ".join(texts))
        # for early stopping and `best`; processes agree already, but Lightning warns without sync_dist
        self.log_dict(metrics, logger=False, sync_dist=self.trainer.world_size > 1)
        for logger in self.trainer.loggers:
            logger.log_metrics(metrics, step=self.global_step)


def weight_decay_groups(parameters: Iterable[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Two parameter groups: matrices, with weight decay, and vectors (biases and norms), without."""
    matrices, vectors = [], []
    for parameter in parameters:
        (matrices if parameter.ndim > 1 else vectors).append(parameter)
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def lr_factor(step: int, config: OptimizerConfig, max_steps: int) -> float:
    """The learning rate of a step relative to the peak: linear warm-up, then the schedule.

    Inverse square root: min((step + 1) / warmup, √(warmup / (step + 1))).

    Args:
        step: The step, from 0.
        config: The recipe's ``optimizer``.
        max_steps: The step at which cosine and linear reach ``min_lr_ratio``.

    Reference:
        Vaswani et al. 2017, eq. 3, with the peak instead of d_model; Loshchilov and Hutter 2017, "SGDR", eq. 5
        (cosine).

    Examples:
        >>> config = OptimizerConfig(warmup_steps=2, lr_schedule="linear", min_lr_ratio=0.1)
        >>> [round(lr_factor(step, config, 12), 2) for step in (0, 1, 2, 7, 12)]
        [0.5, 1.0, 1.0, 0.55, 0.1]
    """
    warmup_steps, schedule = config.warmup_steps, config.lr_schedule
    if schedule == "inverse_sqrt":
        warmup_steps = max(warmup_steps, 1)
        return min((step + 1) / warmup_steps, (warmup_steps / (step + 1)) ** 0.5)
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "constant":
        return 1.0
    progress = min((step - warmup_steps) / max(max_steps - warmup_steps, 1), 1.0)
    decay = (1 + math.cos(math.pi * progress)) / 2 if schedule == "cosine" else 1 - progress
    return config.min_lr_ratio + (1 - config.min_lr_ratio) * decay
