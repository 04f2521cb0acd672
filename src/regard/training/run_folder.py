"""The run folder: its files, and a lock, so that one run at a time uses it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from lightning_fabric.utilities.rank_zero import rank_zero_only

from regard.errors import InvalidArgument, InvalidFile, raise_problems
from regard.files import remove_leftovers
from regard.training.metrics_file import METRICS_FILE
from regard.training.recipe_file import RECIPE_FILE, is_copy
from regard.training.state import STATE_FOLDER, has_state

LOCK_FILE = ".lock"
MODELS = ("last", "best", "averaged")
OUTPUTS = (RECIPE_FILE, STATE_FOLDER, METRICS_FILE, "train.log", "tensorboard", "data", "snapshots", *MODELS)
"""What a run writes into its folder."""


@contextmanager
def run_folder(folder: Path, *, resume: bool) -> Iterator[None]:
    """Create and lock a run folder; if a new run fails before it has metrics, remove its files.

    The operating system releases the lock of a killed process. A folder belongs to a run if it has the unchanged copy
    of a recipe; in other folders no file that a run would write may exist.

    Args:
        folder: The run folder.
        resume: Whether the run is resumed.

    Raises:
        InvalidArgument: If the folder holds another run or files that the run would overwrite; if there is nothing to
            resume; or if another process is using the folder.
        InvalidFile: If the folder cannot be created, or it or a folder in it cannot be written.
    """
    if rank_zero_only.rank:  # rank 0 does this for all processes
        yield
        return
    check_folder(folder, resume=resume)
    is_new, had_lock = not (folder / RECIPE_FILE).is_file(), (folder / LOCK_FILE).exists()
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK_FILE, timeout=0)
        lock.acquire()
    except Timeout:
        message = f"{folder}: another training is using this folder; wait until it ends, or choose another output_dir"
        raise InvalidArgument(message) from None
    except OSError as error:
        path, done = (folder / LOCK_FILE, "written") if folder.is_dir() else (folder, "created")
        raise InvalidFile(f"{path}: could not be {done}: {error.strerror}") from error
    for path in (folder, folder / "data", *(folder / name for name in MODELS), *folder.glob("snapshots/step-*")):
        remove_leftovers(path, locked=True)  # of a killed run, whose workers can outlive it for some seconds
    try:
        yield
    except Exception:
        if is_new and not (folder / METRICS_FILE).exists():
            for path in (folder / name for name in OUTPUTS):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
        raise
    finally:
        lock.release()
        if is_new and not (folder / RECIPE_FILE).is_file():
            if not had_lock:
                (folder / LOCK_FILE).unlink(missing_ok=True)
            for path in missing:
                with suppress(OSError):  # not empty
                    path.rmdir()


def check_folder(folder: Path, *, resume: bool) -> None:
    """Check that a run can use a folder.

    Raises:
        InvalidArgument: As `run_folder`.
        InvalidFile: If it or a folder in it cannot be written.
    """
    other = "choose another output_dir"
    if folder.exists() and not folder.is_dir():
        raise InvalidArgument(f"output_dir: expected a folder, got the file {folder}; {other}")
    expected = f"expected a folder that can be written, got a read-only one; change its permissions, or {other}"
    for folders in ([folder], [folder / name for name in OUTPUTS]):
        read_only = [path for path in folders if path.is_dir() and not _is_writable(path)]
        raise_problems([f"{path}: {expected}" for path in read_only], InvalidFile)
    recipe = folder / RECIPE_FILE
    has_models = any((folder / name).is_dir() for name in MODELS)
    if resume and not recipe.is_file():
        start = "start the training without --resume (Python: resume=False)"
        raise InvalidArgument(f"{folder}: expected a run to resume, got no {RECIPE_FILE}; {start}")
    if has_state(folder):
        if not resume:
            resume_it = "add --resume (Python: resume=True) to continue it"
            raise InvalidArgument(f"{folder}: expected an empty folder, got a run; {resume_it}, or {other}")
        return
    if resume and (folder / "last").is_dir():  # saved after the first state; a kill can leave `best` without one
        state = folder / STATE_FOLDER
        raise InvalidArgument(f"{state}: no complete state, but there are models; the run cannot be resumed: {other}")
    if has_models and not resume:
        raise InvalidArgument(f"{folder}: expected an empty folder, got the models of a run; {other}")
    if recipe.is_file() and not is_copy(recipe):
        raise InvalidArgument(f"{recipe}: expected the copy of a recipe, got a file that would be overwritten; {other}")
    files = [name for name in OUTPUTS if (folder / name).exists()]
    if files and not recipe.is_file():
        raise InvalidArgument(f"{folder}: expected no {', '.join(files)}, which the run would overwrite; {other}")


def _is_writable(folder: Path) -> bool:
    """Whether this process can list, read and write the files of a folder."""
    return os.access(folder, os.R_OK | os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)
