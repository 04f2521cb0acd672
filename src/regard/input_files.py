"""Reading files: regular files only, and errors that name the file."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

from regard.errors import InvalidFile


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether there is something at a path. Also True if it cannot be looked up: `check_file` then says why."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError):
        return True
    return True


def check_file(path: str | os.PathLike[str], error: type[InvalidFile] = InvalidFile) -> None:
    """Check that a path is a regular file that can be read.

    Pipes and devices are refused: they can block, and ``/dev/zero`` never ends.

    Args:
        path: Path of the file.
        error: The type to raise.

    Raises:
        InvalidFile: If it is missing, unreadable, or not a regular file.
    """
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            raise error(f"{path}: expected a file, got {_kind(mode)}")
        with open(path, "rb"):
            pass
    except InvalidFile:
        raise
    except (FileNotFoundError, NotADirectoryError):
        raise error(f"{path}: no such file") from None
    except (OSError, ValueError) as problem:  # ValueError: a null byte in the path
        reason = problem.strerror if isinstance(problem, OSError) else None
        raise error(f"{path}: could not be read: {reason or problem}") from problem


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def read_file(path: str | os.PathLike[str], error: type[InvalidFile] = InvalidFile) -> bytes:
    """The content of a regular file.

    Raises:
        InvalidFile: As `check_file`, with the given type.
    """
    check_file(path, error)
    try:
        return Path(path).read_bytes()
    except OSError as problem:
        raise error(f"{path}: could not be read: {problem.strerror or problem}") from problem


def hash_file(path: str | os.PathLike[str], error: type[InvalidFile] = InvalidFile) -> str:
    """SHA-256 of a regular file, in hexadecimal digits.

    Raises:
        InvalidFile: As `check_file`, with the given type.
    """
    check_file(path, error)
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as problem:
        raise error(f"{path}: could not be read: {problem.strerror or problem}") from problem


def read_json(path: str | os.PathLike[str], error: type[InvalidFile] = InvalidFile) -> Any:
    """The value in a JSON file.

    Raises:
        InvalidFile: As `read_file` and `parse_json`, with the given type.
    """
    return parse_json(read_file(path, error), path, error)


def parse_json(data: bytes | str, path: str | os.PathLike[str], error: type[InvalidFile] = InvalidFile) -> Any:
    r"""The value of a JSON text.

    Args:
        data: The text, as UTF-8 if it is bytes.
        path: The file that it is from, for messages.
        error: The type to raise.

    Raises:
        InvalidFile: If it is not valid JSON, is nested too deeply, or has a string with a lone surrogate, such as
            ``"\ud800"``, which cannot be encoded.
    """
    try:
        text = data.decode("utf-8-sig") if isinstance(data, bytes) else data  # a byte order mark does no harm
        value = json.loads(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise error(f"{path}: not valid JSON: its values are nested too deeply") from None
    except ValueError as problem:
        raise error(f"{path}: not valid JSON: {problem}") from None
    return value
