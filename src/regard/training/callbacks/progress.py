"""Loss and throughput: rows for the loggers, and a progress bar, or log lines without a terminal."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

import lightning as L
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from regard.training.recipe import Recipe

log = logging.getLogger("regard.training")
REFRESH_SECONDS = 1.0


class ProgressLogger(L.Callback):
    """Logs mean losses, learning rate and throughput every ``trainer.log_every_n_steps`` steps.

    The progress bar shows the mean loss since the last row from the first step on. It is read from the device at most
    once a second. Without a terminal, the first step is logged as well.

    Args:
        recipe: The recipe.
        console: Where the bar is drawn.
    """

    def __init__(self, recipe: Recipe, console: Console) -> None:
        self.every_n_steps, self.unit = recipe.trainer.log_every_n_steps, recipe.target_unit
        self.names, self.console = ["loss", *recipe.loss_weights], console
        # since the last row; sums of losses weighted by targets stay on the device
        self.losses: list[Any] = [0.0 for _ in self.names]
        self.num_targets = 0
        self.learning_rate = 0.0
        # of this process, for the throughput
        self.started_at, self.num_timed_targets = 0.0, 0
        self.shown_at = -math.inf
        self.bar: Progress | None = None
        self.bar_task = TaskID(0)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        sums = torch.tensor([*map(float, self.losses), self.num_targets], device=trainer.strategy.root_device)
        checkpoint["sums"] = trainer.strategy.all_gather(sums).reshape(trainer.world_size, -1).cpu()

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        if len(checkpoint["sums"]) == trainer.world_size:
            *self.losses, num_targets = checkpoint["sums"][trainer.global_rank].tolist()
            self.num_targets = int(num_targets)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.global_step:
            log.info("resuming at step %d", trainer.global_step)
        self.started_at = time.perf_counter()
        if trainer.is_global_zero and self.console.is_terminal:
            self.bar = Progress(
                TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
                BarColumn(),
                TimeRemainingColumn(elapsed_when_finished=True),
                TextColumn("{task.description}"),
                console=self.console,
            )
            self.bar_task = self.bar.add_task("", total=trainer.max_steps, completed=trainer.global_step)
            self.bar.start()

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Keep the learning rate of this step; after it, the optimizer has that of the next."""
        self.learning_rate = optimizer.param_groups[0]["lr"]

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add the losses of a batch; log a row and update the bar when it is time."""
        pairs = zip(self.losses, outputs["losses"], strict=True)
        self.losses = [total + loss * batch.num_targets for total, loss in pairs]
        self.num_targets += batch.num_targets
        self.num_timed_targets += batch.num_targets
        step = trainer.global_step
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        if step % self.every_n_steps == 0:
            self._log_row(trainer, pl_module, step)
        elif trainer.is_global_zero and self._is_refresh_due():
            means = [float(loss) / self.num_targets for loss in self.losses]
            self._show(trainer, means, self.num_timed_targets * trainer.world_size)
        if self.bar is not None:
            self.bar.update(self.bar_task, completed=step)

    def _is_refresh_due(self) -> bool:
        is_first = self.shown_at == -math.inf
        return is_first or (self.bar is not None and time.perf_counter() - self.shown_at > REFRESH_SECONDS)

    def _log_row(self, trainer: L.Trainer, module: Any, step: int) -> None:
        sums = torch.tensor([*map(float, self.losses), self.num_targets, self.num_timed_targets])
        if trainer.world_size > 1:
            sums = trainer.strategy.reduce(sums.to(trainer.strategy.root_device), reduce_op="sum")
        *losses, num_targets, num_timed_targets = sums.tolist()
        means = [loss / num_targets for loss in losses]
        if not all(map(math.isfinite, means)):
            module.check_finite()
        row = {
            "epoch": _epoch(trainer),
            **dict(zip(self.names, means, strict=True)),
            "learning_rate": self.learning_rate,
            "tokens": int(num_targets),
            "tokens_per_second": round(num_timed_targets / (time.perf_counter() - self.started_at)),
        }
        for logger in trainer.loggers:
            logger.log_metrics(row, step=step)
        self._show(trainer, means, num_timed_targets)
        self.losses, self.num_targets = [0.0 for _ in self.names], 0
        self.started_at, self.num_timed_targets = time.perf_counter(), 0

    def _show(self, trainer: L.Trainer, means: list[float], num_timed_targets: float) -> None:
        """Show epoch, losses and throughput in the bar, or log them."""
        self.shown_at = time.perf_counter()
        losses = [f"{name.replace('_', ' ')} {mean:.4f}" for name, mean in zip(self.names, means, strict=True)]
        speed = f"{round(num_timed_targets / (self.shown_at - self.started_at)):,} {self.unit}/s"
        text = ", ".join([f"epoch {_epoch(trainer)}", *losses, speed])
        if self.bar is not None:
            self.bar.update(self.bar_task, description=text)
        else:
            log.info("step %d/%d: %s", trainer.global_step, trainer.max_steps, text)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Exclude the time of the validation from the throughput."""
        self.started_at, self.num_timed_targets = time.perf_counter(), 0

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._stop()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._stop()

    def _stop(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def _epoch(trainer: L.Trainer) -> int:
    loader: Any = trainer.train_dataloader
    return loader.sampler.epoch
