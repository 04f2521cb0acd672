"""Folders of files that are made once and kept under a name that follows from what they were made of."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

from regard.errors import InvalidFile


def cached(cache: Path, key: str, write: Callable[[Path], None]) -> Path:
    """The folder for a key, made if it is not there yet; it appears when it is complete, and not before.

    Args:
        cache: Where the folders lie.
        key: All that decides what they hold.
        write: Fills an empty folder.

    Raises:
        InvalidFile: If it cannot be written; what ``write`` raises of itself passes.
    """
    folder = cache / hashlib.sha256(key.encode()).hexdigest()[:16]
    if folder.is_dir():
        return folder
    draft = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        shutil.rmtree(draft, ignore_errors=True)  # of a process of the same number that was killed
        draft.mkdir(parents=True)
        write(draft)
        try:
            draft.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster
                raise
    except OSError as error:
        if isinstance(error, InvalidFile):
            raise
        raise InvalidFile(f"{folder}: the tokenized corpus could not be written: {error.strerror}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def hash_files(files: Sequence[str | Path]) -> str:
    """A digest of what files hold, wherever they lie.

    Raises:
        InvalidFile: If one cannot be read.
    """
    states = []
    for path in map(Path, files):
        try:
            state = path.stat()
        except OSError as error:
            reason = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
            raise InvalidFile(f"{path}: {reason}") from None
        states.append((path.absolute(), state.st_size, state.st_mtime_ns))
    return _digest(tuple(states))


@lru_cache(maxsize=16)
def _digest(states: tuple[tuple[Path, int, int], ...]) -> str:
    """The digest of files of these sizes and times of modification: a run asks for it several times."""
    total = hashlib.sha256()
    for path, _, _ in states:
        try:
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    total.update(block)
        except OSError as error:
            raise InvalidFile(f"{path}: cannot be read: {error.strerror}") from error
        total.update(b"\n")
    return total.hexdigest()
