"""`train`: a run from its recipe to its models. `_Run` is one from top to bottom."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGINT, SIGTERM, Signals
from typing import Any

import torch
from lightning_fabric.utilities.rank_zero import rank_zero_only
from rich.console import Console
from torch import Tensor, nn

from regard.errors import InvalidArgument, InvalidType, short_repr
from regard.files import naming
from regard.training.divided_model import is_divided, set_reordered, training_tensors
from regard.training.fabric import data_share, make_fabric, sum_over_data
from regard.training.interrupt import Interrupt, TrainingInterrupted
from regard.training.layers import prepare_layers
from regard.training.optimizer import build_optimizer, check_finite, clip_gradients, lr_factor
from regard.training.processes import Processes
from regard.training.progress import ProgressLogger
from regard.training.recipe import Recipe
from regard.training.recipe_file import check_resumable, values_without_paths, write_recipe
from regard.training.run_data import build_loaders, distribute_data
from regard.training.run_folder import run_folder
from regard.training.run_log import logging_to
from regard.training.saving import Saver, random_state, set_random_state
from regard.training.state import (
    PROCESS_PREFIX,
    SavedState,
    check_shards,
    check_tensors,
    find_state,
    load_tensors,
    state_folder,
)
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
        InvalidCheckpoint: If the training state or a pretrained model is damaged, or machines have different states.
        TrainingDiverged: If the weights are not finite.
        ProcessLost: If another process of the training has ended or does not answer.
    """
    if not isinstance(recipe, Recipe):
        raise InvalidType(f"recipe: expected a Recipe, got {short_repr(recipe)}; use load_recipe or Recipe.from_dict")
    with Processes() as processes:
        return train_with(processes, recipe, resume=resume)


def train_with(processes: Processes, recipe: Recipe, *, resume: bool) -> TrainResult:
    """Train as `train` does, as one of the processes."""
    folder, max_steps, saved, changes = recipe.output_dir, recipe.trainer.max_steps, None, list[str]()
    with ExitStack() as stack:
        with processes.together():
            if rank_zero_only.rank == 0:  # of the other processes, those that read the files check them
                recipe.check_files()
                stack.enter_context(run_folder(folder, resume=resume))
                if resume:
                    changes = check_resumable(recipe)
                saved = find_state(folder)
                if saved is None:
                    write_recipe(recipe)  # before all other files, because it makes the folder that of a run
            console = stack.enter_context(logging_to(folder))
            stack.enter_context(naming(folder))  # TensorBoard does not name its file
        saver = stack.enter_context(Saver(recipe, 0 if saved is None else saved.step))
        interrupt = stack.enter_context(Interrupt(is_first=rank_zero_only.rank == 0))
        if resume and saved is None:
            log.info("nothing was saved before: starting from the beginning")
        try:
            try:
                run = _Run(recipe, saver, interrupt, console, processes, saved)
                start = run.step
                if changes:
                    log.info("resumed with other keys: %s", ", ".join(changes))
                run.fit()
            except RuntimeError as error:
                processes.raise_lost(error)
                raise
        except TrainingInterrupted:
            saver.close()
            step, number = saver.saved_step, interrupt.signal or SIGTERM  # of another process
            hint = f"--resume continues from step {step}" if step else "nothing was saved"
            message = f"stopped by {'Ctrl-C' if number == SIGINT else number.name}; {hint}"
            log.info(message)
            if interrupt.is_immediate:
                processes.stop(message)
            return TrainResult(folder, step, saver.best, number)
        if start == run.step:
            key = "validation.patience" if saver.is_patience_over and start < max_steps else "trainer.max_steps"
            log.info("already finished at step %d; to continue, raise %s", start, key)
        else:
            if saver.is_patience_over:
                log.info("stopped early at step %d: %s", run.step, saver.describe_patience())
            log.info("finished at step %d: the models are in %s", run.step, folder)
        return TrainResult(folder, run.step, saver.best)


class _Losses(nn.Module):
    """A model with its losses: training and validation are forward passes of one module, whatever the strategy.

    In training they give the losses of a batch, in validation the numbers that are summed over all batches.
    """

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__()
        self.task, self.model = task, model

    def forward(self, batch: Any) -> Sequence[Any]:
        if self.training:
            return list(self.task.losses(self.model, batch).values())
        return self.task.validation_sums(self.model, batch)


class _Run:
    """A training: set up, steps, validations, and what is saved and restored.

    Args:
        recipe: The recipe.
        saver: Saves the training state and the models.
        interrupt: Says whether a signal has arrived.
        console: Where the progress bar is drawn.
        processes: The processes.
        saved: The training state that process 0 has found, or None.
    """

    def __init__(
        self,
        recipe: Recipe,
        saver: Saver,
        interrupt: Interrupt,
        console: Console,
        processes: Processes,
        saved: SavedState | None,
    ) -> None:
        self.recipe, self.saver, self.interrupt, self.processes = recipe, saver, interrupt, processes
        with processes.together():
            self.fabric = fabric = make_fabric(recipe)
        fabric.launch()
        processes.start(fabric)
        processes.check_same(values_without_paths(recipe), "recipe")
        saved = processes.broadcast(saved)
        self.step = 0 if saved is None else saved.step
        # machines may share the run folder under different names
        self.saved = saved = saved and replace(saved, folder=state_folder(recipe.output_dir, saved.step))
        on_machine = processes.gather(fabric.node_rank).count(fabric.node_rank)
        with processes.together():
            if saved is not None:
                check_shards(saved, fabric.local_rank, on_machine)
        log.info(recipe.describe_export())
        self.task = task = recipe.build_task()
        self.shares_folder = distribute_data(task, processes, fabric.node_rank, fabric.local_rank)
        with processes.together():
            torch.manual_seed(recipe.seed)  # of the initial weights
            self.model = task.build_model()
            log.info("model: %d parameters", sum(parameter.numel() for parameter in self.model.parameters()))
            prepare_layers(self.model, recipe.trainer)
            self.loader, self.valid_loader = build_loaders(task, fabric)
            self.progress = ProgressLogger(recipe, console, fabric, self.step)
        self.losses = fabric.setup_module(_Losses(task, self.model))
        with processes.together():
            if not self.shares_folder and is_divided(self.model):
                expected = "expected a folder that all machines share, as each writes its part of the training state"
                divided = recipe.trainer.tensor_parallel > 1
                instead = "trainer.tensor_parallel to 1" if divided else "trainer.strategy to ddp"
                raise InvalidArgument(f"{recipe.output_dir}: {expected}; share it, or set {instead}")
        self.optimizer: Any = fabric.setup_optimizers(build_optimizer(self.model, recipe.optimizer))

    def fit(self) -> None:
        """Train until the last step, or until validations get no better.

        Raises:
            TrainingInterrupted: After a signal, when the step is saved.
        """
        max_steps, validation = self.recipe.trainer.max_steps, self.recipe.validation
        torch.manual_seed(self.recipe.seed + data_share(self.fabric).rank + self.step)  # of dropout
        if self.saved is not None:
            self.restore(self.saved)
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
            with self.processes.together():
                self.saver.save_model("last", self.model, self.task.tokenizer)

    def take_step(self, batches: Iterator[Any]) -> None:
        """Update the weights once.

        A step with k batches of each of W shares of the data has the gradient of Σᵢ nᵢ lossᵢ / Σᵢ nᵢ, where batch i has
        nᵢ targets, such as tokens to predict: how targets are divided into batches does not matter. Fabric averages the
        gradients of the shares, so lossᵢ is multiplied by W nᵢ / Σᵢ nᵢ. Each process has a share, except that those
        which compute one model together (``trainer.tensor_parallel``) read the same batches.

        What changes gradients or weights after the backward pass must be equal in all processes, also random numbers:
        nothing brings weights together again that have drifted apart.

        Raises:
            TrainingDiverged: If the losses of a logged row and the weights are not finite.
        """
        recipe, fabric, num_shares = self.recipe, self.fabric, data_share(self.fabric).size
        parts = [fabric.to_device(next(batches)) for _ in range(recipe.trainer.accumulate_grad_batches)]
        total: Any = float(sum(batch.num_targets for batch in parts))
        if num_shares > 1:
            total = sum_over_data(fabric, torch.tensor(total))
        self.losses.train()  # in training, a forward pass of this module gives the losses of the task
        for number, batch in enumerate(parts, start=1):
            with fabric.no_backward_sync(self.losses, enabled=number < len(parts)):
                # means over the targets of the batch: the loss of the task, and those that the recipe adds
                loss, *others = values = self.losses(batch)
                for value, weight in zip(others, recipe.loss_weights.values(), strict=True):
                    loss = loss + weight * value
                if len(parts) * num_shares > 1:
                    loss = loss * (num_shares * batch.num_targets / total)
                fabric.backward(loss)
            self.progress.add([value.detach() for value in values], batch.num_targets)
        if recipe.optimizer.max_grad_norm:
            clip_gradients(self.model, recipe.optimizer.max_grad_norm)
        learning_rate = recipe.optimizer.learning_rate * lr_factor(
            self.step, recipe.optimizer, recipe.trainer.max_steps
        )
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        is_finite = self.progress.end_step(self.step, self.loader.sampler.epoch, learning_rate)
        if not is_finite:  # the losses of a row; a single loss may overflow while the weights are fine
            check_finite(self.model, self.step)

    def validate(self) -> None:
        """Log the metrics of the validation data, and save the weights if they are the best so far."""
        check_finite(self.model, self.step)
        self.losses.eval()
        sums: Any = torch.zeros(0)
        is_mixed = self.recipe.trainer.precision == "bf16-mixed"
        with torch.no_grad():
            for batch, counts in self.validation_batches():
                row = torch.tensor([float(value) for value in self.losses(batch)], dtype=torch.float64)
                if counts:
                    sums = sums + row if sums.numel() else row
            sums = sum_over_data(self.fabric, sums).tolist()
            # not fabric.autocast, with which new tensors of numbers are bfloat16, too, if weights are
            with torch.autocast(self.fabric.device.type, torch.bfloat16, enabled=is_mixed):
                metrics = self.task.compute_metrics(self.model, sums)
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
        if self.saver.update_best(metrics):
            with self.processes.together():
                self.saver.save_model("best", self.model, self.task.tokenizer)

    def validation_batches(self) -> Iterator[tuple[Any, bool]]:
        """This process's batches for validation, and whether they count.

        All processes compute equally many, because they may gather the weights of each layer from one another: the
        last batch is repeated by those that have one less.
        """
        batch = None
        for batch in self.valid_loader or ():
            yield self.fabric.to_device(batch), True
        if self.valid_loader is not None and data_share(self.fabric).size > 1:
            num_all, num_own = len(self.valid_loader.sampler.plan(0)), len(self.valid_loader.sampler)
            if num_own * data_share(self.fabric).size < num_all:
                yield self.fabric.to_device(batch), False

    def save_what_is_due(self) -> None:
        """Save at the end of a step.

        Raises:
            TrainingInterrupted: After a signal.
        """
        config, step = self.recipe.checkpoint, self.step
        is_interrupted, is_time_over, has_failed = self._in_any_process(
            self.interrupt.signal is not None, self.saver.is_time_over, self.saver.has_failed
        )
        is_end = step >= self.recipe.trainer.max_steps or self.saver.is_patience_over or is_interrupted
        is_due = step % config.every_n_steps == 0 or is_time_over or is_end
        is_snapshot_due = config.average_last and step % config.snapshot_every_n_steps == 0
        if is_due or has_failed:
            self.wait_for_saver()
        if is_due or is_snapshot_due:
            check_finite(self.model, step)
        if is_snapshot_due:
            with self.processes.together():
                self.saver.save_snapshot(step, self.model, self.task.tokenizer)
        if is_due:
            fields = {"num_processes": self.fabric.world_size, "loader": self.loader.state_dict()}
            tensors, group = training_tensors(self.model, self.optimizer.optimizer), self.processes.saving_group
            if self.shares_folder:
                tensors |= self.tensors_of_process()
            else:  # process 0 writes all
                group = None
                for each in self.processes.gather(self.tensors_of_process()):
                    tensors |= each
            self.saver.save_state(step, fields, tensors, self.model, self.task.tokenizer, group)
        if is_end:
            self.wait_for_saver()
        if is_interrupted:
            raise TrainingInterrupted

    def wait_for_saver(self) -> None:
        """Wait until what was saved before is on disk."""
        with self.processes.together():
            self.saver.wait()

    def tensors_of_process(self) -> dict[str, Tensor]:
        """What is continued only with the same number of processes: random states, and losses since the last row."""
        prefix = f"{PROCESS_PREFIX}{self.fabric.global_rank}"
        return {f"{prefix}.random": random_state(self.fabric.device), f"{prefix}.losses": self.progress.state()}

    def restore(self, saved: SavedState) -> None:
        """Continue from a training state.

        Raises:
            InvalidArgument: If processes and workers cannot continue the streams of a corpus.
            InvalidCheckpoint: With every tensor that does not fit the model.
        """
        of_process = self.tensors_of_process() if saved.num_processes == self.fabric.world_size else {}
        tensors = training_tensors(self.model, self.optimizer.optimizer)
        with self.processes.together():
            check_tensors(saved.folder, {**tensors, **of_process})
            self.loader.load_state_dict(saved.loader)
        load_tensors(saved.folder, {**tensors, **of_process})
        set_reordered(self.model, self.optimizer.optimizer, tensors)
        if of_process:
            random, losses = of_process.values()
            set_random_state(random, self.fabric.device)
            self.progress.load_state(losses)
        self.saver.best, self.saver.num_worse = saved.best, saved.num_worse
        log.info("resuming at step %d", self.step)

    def _in_any_process(self, *flags: bool) -> list[bool]:
        if self.fabric.world_size == 1:
            return list(flags)  # without waiting for the device
        totals: Any = self.fabric.all_reduce(torch.tensor(flags, dtype=torch.float32), reduce_op="sum")
        return [bool(total) for total in totals.tolist()]
