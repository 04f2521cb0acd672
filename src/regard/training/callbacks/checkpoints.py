"""Saving: the training state, the last and the best weights, and the mean of snapshots."""

from __future__ import annotations

import copy
import math
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning as L
import torch

from regard.errors import InvalidCheckpoint, InvalidFile
from regard.models import save_model
from regard.models.architectures import Model
from regard.models.checkpoint import WEIGHTS_FILE
from regard.models.weights import read_weights
from regard.training.callbacks.interrupt import Interrupt, TrainingInterrupted
from regard.training.checkpoint_io import STATE_FILE
from regard.training.module import TaskModule
from regard.training.recipe import Recipe


class Checkpoints(L.Callback):
    """Saves at the end of steps; must be the last callback.

    Args:
        recipe: The recipe.
        interrupt: Stops the training when a signal has arrived.
        step: Step of the training state that a resumed run starts from, or 0.
    """

    def __init__(self, recipe: Recipe, interrupt: Interrupt, step: int = 0) -> None:
        self.recipe, self.folder, self.config, self.interrupt = recipe, recipe.output_dir, recipe.checkpoint, interrupt
        self.snapshots = Snapshots(recipe.output_dir / "snapshots", recipe.checkpoint.average_last)
        self.best: float | None = None
        self.saved_at, self.saved_step = time.monotonic(), step
        self._random: torch.Tensor | None = None

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        state = _random_state(trainer.strategy.root_device)
        checkpoint["random"] = trainer.strategy.all_gather(state).reshape(trainer.world_size, -1).cpu()
        checkpoint["best"] = self.best

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Restore the best metric; random states are restored at the start, after everything that draws numbers."""
        self.best, self._random = checkpoint["best"], checkpoint["random"]

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Restore the random states, or seed each process differently."""
        if self._random is not None and len(self._random) == trainer.world_size:
            _set_random_state(self._random[trainer.global_rank], trainer.strategy.root_device)
        else:
            torch.manual_seed(self.recipe.seed + trainer.global_rank + trainer.global_step)
        self.saved_at = time.monotonic()
        if trainer.is_global_zero:
            self.snapshots.discard_after(trainer.global_step)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Save, unless a validation of this step follows; the last step is always validated."""
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        is_last = trainer.global_step >= trainer.max_steps
        is_validated = is_last or trainer.global_step % self.recipe.validation.every_n_steps == 0
        if not (self.recipe.has_validation and is_validated):
            self._end_step(trainer, pl_module)
        elif is_last:
            trainer.should_stop = True  # makes Lightning validate

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Save the weights if they are the best so far, and everything else that is due."""
        name, mode = self.recipe.monitor
        value = float(trainer.callback_metrics[name])
        is_better = self.best is None or (value < self.best if mode == "min" else value > self.best)
        if is_better or math.isnan(self.best or 0.0):
            self.best = value
            self._save_weights(trainer, pl_module, "best")
        self._end_step(trainer, pl_module)

    def _end_step(self, trainer: L.Trainer, module: TaskModule) -> None:
        config, step, any_process = self.config, trainer.global_step, trainer.strategy.reduce_boolean_decision
        is_interrupted = any_process(self.interrupt.signal is not None, all=False)
        is_late = any_process(time.monotonic() - self.saved_at > 60 * config.every_n_minutes, all=False)
        is_end = step >= trainer.max_steps or trainer.should_stop or is_interrupted
        is_due = step % config.every_n_steps == 0 or is_late or is_end
        is_snapshot_due = config.average_last and step % config.snapshot_every_n_steps == 0
        if is_due or is_snapshot_due:
            module.check_finite()
        if is_snapshot_due and trainer.is_global_zero:
            with self._report_save_errors(self.snapshots.folder):
                self.snapshots.save(module.model, step)
                mean = self.snapshots.load_mean(copy.deepcopy(module.model))
                save_model(self.folder / "averaged", mean, module.task.tokenizer, format=self.config.format)
        if is_due:
            with self._report_save_errors(self.folder / STATE_FILE):
                trainer.save_checkpoint(self.folder / STATE_FILE)
            self.saved_at, self.saved_step = time.monotonic(), step
            self.save_last(trainer, module)
        if is_interrupted:
            raise TrainingInterrupted

    def save_last(self, trainer: L.Trainer, module: TaskModule) -> None:
        """Save the model of the last training state."""
        self._save_weights(trainer, module, "last")

    def _save_weights(self, trainer: L.Trainer, module: TaskModule, name: str) -> None:
        if trainer.is_global_zero:
            with self._report_save_errors(self.folder / name):
                save_model(self.folder / name, module.model, module.task.tokenizer, format=self.config.format)

    @contextmanager
    def _report_save_errors(self, path: Path) -> Iterator[None]:
        """Raise an error that names the path and the last complete training state."""
        try:
            yield
        except OSError as error:
            step = self.saved_step
            state = f"the state of step {step} is complete" if step else "no state was saved before"
            reason = str(error).removeprefix(f"{path}: could not be written: ")
            raise InvalidFile(f"{path}: could not be saved ({reason}); {state}") from error


class Snapshots:
    """The weights of the last snapshot steps.

    Args:
        folder: Folder with a model folder for each step.
        keep: Number of snapshots; older ones are removed.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder, keep

    def folders(self) -> list[Path]:
        """The model folders, oldest first."""
        folders = self.folder.glob("step-" + "[0-9]" * 9)
        return sorted(path for path in folders if (path / WEIGHTS_FILE).is_file())

    def save(self, model: Model, step: int) -> None:
        """Save the weights of a step, and remove the oldest snapshots above the limit."""
        save_model(self.folder / f"step-{step:09d}", model)
        for folder in self.folders()[: -self.keep]:
            shutil.rmtree(folder)

    def discard_after(self, step: int) -> None:
        """Remove the snapshots after a step."""
        for path in self.folders():
            if int(path.name.removeprefix("step-")) > step:
                shutil.rmtree(path)

    @torch.no_grad()
    def load_mean(self, model: Model) -> Model:
        """Load the mean of the snapshots, summed in float64, into a model of the same shape."""
        paths = [folder / WEIGHTS_FILE for folder in self.folders()]
        snapshots, shapes = [read_weights([path]) for path in paths], _shapes(dict(model.named_parameters()))
        for path, snapshot in zip(paths, snapshots, strict=True):
            if _shapes(snapshot) != shapes:
                raise InvalidCheckpoint(f"{path}: expected the weights of this model, got others; remove its folder")
        for name, weight in model.named_parameters():
            total: Any = sum(snapshot[name].double() for snapshot in snapshots)
            weight.copy_(total / len(snapshots))
        return model


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def _random_state(device: torch.device) -> torch.Tensor:
    """The states of torch's generators as bytes: of the CPU and of this process's GPU."""
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
