"""Training from a recipe: one call that starts, resumes and ends a run."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import lightning as L
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.strategies import DDPStrategy
from rich.console import Console
from rich.logging import RichHandler

from regard.errors import InvalidCheckpoint, InvalidRecipe
from regard.training import recipe as recipes
from regard.training.callbacks.checkpoints import Checkpoints, TrainingInterrupted
from regard.training.callbacks.early_stopping import EarlyStopping
from regard.training.callbacks.progress import ProgressLogger
from regard.training.checkpoint_io import FILE as STATE
from regard.training.checkpoint_io import AtomicCheckpointIO
from regard.training.csv_logger import ResumableCSVLogger
from regard.training.recipe import Recipe
from regard.training.run_folder import Progress, run_folder

log = logging.getLogger("regard.training")
_PARTS = ("state_dict", "loops", "optimizer_states", "lr_schedulers", "sums", "random", "best")


@dataclass(frozen=True)
class TrainResult:
    """How a training ended.

    Args:
        output_dir: The run folder; the models are in ``last/``, ``best/`` (with validation) and ``averaged/`` (with
            ``checkpoint.average_last``).
        step: The last step.
        interrupted: Whether Ctrl-C or SIGTERM ended it; the last step is saved then, too, unless the signal came twice.
        best_metric: The best value of ``validation.monitor``; None without validation.
    """

    output_dir: Path
    step: int
    interrupted: bool
    best_metric: float | None


def train(recipe: Recipe, *, resume: bool = False) -> TrainResult:
    """Train a model as a recipe says.

    Args:
        recipe: The recipe.
        resume: Go on from the last saved state in the run folder. On a CPU with as many threads this gives, bit for
            bit, what the training would have given if it had not been stopped. Where no state was saved yet, it starts
            anew.

    Returns:
        How it ended.

    Raises:
        InvalidArgument: If the run folder holds a training and ``resume`` is not asked for, or the reverse; if it holds
            files that the run would overwrite; or if another training is using it.
        InvalidRecipe: If a resumed run would become another, or if there is no such device.
        InvalidFile: If data cannot be read, or something cannot be saved.
        InvalidCheckpoint: If the saved state is damaged.
    """
    with run_folder(recipe.output_dir, resume=resume) as progress:
        return _train(recipe, progress, resume=resume)


def _train(recipe: Recipe, progress: Progress, *, resume: bool) -> TrainResult:
    state = recipe.output_dir / STATE
    if resume:
        recipes.check_resumable(recipe)
    step = _saved_step(state) if state.is_file() else 0
    checkpoints = Checkpoints(recipe, step)
    with _told(recipe.output_dir) as console:
        trainer = _trainer(recipe, console, checkpoints, step)
        data, module = recipe.parts()
        if resume:
            log.info("resuming at step %d", step)
        try:
            with checkpoints.stop_on_signals():
                trainer.fit(module, datamodule=data, ckpt_path=state if step else None, weights_only=True)
        except TrainingInterrupted:
            step = checkpoints.saved_step
            log.info(
                "stopped; %s", f"--resume goes on from step {step}, which is saved" if step else "nothing was saved"
            )
            return TrainResult(recipe.output_dir, step, True, checkpoints.best)
        finally:
            progress.has_started = checkpoints.started
        log.info("done at step %d: the models lie in %s", trainer.global_step, recipe.output_dir)
    return TrainResult(recipe.output_dir, trainer.global_step, False, checkpoints.best)


def _saved_step(path: Path) -> int:
    state = AtomicCheckpointIO().load_step(path)
    missing = [part for part in _PARTS if not isinstance(state, dict) or part not in state]
    step = None if missing else state.get("global_step")
    if not isinstance(step, int):
        raise InvalidCheckpoint(f"{path}: holds no training state: {', '.join(missing) or 'global_step'} is missing")
    return step


def _trainer(recipe: Recipe, console: Console, checkpoints: Checkpoints, step: int) -> L.Trainer:
    keys, validation = recipe.trainer, recipe.validation
    metrics = ResumableCSVLogger(recipe.output_dir, recipe.columns)
    metrics.cut_back(step)
    callbacks: list[L.Callback] = [ProgressLogger(keys.log_every_n_steps, recipe.losses, recipe.told, console)]
    if recipe.validates and validation.patience is not None:
        monitor, mode = recipe.monitored
        callbacks.append(EarlyStopping(monitor, patience=validation.patience, mode=mode))
    # torchrun has decided how many processes there are
    devices = os.environ.get("LOCAL_WORLD_SIZE") if keys.devices == "auto" else keys.devices
    several = int(os.environ.get("WORLD_SIZE", 1)) > 1 or keys.num_nodes > 1
    if keys.devices == "auto":
        several |= keys.accelerator != "cpu" and torch.cuda.device_count() > 1
    else:
        several |= keys.devices > 1
    # buffers are tables of positions, which follow from the longest sequence that a process met: each has its own
    strategy = DDPStrategy(broadcast_buffers=False) if several else "auto"
    build = partial(
        L.Trainer,
        accelerator=keys.accelerator,
        devices=int(devices) if devices else "auto",
        num_nodes=keys.num_nodes,
        strategy=strategy,
        precision=keys.precision,
        max_steps=keys.max_steps,
        max_epochs=-1,
        # Lightning fetches one batch ahead of training if it knows no length, and a saved state would skip it.
        limit_train_batches=2**31,
        accumulate_grad_batches=keys.accumulate_grad_batches,
        val_check_interval=validation.every_n_steps * keys.accumulate_grad_batches,
        check_val_every_n_epoch=None,
        limit_val_batches=1.0 if recipe.validates else 0,
        num_sanity_val_steps=0,
        logger=[metrics, TensorBoardLogger(recipe.output_dir, name="", version="tensorboard", purge_step=step + 1)],
        callbacks=[*callbacks, checkpoints],
        plugins=[AtomicCheckpointIO()],
        default_root_dir=recipe.output_dir,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    try:
        return build()
    except MisconfigurationException as error:
        asked = f"trainer.accelerator {keys.accelerator!r} with trainer.devices {keys.devices!r}"
        raise InvalidRecipe(f"{asked} cannot be had here: {str(error).strip().splitlines()[0]}") from error


@contextmanager
def _told(run: Path) -> Iterator[Console]:
    """Tell what happens on the console and in ``train.log``, from the first process, without lightning's own talk."""
    console = Console(stderr=True)
    handlers: list[logging.Handler] = []
    if rank_zero_only.rank == 0:
        handlers = [
            RichHandler(console=console, show_level=False, show_path=False)
            if console.is_terminal
            else logging.StreamHandler(),
            logging.FileHandler(run / "train.log", encoding="utf-8"),
        ]
        handlers[1].setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    level, lightning = log.level, logging.getLogger("lightning.pytorch")
    lightning_level = lightning.level
    for handler in handlers:
        log.addHandler(handler)
    propagate, log.propagate = log.propagate, False  # a configured root logger would print each line again
    log.setLevel(logging.INFO)
    lightning.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The '.*_dataloader' does not have many workers")
            warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated")
            yield console
    finally:
        lightning.setLevel(lightning_level)
        log.setLevel(level)
        log.propagate = propagate
        for handler in handlers:
            log.removeHandler(handler)
            handler.close()
