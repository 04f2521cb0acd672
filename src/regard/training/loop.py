"""`train`: a run from its recipe to its models. `_Run` is one from top to bottom."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT, SIGTERM, Signals
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies.ddp import DDPStrategy
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.rank_zero import rank_zero_only
from rich.console import Console
from torch import Tensor, nn

from regard.errors import InvalidArgument, InvalidCheckpoint, InvalidRecipe, InvalidType, short_repr
from regard.files import naming
from regard.input_files import exists
from regard.training.interrupt import Interrupt, TrainingInterrupted
from regard.training.optimizer import build_optimizer, check_finite, lr_factor
from regard.training.progress import ProgressLogger
from regard.training.recipe import Recipe
from regard.training.recipe_file import check_resumable, write_recipe
from regard.training.run_data import build_loaders, open_data, prepare_data
from regard.training.run_folder import run_folder
from regard.training.run_log import logging_to
from regard.training.saving import Saver, random_state, set_random_state
from regard.training.state_file import STATE_FILE, load_state, saved_step
from regard.training.tasks.base import Task

log = logging.getLogger("regard.training")


@dataclass(frozen=True)
class TrainResult:
    """The end of a training.

    Args:
        output_dir: The run folder; the models are in ``last/``, ``best/`` (with validation) and ``averaged/`` (with
            ``checkpoint.average_last``).
        step: The last saved step.
        best_metric: The best value of ``validation.monitor``; None without validation.
        signal: The signal that stopped it, SIGINT (Ctrl-C) or SIGTERM; None if it is finished. The last step is saved
            then, too, unless the signal came twice.
    """

    output_dir: Path
    step: int
    best_metric: float | None
    signal: Signals | None = None


def train(recipe: Recipe, *, resume: bool = False) -> TrainResult:
    """Train a model from a recipe.

    Args:
        recipe: The recipe.
        resume: Continue from the last training state in the run folder. On a CPU with the same number of threads, the
            weights are bit-identical to those of an uninterrupted run. Without a state the run starts from the
            beginning.

    Returns:
        The last step and the best metric.

    Raises:
        InvalidType: If the recipe is not a `Recipe`.
        InvalidArgument: If the run folder holds a run and ``resume`` is False, or the reverse; if it holds files that
            the run would overwrite; or if another process is using it.
        InvalidRecipe: If a resumed run has other keys or data, or a device is not available.
        InvalidFile: If data cannot be read, or a file cannot be written.
        InvalidCheckpoint: If the training state or a pretrained model is damaged.
        TrainingDiverged: If the weights are not finite.
    """
    if not isinstance(recipe, Recipe):
        raise InvalidType(f"recipe: expected a Recipe, got {short_repr(recipe)}; use load_recipe or Recipe.from_dict")
    recipe.check_files()
    with run_folder(recipe.output_dir, resume=resume):
        return _train(recipe, resume=resume)


def _train(recipe: Recipe, *, resume: bool) -> TrainResult:
    folder, state, max_steps = recipe.output_dir, recipe.output_dir / STATE_FILE, recipe.trainer.max_steps
    if resume:
        check_resumable(recipe)
    start = saved_step(state) if exists(state) else 0
    if not start and rank_zero_only.rank == 0:
        write_recipe(recipe)  # before all other files, because it makes the folder that of a run
    saver = Saver(recipe, start)
    with logging_to(folder) as console, Interrupt() as interrupt, naming(folder):  # TensorBoard does not name its file
        if resume and not start:
            log.info("nothing was saved before: starting from the beginning")
        try:
            run = _Run(recipe, saver, interrupt, console, start)
            run.fit()
        except TrainingInterrupted:
            step, number = saver.saved_step, interrupt.signal or SIGTERM  # of another process
            hint = f"--resume continues from step {step}" if step else "nothing was saved"
            log.info("stopped by %s; %s", "Ctrl-C" if number == SIGINT else number.name, hint)
            return TrainResult(folder, step, saver.best, number)
        if start == run.step:
            key = "validation.patience" if saver.is_patience_over and start < max_steps else "trainer.max_steps"
            log.info("already finished at step %d; to continue, raise %s", start, key)
        else:
            if saver.is_patience_over:
                log.info("stopped early at step %d: %s", run.step, saver.describe_patience())
            log.info("finished at step %d: the models are in %s", run.step, folder)
    return TrainResult(folder, run.step, saver.best)


class _Run:
    """A training: set up, steps, validations, and what is saved and restored.

    Args:
        recipe: The recipe.
        saver: Saves the training state and the models.
        interrupt: Says whether a signal has arrived.
        console: Where the progress bar is drawn.
        step: The step of the training state that it starts from, or 0.
    """

    def __init__(self, recipe: Recipe, saver: Saver, interrupt: Interrupt, console: Console, step: int) -> None:
        self.recipe, self.saver, self.interrupt, self.step = recipe, saver, interrupt, step
        self.fabric = fabric = make_fabric(recipe)
        fabric.launch()
        log.info(recipe.describe_export())
        self.task = task = recipe.build_task()
        with fabric.rank_zero_first():  # which waits longer than other barriers
            if fabric.is_global_zero:
                prepare_data(task)
        if not fabric.is_global_zero:
            open_data(task)
        torch.manual_seed(recipe.seed)  # of the initial weights
        self.model = task.build_model()
        log.info("model: %d parameters", sum(parameter.numel() for parameter in self.model.parameters()))
        self.loader, self.valid_loader = build_loaders(task, fabric)
        self.losses = fabric.setup_module(_Losses(task, self.model))
        self.optimizer: Any = fabric.setup_optimizers(build_optimizer(self.model, recipe.optimizer))
        self.progress = ProgressLogger(recipe, console, fabric, step)

    def fit(self) -> None:
        """Train until the last step, or until validations get no better.

        Raises:
            TrainingInterrupted: After a signal, when the step is saved.
        """
        max_steps, validation = self.recipe.trainer.max_steps, self.recipe.validation
        torch.manual_seed(self.recipe.seed + self.fabric.global_rank + self.step)  # of dropout
        if self.step:
            self.restore()
        self.saver.start(self.step)
        self.interrupt.has_started = True
        first = self.step
        with self.progress:
            batches = iter(self.loader)
            while self.step < max_steps and not self.saver.is_patience_over:
                self.take_step(batches)
                is_last = self.step >= max_steps
                if self.recipe.has_validation and (is_last or self.step % validation.every_n_steps == 0):
                    self.validate()
                self.save_what_is_due()
        if self.step == first:  # a run that was killed after its last state lacks its last model
            self.saver.save_model("last", self.model, self.task.tokenizer)

    def take_step(self, batches: Iterator[Any]) -> None:
        """Update the weights once.

        A step with k batches on each of W processes has the gradient of Σᵢ nᵢ lossᵢ / Σᵢ nᵢ, where batch i has nᵢ
        targets: how targets are divided into batches does not matter. Gradients of processes are averaged, so lossᵢ is
        multiplied by W nᵢ / Σᵢ nᵢ.
        """
        recipe, fabric = self.recipe, self.fabric
        parts = [fabric.to_device(next(batches)) for _ in range(recipe.trainer.accumulate_grad_batches)]
        total: Any = float(sum(batch.num_targets for batch in parts))
        if fabric.world_size > 1:
            total = fabric.all_reduce(torch.tensor(total), reduce_op="sum")
        self.losses.train()
        for number, batch in enumerate(parts, start=1):
            with fabric.no_backward_sync(self.losses, enabled=number < len(parts)):
                loss, *others = values = self.losses(batch)
                for value, weight in zip(others, recipe.loss_weights.values(), strict=True):
                    loss = loss + weight * value
                if len(parts) * fabric.world_size > 1:
                    loss = loss * (fabric.world_size * batch.num_targets / total)
                fabric.backward(loss)
            self.progress.add([value.detach() for value in values], batch.num_targets)
        if recipe.optimizer.max_grad_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), recipe.optimizer.max_grad_norm)
        learning_rate = recipe.optimizer.learning_rate * lr_factor(
            self.step, recipe.optimizer, recipe.trainer.max_steps
        )
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        if not self.progress.end_step(self.step, self.loader.sampler.epoch, learning_rate):
            check_finite(self.model, self.step)

    def validate(self) -> None:
        """Log the metrics of the validation data, and save the weights if they are the best so far."""
        check_finite(self.model, self.step)
        self.losses.eval()
        sums: Any = torch.zeros(0)
        with torch.inference_mode(), self.fabric.autocast():
            for batch in self.valid_loader or ():
                values = self.task.validation_sums(self.model, self.fabric.to_device(batch))
                row = torch.tensor([float(value) for value in values], dtype=torch.float64)
                sums = sums + row if sums.numel() else row
            if self.fabric.world_size > 1:
                sums = self.fabric.all_reduce(sums, reduce_op="sum")
            metrics = self.task.compute_metrics(self.model, sums.tolist())
        units = {metric.name: metric.unit for metric in self.recipe.metrics}
        if missing := [name for name in metrics if name not in units]:
            name = f"{type(self.recipe).__name__}.metrics"
            raise InvalidArgument(f"{name}: expected all that compute_metrics returns, got no {', '.join(missing)}")
        texts = [f"valid loss {metrics['valid_loss']:.4f}"]
        for name in [name for name in metrics if name != "valid_loss"]:
            texts.append(f"{name.replace('_', ' ')} {metrics[name]:.4g}{units[name]}")
        log.info("step %d: %s", self.step, ", ".join(texts))
        self.progress.log(metrics)
        self.progress.restart_clock()
        if self.saver.is_best(metrics):
            self.saver.save_model("best", self.model, self.task.tokenizer)

    def save_what_is_due(self) -> None:
        """Save at the end of a step.

        Raises:
            TrainingInterrupted: After a signal.
        """
        config, step = self.recipe.checkpoint, self.step
        is_interrupted, is_late = self._in_any_process(self.interrupt.signal is not None, self.saver.is_late)
        is_end = step >= self.recipe.trainer.max_steps or self.saver.is_patience_over or is_interrupted
        is_due = step % config.every_n_steps == 0 or is_late or is_end
        is_snapshot_due = config.average_last and step % config.snapshot_every_n_steps == 0
        if is_due or is_snapshot_due:
            check_finite(self.model, step)
        if is_snapshot_due:
            self.saver.save_snapshot(step, self.model, self.task.tokenizer)
        if is_due:
            self.saver.save_state(step, self.state())
            self.saver.save_model("last", self.model, self.task.tokenizer)
        if is_interrupted:
            raise TrainingInterrupted

    def state(self) -> dict[str, Any]:
        """All that `restore` needs."""
        random: Any = self.fabric.all_gather(random_state(self.fabric.device))
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "loader": self.loader.state_dict(),
            "losses": self.progress.state(),
            "random": random.reshape(self.fabric.world_size, -1).cpu(),
        }

    def restore(self) -> None:
        """Continue from the training state.

        Raises:
            InvalidCheckpoint: With every tensor that does not fit the model.
        """
        path = self.recipe.output_dir / STATE_FILE
        state = load_state(path)
        try:
            self.model.load_state_dict(state["model"])
        except RuntimeError as error:  # lists the tensors
            raise InvalidCheckpoint(f"{path}: expected a training state of this model, got another: {error}") from None
        self.optimizer.load_state_dict(state["optimizer"])
        self.loader.load_state_dict(state["loader"])
        self.progress.load_state(state["losses"])
        self.saver.best, self.saver.num_worse = state["best"], state["num_worse"]
        if len(state["random"]) == self.fabric.world_size:
            set_random_state(state["random"][self.fabric.global_rank], self.fabric.device)
        log.info("resuming at step %d", self.step)

    def _in_any_process(self, *flags: bool) -> list[bool]:
        if self.fabric.world_size == 1:
            return list(flags)  # without waiting for the device
        totals: Any = self.fabric.all_reduce(torch.tensor(flags, dtype=torch.float32), reduce_op="sum")
        return [bool(total) for total in totals.tolist()]


class _Losses(nn.Module):
    """A model with its losses, so that a step is one forward pass of one module, whatever the strategy."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__()
        self.task, self.model = task, model

    def forward(self, batch: Any) -> list[Tensor]:
        return list(self.task.losses(self.model, batch).values())


def make_fabric(recipe: Recipe) -> Fabric:
    """The processes, devices and precision of a recipe.

    Raises:
        InvalidRecipe: If a device is not available.
    """
    config = recipe.trainer
    is_cpu = config.accelerator == "cpu" or (config.accelerator == "auto" and not torch.accelerator.is_available())
    available = max(1, os.cpu_count() or 1)
    if is_cpu and config.devices != "auto" and config.devices > available:  # Lightning counts GPUs only
        expected = f"expected at most {available}, the number of CPUs of this machine"
        raise InvalidRecipe(f"trainer.devices: {expected}, got {config.devices}")
    # torchrun has decided the number of processes
    devices = os.environ.get("LOCAL_WORLD_SIZE", "auto") if config.devices == "auto" else config.devices
    num_nodes = _num_nodes() if config.num_nodes == "auto" else config.num_nodes
    num_devices = devices if devices != "auto" else torch.cuda.device_count() if not is_cpu else 1
    is_distributed = int(os.environ.get("WORLD_SIZE", 1)) > 1 or num_nodes > 1 or int(num_devices) > 1
    try:
        return Fabric(
            accelerator=config.accelerator,
            devices=devices if devices == "auto" else int(devices),
            num_nodes=num_nodes,
            # buffers are tables of positions, as long as the longest sequence of a process
            strategy=DDPStrategy(broadcast_buffers=False) if is_distributed else "auto",
            precision=config.precision,
        )
    except (MisconfigurationException, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        got = f"{short_repr(config.accelerator)} with trainer.devices {short_repr(config.devices)}"
        raise InvalidRecipe(f"trainer.accelerator: expected an available device, got {got}: {reason}") from error


def _num_nodes() -> int:
    """The number of machines that torchrun or Slurm started processes on."""
    if "LOCAL_WORLD_SIZE" in os.environ:
        return int(os.environ.get("WORLD_SIZE", 1)) // int(os.environ["LOCAL_WORLD_SIZE"])
    return int(os.environ.get("SLURM_NNODES", 1)) if "SLURM_NTASKS" in os.environ else 1
