"""What a run saves: the state to go on from, the last and the best weights, and snapshots to average."""

from __future__ import annotations

import copy
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only
from safetensors import SafetensorError

from regard.errors import InvalidFile, RegardError
from regard.models import save_model
from regard.training.averaging import Snapshots, load_average
from regard.training.checkpoint_io import FILE
from regard.training.module import TaskModule
from regard.training.recipe import Recipe

STOPS = signal.SIGINT, signal.SIGTERM  # Ctrl-C, and what a scheduler sends before it kills


class TrainingInterrupted(RegardError):
    """Ctrl-C was pressed, or the process was told to end."""


class Checkpoints(L.Callback):
    """Saves at the end of steps, after all else that happens there; last among the callbacks.

    Args:
        recipe: The recipe.
        step: The step of the saved state that training begins with, or 0.
    """

    def __init__(self, recipe: Recipe, step: int = 0) -> None:
        self.run, self.keys, self.validation = recipe.output_dir, recipe.checkpoint, recipe.validation
        self.validates, self.monitored = recipe.validates, recipe.monitored
        self.snapshots = Snapshots(recipe.output_dir / "snapshots", recipe.checkpoint.average_last)
        self.seed = recipe.seed
        self.best: float | None = None
        self.started = self.interrupted = False
        self.saved_at, self.saved_step = time.monotonic(), step
        self._random: torch.Tensor | None = None

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Save the best value so far and the random states of all processes."""
        state = _random_state(trainer.strategy.root_device)
        checkpoint["random"] = trainer.strategy.all_gather(state).reshape(trainer.world_size, -1).cpu()
        checkpoint["best"] = self.best

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Take them; the random states are set when training starts, after all that draws in between."""
        self.best, self._random = checkpoint["best"], checkpoint["random"]

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Set the random states: those of the checkpoint, or new ones that differ between processes."""
        if self._random is not None and len(self._random) == trainer.world_size:
            _set_random_state(self._random[trainer.global_rank], trainer.strategy.root_device)
        else:
            torch.manual_seed(self.seed + trainer.global_rank + trainer.global_step)
        self.saved_at, self.started = time.monotonic(), True
        if signal.getsignal(signal.SIGINT) == self._interrupt:
            signal.signal(signal.SIGTERM, self._interrupt)  # at which lightning would leave without saving, as if done
        if trainer.is_global_zero:
            self.snapshots.cut_back(trainer.global_step)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Save, unless a validation follows that belongs to this step; one follows the last step, always."""
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        last = trainer.global_step >= trainer.max_steps
        if not self.validates or (trainer.global_step % self.validation.every_n_steps and not last):
            self._end_step(trainer, pl_module)
        elif last:
            trainer.should_stop = True  # which makes lightning validate

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Save the weights if they are the best so far, and all else that is due."""
        name, mode = self.monitored
        value = float(trainer.callback_metrics[name])
        better = self.best is None or (value < self.best if mode == "min" else value > self.best)
        if better or math.isnan(self.best or 0.0):
            self.best = value
            self._save_weights(trainer, pl_module, "best")
        self._end_step(trainer, pl_module)

    def _end_step(self, trainer: L.Trainer, module: TaskModule) -> None:
        step = trainer.global_step
        asked = trainer.strategy.reduce_boolean_decision(self.interrupted, all=False)
        late = time.monotonic() - self.saved_at > 60 * self.keys.every_n_minutes
        late = trainer.strategy.reduce_boolean_decision(late, all=False)
        due = asked or late or step % self.keys.every_n_steps == 0 or step >= trainer.max_steps or trainer.should_stop
        average = self.keys.average_last and step % self.keys.snapshot_every_n_steps == 0
        if due or average:
            module.check_weights()
        if average and trainer.is_global_zero:
            with self._telling(self.snapshots.folder):
                self.snapshots.take(module.model, step)
                mean = copy.deepcopy(module.model)
                load_average(mean, self.snapshots.folders())
                save_model(self.run / "averaged", mean, module.data.tokenizer)
        if due:
            self._save_state(trainer, module)
        if asked:
            raise TrainingInterrupted

    def _save_state(self, trainer: L.Trainer, module: TaskModule) -> None:
        with self._telling(self.run / FILE):
            trainer.save_checkpoint(self.run / FILE)
        self.saved_at, self.saved_step = time.monotonic(), trainer.global_step
        self._save_weights(trainer, module, "last")

    def _save_weights(self, trainer: L.Trainer, module: TaskModule, name: str) -> None:
        if trainer.is_global_zero:
            with self._telling(self.run / name):
                save_model(self.run / name, module.model, module.data.tokenizer)

    @contextmanager
    def _telling(self, path: Path) -> Iterator[None]:
        """Say in one sentence what could not be saved, and what there is still."""
        try:
            yield
        except (OSError, SafetensorError) as error:
            kept = f"the state of step {self.saved_step} is whole" if self.saved_step else "no state was saved before"
            reason = str(error).removeprefix(f"{path}: could not be written: ")
            raise InvalidFile(f"{path}: could not be saved ({reason}); {kept}") from error

    @contextmanager
    def stop_on_signals(self) -> Iterator[None]:
        """Let Ctrl-C end training at the end of a step; where nothing was trained yet, or at a second one, at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._interrupt) for number in STOPS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.interrupted or not self.started:
            raise TrainingInterrupted  # lightning would make exit code 1 of a KeyboardInterrupt
        self.interrupted = True
        if rank_zero_only.rank == 0:
            os.write(2, b"\nstopping after this step; Ctrl-C again stops at once\n")  # print may be in use just now


def _random_state(device: torch.device) -> torch.Tensor:
    """The states of torch's generators, as bytes: the CPU's, and the GPU's that this process uses."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return torch.cat(states).to(device)


def _set_random_state(state: torch.Tensor, device: torch.device) -> None:
    state = state.cpu().clone()  # torch 2.13 crashes at a state that does not begin its storage
    size = torch.get_rng_state().numel()
    torch.set_rng_state(state[:size])
    if device.type == "cuda" and state.numel() > size:
        torch.cuda.set_rng_state(state[size:].clone(), device)
