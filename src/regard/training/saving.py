"""Saving: training state and last weights, while training goes on; best weights, and the mean of snapshots."""

from __future__ import annotations

import copy
import shutil
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from lightning_fabric.utilities.rank_zero import rank_zero_only
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from regard.errors import InvalidCheckpoint, InvalidFile
from regard.models import save_model
from regard.models.architectures import Model
from regard.models.checkpoint import WEIGHTS_FILE
from regard.models.weights import read_weights
from regard.text.tokenizer import Tokenizer
from regard.training.divided_model import is_divided, whole_model
from regard.training.recipe import Recipe
from regard.training.state import discard_other_states, save_state, state_folder


class Saver:
    """What a run saves, and when. Each process writes its part of the training state, and rank 0 all else.

    The training state and ``last`` are copied, and a thread writes the copies while the training goes on. The end of
    the block waits for it.

    Args:
        recipe: The recipe.
        step: Step of the training state that a resumed run starts from, or 0.

    Attributes:
        saved_step: The step of the last training state that is complete.
        best: The best value of ``validation.monitor``; None before the first.
        num_worse: Number of validations since the best.
    """

    def __init__(self, recipe: Recipe, step: int = 0) -> None:
        self.recipe, self.folder, self.config = recipe, recipe.output_dir, recipe.checkpoint
        self.snapshots = Snapshots(recipe.output_dir / "snapshots", recipe.checkpoint.average_last)
        self.saved_step, self.saved_at = step, time.monotonic()
        self.best: float | None = None
        self.num_worse = 0
        self._thread = ThreadPoolExecutor(1, "saving")
        self._pending: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Wait for the thread; what it could not write is not raised."""
        self._thread.shutdown()

    def start(self, step: int) -> None:
        """Start the clock at the step of a training state, or 0; remove what an interrupted run has saved after it."""
        self.saved_step, self.saved_at = step, time.monotonic()
        if rank_zero_only.rank == 0:
            discard_other_states(state_folder(self.folder, step))
            self.snapshots.discard_after(step)

    @property
    def is_time_over(self) -> bool:
        """Whether ``checkpoint.every_n_minutes`` have passed since the last training state."""
        return time.monotonic() - self.saved_at > 60 * self.config.every_n_minutes

    @property
    def is_patience_over(self) -> bool:
        """Whether the last ``validation.patience`` validations were not better than the best."""
        patience = self.recipe.validation.patience
        return patience is not None and self.num_worse >= patience

    def describe_patience(self) -> str:
        """Why the training has stopped."""
        patience, (name, _) = self.recipe.validation.patience, self.recipe.monitor
        validations = "validation" if patience == 1 else f"{patience} validations"
        return f"{name} was not better than {self.best:.4f} in the last {validations}; validation.patience={patience}"

    def update_best(self, metrics: Mapping[str, float]) -> bool:
        """Whether this validation is the best so far, which is then remembered."""
        name, mode = self.recipe.monitor
        value, best = metrics[name], self.best
        is_best = best is None or best != best or (value < best if mode == "min" else value > best)
        self.best, self.num_worse = (value, 0) if is_best else (best, self.num_worse + 1)
        return is_best

    @property
    def has_failed(self) -> bool:
        """Whether the state could not be saved; `wait` raises the error."""
        return self._pending is not None and self._pending.done() and self._pending.exception() is not None

    def wait(self) -> None:
        """Wait until what was last saved is on disk.

        Raises:
            InvalidFile: If it could not be written.
        """
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def save_state(
        self,
        step: int,
        fields: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        model: Model,
        tokenizer: Tokenizer,
        group: ProcessGroup | None = None,
    ) -> None:
        """Copy the training state and the weights of a step, and start to write the state and then ``last``.

        The processes of a group write their parts of the state; without one, process 0 writes all.
        """
        fields = {"step": step, **fields, "best": self.best, "num_worse": self.num_worse}
        tensors = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        last = whole_model(model) if is_divided(model) else _with_weights(model, tensors)
        last = last if rank_zero_only.rank == 0 else None
        self._pending = self._thread.submit(self._write, fields, tensors, last, tokenizer, group)
        self.saved_at = time.monotonic()

    def _write(
        self,
        fields: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        last: Model | None,
        tokenizer: Tokenizer,
        group: ProcessGroup | None,
    ) -> None:
        if group is not None or rank_zero_only.rank == 0:
            with self._report_save_errors(state_folder(self.folder, fields["step"])):
                save_state(self.folder, fields, tensors, group)
        self.saved_step = fields["step"]
        if last is not None:  # after the state: a run with models and no state cannot be resumed
            self.save_model("last", last, tokenizer)

    def save_model(self, name: str, model: Model, tokenizer: Tokenizer) -> None:
        """Save a model into a folder of the run, ``last``, ``best`` or ``averaged``; all processes must call it."""
        model = whole_model(model)
        if rank_zero_only.rank:
            return
        with self._report_save_errors(self.folder / name):
            save_model(self.folder / name, model, tokenizer, format=self.config.format)

    def save_snapshot(self, step: int, model: Model, tokenizer: Tokenizer) -> None:
        """Save the weights of a step, and the mean of those that are kept as ``averaged``; all processes must call."""
        model = whole_model(model)
        if rank_zero_only.rank:
            return
        with self._report_save_errors(self.snapshots.folder):
            self.snapshots.save(model, step)
            mean = self.snapshots.load_mean(copy.deepcopy(model))
        self.save_model("averaged", mean, tokenizer)

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


def _with_weights(model: Model, tensors: Mapping[str, Tensor]) -> Model:
    """A copy of a model whose weights are those of a training state."""
    weights = {id(weight): nn.Parameter(tensors[f"model.{name}"]) for name, weight in model.named_parameters()}
    return copy.deepcopy(model, weights)


def random_state(device: torch.device) -> torch.Tensor:
    """The states of torch's generators as bytes, on the CPU: of the CPU and of this process's GPU."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return torch.cat(states)


def set_random_state(state: torch.Tensor, device: torch.device) -> None:
    """Continue with states that `random_state` returned."""
    size = torch.get_rng_state().numel()
    torch.set_rng_state(state[:size].clone())  # torch 2.13 crashes at a state that does not begin its storage
    if device.type == "cuda" and state.numel() > size:
        torch.cuda.set_rng_state(state[size:].clone(), device)
