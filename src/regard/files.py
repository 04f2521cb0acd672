"""Files that appear under their name only when they are complete."""

from __future__ import annotations

import io
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from regard.errors import InvalidFile, InvalidType


def as_path(path: str | os.PathLike[str], name: str = "path") -> Path:
    """A path, or an error that names the argument.

    Raises:
        InvalidType: If it is neither a str nor a path.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidType(f"{name}: expected a path, got {path!r:.80}")
    return Path(path)


@contextmanager
def atomic_write(path: str | os.PathLike[str], *, text: bool = False) -> Iterator[IO[Any]]:
    """Open a file for writing that replaces an existing one only when all is written and on disk.

    A link stays a link, and its target is replaced. Pipes and devices are written to directly. The file gets the mode
    of a new file, as the umask says.

    Args:
        path: Path of the file.
        text: Whether to take str, written as UTF-8 with unchanged line ends. Default: bytes.

    Yields:
        The open file.

    Raises:
        InvalidFile: If the file cannot be opened, written or renamed. An existing file stays, and no partial file is
            left. Errors that the block itself raises propagate unchanged.

    Example:
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
    part = None if is_special else target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with _open(path, part or path, "wb" if is_special else "xb") as raw, io.BufferedWriter(raw) as file:
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
def _naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn an `OSError` into an `InvalidFile` that names the file."""
    try:
        yield
    except InvalidFile:
        raise
    except OSError as error:
        folder = Path(path).parent
        reason = error.strerror or error if folder.exists() else f"there is no folder {folder}; make it first"
        raise InvalidFile(f"{path}: could not be written: {reason}") from error
