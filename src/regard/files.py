"""Files that appear under their name when they are complete, and not before."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from regard.errors import InvalidFile, RegardError


@contextmanager
def atomic_write(path: str | os.PathLike[str], *, text: bool = False) -> Iterator[IO[Any]]:
    """Open a file for writing that replaces what is there only when all was written and has reached the disk.

    A link stays a link, and the file that it leads to is replaced. What exists and is no regular file, as a pipe or a
    device, is written into. The file's mode is that of any new file, as the umask has it.

    Args:
        path: Where the file shall lie.
        text: Take str and write it as UTF-8 with the line ends that it has; default: take bytes.

    Yields:
        The open file.

    Raises:
        InvalidFile: If it cannot be written; what was there stays, and nothing is left beside it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with atomic_write(f"{folder}/a.txt", text=True) as file:
        ...         file.write("whole")
        ...     Path(folder, "a.txt").read_text()
        5
        'whole'
    """
    options: dict[str, Any] = {"encoding": "utf-8", "newline": ""} if text else {}
    kind = "" if text else "b"
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, f"w{kind}", **options) as file:
                yield file
            return
        target = Path(os.path.realpath(path))
        part = target.with_name(f".{secrets.token_hex(8)}.part")
        try:
            with open(part, f"x{kind}", **options) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)  # also at Ctrl-C; once renamed there is nothing left to remove
    except RegardError:  # of the block that writes
        raise
    except OSError as error:
        folder = Path(path).parent
        reason = error.strerror or error if folder.exists() else f"there is no folder {folder}; make it first"
        raise InvalidFile(f"{path}: could not be written: {reason}") from error
