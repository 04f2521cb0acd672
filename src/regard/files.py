"""Atomic writes: files appear under their names only when they are complete and on disk.

Until then they have names that begin with ``.saving-``. The process that writes them holds a lock on them, which the
operating system releases when the process ends: what a killed process left has no lock, and the next write removes it.
"""

from __future__ import annotations

import hashlib
import io
import os
import secrets
import shutil
import stat
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from regard.errors import InvalidFile, InvalidType, short_repr

try:
    import fcntl
except ImportError:  # Windows, where open files cannot be removed and so need no lock
    fcntl = None

PREFIX = ".saving-"
"""Names of unfinished files and folders begin with it."""


def as_path(path: str | os.PathLike[str], name: str = "path") -> Path:
    """A path, or an error that names the argument.

    Raises:
        InvalidType: If it is neither a str nor a path.
    """
    if not isinstance(path, (str, os.PathLike)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidType(f"{name}: expected a path, got {short_repr(path)}")
    return Path(path)


@contextmanager
def atomic_write(path: str | os.PathLike[str], *, text: bool = False) -> Generator[IO[Any], None, None]:
    """Open a file for writing that replaces an existing one only when all is written and on disk.

    A link stays a link, and its target is replaced. Pipes and devices are written to directly. The permissions of an
    existing file stay; those of a new file are as the umask says. What a killed process left of an earlier write of
    this file is removed.

    Args:
        path: Path of the file.
        text: Whether to take str, written as UTF-8 with unchanged line ends. Default: bytes.

    Yields:
        The open file.

    Raises:
        InvalidFile: If the file cannot be opened, written or renamed. An existing file stays, and no partial file is
            left. Errors that the block itself raises propagate unchanged.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with atomic_write(f"{folder}/a.txt", text=True) as file:
        ...         file.write("whole")
        ...     Path(folder, "a.txt").read_text()
        5
        'whole'
    """
    is_special = os.path.exists(path) and not os.path.isfile(path)
    target = Path(os.path.realpath(path))
    with naming(path):
        raw = _NamedFile(path, "wb") if is_special else _create_part(target)
    raw.path = path
    part = None if is_special else Path(os.fsdecode(raw.name))
    try:
        with raw, io.BufferedWriter(raw) as file:
            wrapped = io.TextIOWrapper(file, encoding="utf-8", newline="") if text else file
            yield wrapped
            with naming(path):
                wrapped.flush()
                if part is not None:
                    os.fsync(raw.fileno())
                    if os.name == "nt":
                        file.close()  # Windows cannot rename an open file
                    part.replace(target)
    finally:
        if part is not None:
            with suppress(OSError):
                part.unlink()  # also at Ctrl-C; after the rename there is nothing left to remove


@contextmanager
def atomic_folder(folder: str | os.PathLike[str], *, remove: Sequence[str] = ()) -> Generator[Path, None, None]:
    """Create a staging folder whose files replace those in ``folder`` only when all are written and on disk.

    The files are renamed one after another, which needs no further space: a process killed between two renames leaves
    a mix of new and old files. Files in ``folder`` of other names stay, and so do the permissions of replaced files.

    Args:
        folder: Created if it is missing.
        remove: Relative paths of stale files: those that the block does not write are removed last.

    Yields:
        Path of the staging folder, inside ``folder``.

    Raises:
        InvalidFile: If the folder cannot be created or a file cannot be flushed or renamed. Nothing changes if writing
            fails. Errors that the block itself raises propagate unchanged.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with atomic_folder(folder) as staging:
        ...         (staging / "a.txt").write_text("whole")
        ...     os.listdir(folder)
        5
        ['a.txt']
    """
    folder = Path(folder)
    with staging_folder(folder) as staging:
        yield staging
        with naming(folder):
            written = sorted(path.relative_to(staging) for path in staging.rglob("*") if path.is_file())
            for path in written:
                _keep_mode(folder / path, staging / path)
                flush_to_disk(staging / path)
            for path in written:
                (folder / path).parent.mkdir(exist_ok=True)
                (staging / path).replace(folder / path)
            for path in {Path(name) for name in remove}.difference(written):
                (folder / path).unlink(missing_ok=True)
            flush_to_disk(folder)


@contextmanager
def staging_folder(folder: str | os.PathLike[str]) -> Generator[Path, None, None]:
    """Create a folder for unfinished files inside a folder; the end of the block removes it.

    What killed processes left in ``folder`` is removed first.

    Args:
        folder: Created if it is missing.

    Yields:
        Path of the new folder.

    Raises:
        InvalidFile: If a folder cannot be created. Errors that the block itself raises propagate unchanged.
    """
    folder = Path(folder)
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        staging, descriptor = _create_staging(folder)
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


def remove_leftovers(folder: str | os.PathLike[str], prefix: str = PREFIX, *, locked: bool = False) -> None:
    """Remove the unfinished files and folders in a folder that no living process writes.

    On Windows, unfinished folders stay: nothing says whether a process still uses them.

    Args:
        folder: The folder; its subfolders are not searched. Nothing happens if it does not exist.
        prefix: Beginning of the names. Default: of all unfinished files and folders.
        locked: Whether to remove also those with a lock, if no other process can be writing into the folder. The lock
            of a killed process stays as long as a process that it had forked.
    """
    with suppress(OSError):  # missing or unreadable
        for entry in [entry for entry in os.scandir(folder) if entry.name.startswith(prefix)]:
            with suppress(OSError):  # locked, removed by another process or not ours
                _remove_leftover(entry, locked=locked)


def _remove_leftover(entry: os.DirEntry[str], *, locked: bool) -> None:
    is_folder = entry.is_dir(follow_symlinks=False)
    if not is_folder and not entry.is_file(follow_symlinks=False):
        return
    if fcntl is None:
        if not is_folder:
            os.unlink(entry.path)  # fails if it is open
        return
    descriptor = os.open(entry.path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        if not locked:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_folder:
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            os.unlink(entry.path)
    finally:
        os.close(descriptor)


def _create_part(target: Path) -> _NamedFile:
    """Create and lock the unfinished file of a target, after removing those that killed processes left."""
    prefix = f"{PREFIX}{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:16]}-"  # a name may be too long to extend
    remove_leftovers(target.parent, prefix)
    while True:
        part = target.with_name(f"{prefix}{secrets.token_hex(8)}")
        file = _NamedFile(part, "xb")
        if _lock(file.fileno(), part):
            _keep_mode(target, part)
            return file
        file.close()


def _create_staging(folder: Path) -> tuple[Path, int | None]:
    """Create and lock a folder for unfinished files; without locks, there is no descriptor."""
    while True:
        staging = folder / f"{PREFIX}{secrets.token_hex(8)}"
        staging.mkdir(mode=0o700)
        if fcntl is None:
            return staging, None
        with suppress(FileNotFoundError):
            descriptor = os.open(staging, os.O_RDONLY)
            if _lock(descriptor, staging):
                return staging, descriptor
            os.close(descriptor)


def _lock(descriptor: int, path: Path) -> bool:
    """Lock a new file or folder; whether it still exists, or was removed as a leftover before it had its lock."""
    if fcntl is not None:
        with suppress(OSError):  # some network file systems have no locks, so that nothing is removed there either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    return path.exists()


def _keep_mode(old: Path, new: Path) -> None:
    """Give a new file the permissions of the one that it will replace, if there is one."""
    with suppress(FileNotFoundError):
        mode = stat.S_IMODE(old.stat().st_mode) & 0o777
        if mode != stat.S_IMODE(new.stat().st_mode):
            new.chmod(mode)


def flush_to_disk(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on disk."""
    if os.name == "nt" and path.is_dir():  # Windows cannot open folders
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _NamedFile(io.FileIO):
    """A file whose failures to write name the path that the user knows."""

    path: str | os.PathLike[str]

    def write(self, data: Any) -> int:
        with naming(self.path):
            return super().write(data)


@contextmanager
def naming(path: str | os.PathLike[str]) -> Generator[None, None, None]:
    """Turn an `OSError` into an `InvalidFile` that names the file or folder that could not be written."""
    try:
        yield
    except InvalidFile:
        raise
    except OSError as error:
        folder = Path(path).parent
        is_missing = isinstance(error, FileNotFoundError) and not folder.exists()
        reason = f"there is no folder {folder}; make it first" if is_missing else error.strerror or error
        raise InvalidFile(f"{path}: could not be written: {reason}") from error
