"""`train`: start, resume and finish a run."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT, SIGTERM, Signals

import lightning as L
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.strategies import DDPStrategy
from rich.console import Console
from rich.logging import RichHandler

from regard.errors import InvalidRecipe, InvalidType, short_repr
from regard.files import naming
from regard.input_files import exists
from regard.training.callbacks.checkpoints import Checkpoints
from regard.training.callbacks.early_stopping import EarlyStopping
from regard.training.callbacks.interrupt import Interrupt, TrainingInterrupted
from regard.training.callbacks.progress import ProgressLogger
from regard.training.checkpoint_io import STATE_FILE, AtomicCheckpointIO, saved_step
from regard.training.csv_logger import ResumableCSVLogger
from regard.training.datamodule import TaskDataModule
from regard.training.module import TaskModule
from regard.training.recipe import Recipe
from regard.training.recipe_file import check_resumable, write_recipe
from regard.training.recipe_sections import TrainerConfig
from regard.training.run_folder import run_folder

log = logging.getLogger("regard.training")
LOG_FILE = "train.log"


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
    state, folder = recipe.output_dir / STATE_FILE, recipe.output_dir
    if resume:
        check_resumable(recipe)
    step = saved_step(state) if exists(state) else 0
    if not step and rank_zero_only.rank == 0:
        write_recipe(recipe)  # before all other files, because it makes the folder that of a run
    interrupt = Interrupt()
    checkpoints = Checkpoints(recipe, interrupt, step)
    with logging_to(folder) as console:
        trainer = _build_trainer(recipe, console, interrupt, checkpoints, step)
        log.info(recipe.describe_export())
        task = recipe.build_task()
        module, data = TaskModule(task), TaskDataModule(task)
        if resume and not step:
            log.info("nothing was saved before: starting from the beginning")
        try:
            with interrupt.stop_on_signals(), naming(folder):  # TensorBoard's failures to write do not name a file
                trainer.fit(module, datamodule=data, ckpt_path=state if step else None, weights_only=True)
        except TrainingInterrupted:
            step, number = checkpoints.saved_step, interrupt.signal or SIGTERM  # of another process
            hint = f"--resume continues from step {step}" if step else "nothing was saved"
            log.info("stopped by %s; %s", "Ctrl-C" if number == SIGINT else number.name, hint)
            return TrainResult(folder, step, checkpoints.best, number)
        stopping = trainer.early_stopping_callback
        stopped = stopping if isinstance(stopping, EarlyStopping) and stopping.has_stopped else None
        if step == trainer.global_step:
            checkpoints.save_last(trainer, module)  # a run that was killed after its last state does not have it
            key = "trainer.max_steps" if stopped is None else "validation.patience"
            log.info("already finished at step %d; to continue, raise %s", step, key)
        else:
            if stopped is not None:
                log.info("stopped early at step %d: %s", trainer.global_step, stopped.reason)
            log.info("finished at step %d: the models are in %s", trainer.global_step, folder)
    return TrainResult(folder, trainer.global_step, checkpoints.best)


def _build_trainer(
    recipe: Recipe, console: Console, interrupt: Interrupt, checkpoints: Checkpoints, step: int
) -> L.Trainer:
    config, folder = recipe.trainer, recipe.output_dir
    metrics = ResumableCSVLogger(folder, [metric.name for metric in recipe.metrics])
    metrics.discard_after(step)
    callbacks: list[L.Callback] = [interrupt, ProgressLogger(recipe, console)]
    if recipe.has_validation and recipe.validation.patience is not None:
        monitor, mode = recipe.monitor
        callbacks.append(EarlyStopping(monitor, patience=recipe.validation.patience, mode=mode))
    _check_devices(config)
    # torchrun has decided the number of processes
    devices = os.environ.get("LOCAL_WORLD_SIZE", "auto") if config.devices == "auto" else config.devices
    try:
        return L.Trainer(
            accelerator=config.accelerator,
            devices=devices if devices == "auto" else int(devices),
            num_nodes=config.num_nodes,
            # buffers are tables of positions, as long as the longest sequence of a process
            strategy=DDPStrategy(broadcast_buffers=False) if _is_distributed(recipe) else "auto",
            precision=config.precision,
            max_steps=config.max_steps,
            max_epochs=-1,
            # Without a length, Lightning fetches one batch ahead of training, which a saved state would then skip.
            limit_train_batches=2**31,
            accumulate_grad_batches=config.accumulate_grad_batches,
            val_check_interval=recipe.validation.every_n_steps * config.accumulate_grad_batches,
            check_val_every_n_epoch=None,
            limit_val_batches=1.0 if recipe.has_validation else 0,
            num_sanity_val_steps=0,
            logger=[metrics, TensorBoardLogger(folder, name="", version="tensorboard", purge_step=step + 1)],
            callbacks=[*callbacks, checkpoints],
            plugins=[AtomicCheckpointIO()],
            default_root_dir=folder,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
        )
    except MisconfigurationException as error:
        reason = str(error).strip().splitlines()[0]
        got = f"{short_repr(config.accelerator)} with trainer.devices {short_repr(config.devices)}"
        raise InvalidRecipe(f"trainer.accelerator: expected an available device, got {got}: {reason}") from error


def _check_devices(config: TrainerConfig) -> None:
    """Refuse more processes than there are CPUs; Lightning itself counts GPUs only.

    Raises:
        InvalidRecipe: If there are too few CPUs.
    """
    is_cpu = config.accelerator == "cpu" or (config.accelerator == "auto" and not torch.accelerator.is_available())
    available = max(1, os.cpu_count() or 1)
    if is_cpu and config.devices != "auto" and config.devices > available:
        expected = f"expected at most {available}, the number of CPUs of this machine"
        raise InvalidRecipe(f"trainer.devices: {expected}, got {config.devices}")


def _is_distributed(recipe: Recipe) -> bool:
    config = recipe.trainer
    if int(os.environ.get("WORLD_SIZE", 1)) > 1 or config.num_nodes > 1:
        return True
    if config.devices == "auto":
        return config.accelerator != "cpu" and torch.cuda.device_count() > 1
    return config.devices > 1


@contextmanager
def logging_to(folder: Path) -> Iterator[Console]:
    """Log to the console and to ``train.log`` on rank 0, and silence Lightning's INFO messages."""
    console = Console(stderr=True)
    handlers: list[logging.Handler] = []
    if rank_zero_only.rank == 0:
        bar = RichHandler(console=console, show_level=False, show_path=False) if console.is_terminal else None
        with naming(folder / LOG_FILE):
            handlers = [bar or logging.StreamHandler(), _LogFile(folder / LOG_FILE, encoding="utf-8")]
        handlers[0].setLevel(logging.INFO)
        handlers[1].setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    lightning = logging.getLogger("lightning.pytorch")
    level, propagate, lightning_level = log.level, log.propagate, lightning.level
    for handler in handlers:
        log.addHandler(handler)
    log.setLevel(logging.DEBUG)  # debug messages are in the file only
    log.propagate = False  # a configured root logger would print each line again
    lightning.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The '.*_dataloader' does not have many workers")
            warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated")
            yield console
    finally:
        log.setLevel(level)
        log.propagate = propagate
        lightning.setLevel(lightning_level)
        for handler in handlers:
            log.removeHandler(handler)
            with naming(folder / LOG_FILE):  # what could not be written is tried again
                handler.close()


class _LogFile(logging.FileHandler):
    """A log that raises an `InvalidFile` when it cannot be written; logging prints a traceback and goes on."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - a method of logging
        error = sys.exception()
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        with naming(self.baseFilename):
            raise error
