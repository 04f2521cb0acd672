"""Loss and speed: rows for the logs, and a bar (or lines, where there is no terminal) for people."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from typing import Any

import lightning as L
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from regard.data.batching import ResumableLoader

log = logging.getLogger("regard.training")


class ProgressLogger(L.Callback):
    """Logs the mean losses, the learning rate and the speed every few steps.

    Args:
        every: Steps between rows.
        names: What the losses are called, that of the task first.
        told: What is told, and counted as ``tokens``: target tokens, hidden words or texts.
        console: Where the bar is drawn.
    """

    def __init__(self, every: int, names: Sequence[str], told: str, console: Console) -> None:
        self.every, self.names, self.told, self.console = every, names, told, console
        # since the last row, each loss weighed by its tokens; no wait for a GPU
        self.losses: Sequence[float | torch.Tensor] = [0.0 for _ in names]
        self.tokens = 0
        self.since, self.since_tokens = 0.0, 0  # of this process: time that was lost to a kill does not count
        self.bar: Progress | None = None
        self.task = TaskID(0)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Save what each process summed since the last row."""
        sums = torch.tensor([*map(float, self.losses), self.tokens], device=trainer.strategy.root_device)
        checkpoint["sums"] = trainer.strategy.all_gather(sums).reshape(trainer.world_size, -1).cpu()

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Go on with these sums."""
        if len(checkpoint["sums"]) == trainer.world_size:
            *self.losses, tokens = checkpoint["sums"][trainer.global_rank].tolist()
            self.tokens = int(tokens)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start clock and bar."""
        self.since = time.perf_counter()
        if trainer.is_global_zero and self.console.is_terminal:
            self.bar = Progress(
                TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
                BarColumn(),
                TimeRemainingColumn(elapsed_when_finished=True),
                TextColumn("{task.description}"),
                console=self.console,
            )
            self.task = self.bar.add_task("", total=trainer.max_steps, completed=trainer.global_step)
            self.bar.start()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add a batch; write a row when it is time."""
        weight = batch.num_targets
        self.losses = [total + part * weight for total, part in zip(self.losses, outputs["parts"], strict=True)]
        self.tokens += weight
        self.since_tokens += weight
        step = trainer.global_step
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        if self.bar is not None:
            self.bar.update(self.task, completed=step)
        if step % self.every == 0:
            self._log(trainer, pl_module, step)

    def _log(self, trainer: L.Trainer, module: Any, step: int) -> None:
        sums = torch.tensor([*map(float, self.losses), self.tokens, self.since_tokens])
        if trainer.world_size > 1:
            sums = trainer.strategy.reduce(sums.to(trainer.strategy.root_device), reduce_op="sum")
        *losses, tokens, since_tokens = sums.tolist()
        means = {name: loss / tokens for name, loss in zip(self.names, losses, strict=True)}
        if not all(map(math.isfinite, means.values())):
            module.check_weights()
        now = time.perf_counter()
        loader = trainer.train_dataloader
        assert isinstance(loader, ResumableLoader)
        row = {
            "epoch": loader.sampler.epoch,
            **means,
            "learning_rate": trainer.optimizers[0].param_groups[0]["lr"],
            "tokens": int(tokens),  # that were told since the row before
            "tokens_per_second": round(since_tokens / (now - self.since)),
        }
        self.losses, self.tokens = [0.0 for _ in self.names], 0
        self.since, self.since_tokens = now, 0
        for logger in trainer.loggers:
            logger.log_metrics(row, step=step)
        named = ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in means.items())
        told = f"epoch {row['epoch']}, {named}, {row['tokens_per_second']:,} {self.told}/s"
        if self.bar is not None:
            self.bar.update(self.task, description=told)
        else:
            log.info("step %d/%d: %s", step, trainer.max_steps, told)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Leave the time of validation out of the speed."""
        self.since, self.since_tokens = time.perf_counter(), 0

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop the bar."""
        self._stop()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Stop the bar."""
        self._stop()

    def _stop(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
