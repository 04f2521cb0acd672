"""The folder of a run: what a run may write there, and that only one run uses it at a time."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from lightning.fabric.utilities.rank_zero import rank_zero_only

from regard.errors import InvalidArgument, InvalidFile
from regard.training import recipe as recipes
from regard.training.checkpoint_io import FILE as STATE
from regard.training.csv_logger import FILE as METRICS

LOCK = ".lock"
MODELS = ("last", "best", "averaged")
OUTPUTS = (recipes.FILE, STATE, METRICS, "train.log", "tensorboard", "data", "snapshots", *MODELS)
"""What a run writes into its folder."""


@dataclass
class Progress:
    """Whether a run has started to train, after which nothing in its folder is removed."""

    has_started: bool = False


@contextmanager
def run_folder(run: Path, *, resume: bool) -> Iterator[Progress]:
    """Create the folder of a run and lock it; if the run fails before it starts to train, remove what it has written.

    The lock is the operating system's, so that a killed process does not hold it. A folder belongs to a run if it has a
    copy of a recipe, as the run wrote it. In others no file that a run would write may exist.

    Args:
        run: The folder.
        resume: Whether the run goes on from a saved state.

    Raises:
        InvalidArgument: If the folder holds another training, or files that the run would overwrite; if there is
            nothing to resume; or if another training is using the folder.
        InvalidFile: If the folder cannot be created.
    """
    if rank_zero_only.rank:  # the first process does it for all
        yield Progress()
        return
    _check(run, resume=resume)
    is_new = not (run / recipes.FILE).is_file()
    parents = [folder for folder in (run, *run.parents) if not folder.exists()]
    try:
        run.mkdir(parents=True, exist_ok=True)
        lock = FileLock(run / LOCK, timeout=0)
        lock.acquire()
    except Timeout:
        message = f"{run}: expected a folder that no training is using, got one in use; wait, or choose another folder"
        raise InvalidArgument(message) from None
    except OSError as error:
        raise InvalidFile(f"{run}: could not be created: {error.strerror}") from error
    progress = Progress()
    try:
        yield progress
    except Exception:
        if is_new and not progress.has_started:
            _remove_outputs(run)
        raise
    finally:
        lock.release()
        if is_new and not (run / recipes.FILE).is_file():  # the run has not begun
            (run / LOCK).unlink(missing_ok=True)
            for folder in parents:
                with suppress(OSError):  # not empty
                    folder.rmdir()


def _check(run: Path, *, resume: bool) -> None:
    recipe, state = run / recipes.FILE, run / STATE
    models = any((run / name).is_dir() for name in MODELS)
    if resume and not recipe.is_file():
        raise InvalidArgument(f"{run}: no training to resume there (no {recipes.FILE}); start it without resume")
    if resume and models and not state.is_file():
        raise InvalidArgument(
            f"{state}: is missing, though the run has saved models: it cannot go on; train in another run folder"
        )
    if not resume and models and not state.is_file():
        raise InvalidArgument(f"{run}: holds the models of a training already; give another run folder")
    if not resume and state.is_file():
        raise InvalidArgument(f"{run}: there is a training already; resume it, or give another run folder")
    if state.is_file():
        return
    if recipe.is_file() and not recipes.is_copy(recipe):
        raise InvalidArgument(
            f"{recipe}: the run would write its copy of the recipe over this file; give another run folder"
        )
    files = [name for name in OUTPUTS if (run / name).exists()]
    if files and not recipe.is_file():
        raise InvalidArgument(
            f"{run}: the run would overwrite {', '.join(files)}, which it did not write; give another run folder"
        )


def _remove_outputs(run: Path) -> None:
    """Remove what a run has written; none of it was there before."""
    for path in (run / name for name in OUTPUTS):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
