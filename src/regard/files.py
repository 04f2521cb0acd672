"""Atomic writes: files appear under their names only when they are complete and on disk."""

from __future__ import annotations

import io
import os
import secrets
import shutil
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from regard.errors import InvalidFile, InvalidType


def as_path(path: str | os.PathLike[str], name: str = "path") -> Path:
    """A path, or an error that names the argument.

    Raises:
        InvalidType: If it is neither a str nor a path.
    """
    if not isinstance(path, (str, os.PathLike)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidType(f"{name}: expected a path, got {path!r:.80}")
    return Path(path)


@contextmanager
def atomic_write(
    path: str | os.PathLike[str], *, text: bool = False, partial_name: str | None = None
) -> Generator[IO[Any], None, None]:
    """Open a file for writing that replaces an existing one only when all is written and on disk.

    A link stays a link, and its target is replaced. Pipes and devices are written to directly. The file gets the mode
    of a new file, as the umask says.

    Args:
        path: Path of the file.
        text: Whether to take str, written as UTF-8 with unchanged line ends. Default: bytes.
        partial_name: Name of the partial file, in the same folder. A killed process leaves it; the next write replaces
            it. Default: a random name, so that several processes can write the same file.

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
    part = None if is_special else target.with_name(partial_name or f".{secrets.token_hex(8)}.part")
    mode = "wb" if is_special or partial_name else "xb"
    try:
        with _open(path, part or path, mode) as raw, io.BufferedWriter(raw) as file:
            wrapped = io.TextIOWrapper(file, encoding="utf-8", newline="") if text else file
            yield wrapped
            with _naming(path):
                wrapped.flush()
                if part is not None:
                    os.fsync(raw.fileno())
                    part.replace(target)
    finally:
        if part is not None:
            with suppress(OSError):
                part.unlink()  # also at Ctrl-C; after the rename there is nothing left to remove


@contextmanager
def atomic_folder(folder: str | os.PathLike[str], *, remove: Sequence[str] = ()) -> Generator[Path, None, None]:
    """Create a staging folder whose files replace those in ``folder`` only when all are written and on disk.

    The files are renamed one after another, which needs no further space: a process killed between two renames leaves
    a mix of new and old files. Files in ``folder`` of other names stay.

    Args:
        folder: Created if it is missing.
        remove: Relative paths of stale files: those that the block does not write are removed last.

    Yields:
        Path of the staging folder, inside ``folder``.

    Raises:
        InvalidFile: If the folder cannot be created or a file cannot be flushed or renamed. Nothing changes if writing
            fails. Errors that the block itself raises propagate unchanged.

    Examples:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with atomic_folder(folder) as staging:
        ...         (staging / "a.txt").write_text("whole")
        ...     os.listdir(folder)
        5
        ['a.txt']
    """
    folder = Path(folder)
    with _naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".saving-", dir=folder))
    try:
        yield staging
        with _naming(folder):
            written = sorted(path.relative_to(staging) for path in staging.rglob("*") if path.is_file())
            for path in written:
                _flush_to_disk(staging / path)
            for path in written:
                (folder / path).parent.mkdir(exist_ok=True)
                (staging / path).replace(folder / path)
            for path in {Path(name) for name in remove}.difference(written):
                (folder / path).unlink(missing_ok=True)
            _flush_to_disk(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _flush_to_disk(path: Path) -> None:
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
        with _naming(self.path):
            return super().write(data)


def _open(path: str | os.PathLike[str], part: str | os.PathLike[str], mode: str) -> _NamedFile:
    with _naming(path):
        file = _NamedFile(part, mode)
    file.path = path
    return file


@contextmanager
def _naming(path: str | os.PathLike[str]) -> Generator[None, None, None]:
    """Turn an `OSError` into an `InvalidFile` that names the file or folder."""
    try:
        yield
    except InvalidFile:
        raise
    except OSError as error:
        folder = Path(path).parent
        is_missing = isinstance(error, FileNotFoundError) and not folder.exists()
        reason = f"there is no folder {folder}; make it first" if is_missing else error.strerror or error
        raise InvalidFile(f"{path}: could not be written: {reason}") from error
