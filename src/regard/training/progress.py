"""Losses and throughput: rows in files, and a progress bar, or log lines without a terminal."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from lightning_fabric import Fabric
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from regard.training.fabric import data_share, sum_over_data
from regard.training.metrics_file import MetricsFile
from regard.training.recipe import Recipe

log = logging.getLogger("regard.training")
REFRESH_SECONDS = 1.0


class ProgressLogger:
    """Logs mean losses, learning rate and throughput every ``trainer.log_every_n_steps`` steps.

    The progress bar shows the mean loss since the last row from the first step on. It is read from the device at most
    once a second. Without a terminal, the first step is logged as well.

    Args:
        recipe: The recipe.
        console: Where the bar is drawn.
        fabric: The processes.
        step: The step that the training starts from; what was logged after it is removed.
    """

    def __init__(self, recipe: Recipe, console: Console, fabric: Fabric, step: int) -> None:
        self.recipe, self.console, self.fabric, self.step = recipe, console, fabric, step
        self.names, self.unit = ["loss", *recipe.loss_weights], recipe.target_unit
        # since the last row; sums of losses weighted by targets stay on the device
        self.losses: list[Any] = [0.0 for _ in self.names]
        self.num_targets = 0
        # of this process, for the throughput
        self.started_at, self.num_timed_targets = 0.0, 0
        self.shown_at = -math.inf
        self.bar: Progress | None = None
        self.bar_task = TaskID(0)
        self.file: MetricsFile | None = None
        self.writer: SummaryWriter | None = None
        if fabric.is_global_zero:
            self.file = MetricsFile(recipe.output_dir, [metric.name for metric in recipe.metrics])
            self.file.discard_after(step)
            self.writer = SummaryWriter(recipe.output_dir / "tensorboard", purge_step=step + 1)

    def __enter__(self) -> Self:
        self.restart_clock()
        if self.fabric.is_global_zero and self.console.is_terminal:
            self.bar = Progress(
                TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
                BarColumn(),
                TimeRemainingColumn(elapsed_when_finished=True),
                TextColumn("{task.description}"),
                console=self.console,
            )
            self.bar_task = self.bar.add_task("", total=self.recipe.trainer.max_steps, completed=self.step)
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()
        if self.writer is not None:
            self.writer.close()

    def state(self) -> Tensor:
        """The sums of this process since the last row, (losses + 1,), float64."""
        return torch.tensor([*map(float, self.losses), self.num_targets], dtype=torch.float64)

    def load_state(self, sums: Tensor) -> None:
        """Continue from sums."""
        *self.losses, num_targets = sums.tolist()
        self.num_targets = int(num_targets)

    def add(self, losses: Sequence[Tensor], num_targets: int) -> None:
        """Add the mean losses of a batch."""
        self.losses = [total + loss * num_targets for total, loss in zip(self.losses, losses, strict=True)]
        self.num_targets += num_targets
        self.num_timed_targets += num_targets

    def end_step(self, step: int, epoch: int, learning_rate: float) -> bool:
        """Log a row and update the bar when it is time; False if a row's losses are not finite."""
        self.step = step
        is_finite = True
        if step % self.recipe.trainer.log_every_n_steps == 0:
            is_finite = self._log_row(epoch, learning_rate)
        elif self.fabric.is_global_zero and self._is_refresh_due():
            means = [float(loss) / self.num_targets for loss in self.losses]
            self._show(epoch, means, self.num_timed_targets * data_share(self.fabric).size)
        if self.bar is not None:
            self.bar.update(self.bar_task, completed=step)
        return is_finite

    def log(self, values: Mapping[str, float]) -> None:
        """Add a row of the current step to ``metrics.csv``, and its values to TensorBoard."""
        if self.file is not None:
            self.file.append(self.step, values)
        if self.writer is not None:
            for name, value in values.items():
                self.writer.add_scalar(name, value, self.step)

    def restart_clock(self) -> None:
        """Leave out the time until now, as that of a validation, from the throughput."""
        self.started_at, self.num_timed_targets = time.perf_counter(), 0

    def _is_refresh_due(self) -> bool:
        is_first = self.shown_at == -math.inf
        return is_first or (self.bar is not None and time.perf_counter() - self.shown_at > REFRESH_SECONDS)

    def _log_row(self, epoch: int, learning_rate: float) -> bool:
        values = [*map(float, self.losses), self.num_targets, self.num_timed_targets]
        sums = torch.tensor(values, dtype=torch.float64)  # float32 counts to 2^24
        *losses, num_targets, num_timed_targets = sum_over_data(self.fabric, sums).tolist()
        means = [loss / num_targets for loss in losses]
        speed = round(num_timed_targets / (time.perf_counter() - self.started_at))
        row = {"epoch": epoch, **dict(zip(self.names, means, strict=True)), "learning_rate": learning_rate}
        self.log({**row, "tokens": int(num_targets), "tokens_per_second": speed})
        self._show(epoch, means, num_timed_targets)
        self.losses, self.num_targets = [0.0 for _ in self.names], 0
        self.restart_clock()
        return all(map(math.isfinite, means))

    def _show(self, epoch: int, means: list[float], num_timed_targets: float) -> None:
        """Show epoch, losses and throughput in the bar, or log them."""
        self.shown_at = time.perf_counter()
        losses = [f"{name.replace('_', ' ')} {mean:.4f}" for name, mean in zip(self.names, means, strict=True)]
        speed = f"{round(num_timed_targets / (self.shown_at - self.started_at)):,} {self.unit}/s"
        text = ", ".join([f"epoch {epoch}", *losses, speed])
        if self.bar is not None:
            self.bar.update(self.bar_task, description=text)
        else:
            log.info("step %d/%d: %s", self.step, self.recipe.trainer.max_steps, text)
