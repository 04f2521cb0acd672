"""Folders of files that are made once and kept under a name that follows from what they were made of."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
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
