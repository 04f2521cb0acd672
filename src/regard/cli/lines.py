"""Lines of text in and out: UTF-8 or an error that names the line, ``-`` for the pipe, and whole files or none."""

from __future__ import annotations

import gzip
import io
import os
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TextIO

from regard.errors import InvalidFile, RegardError


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a file, plain or ``.gz``, or of standard input where the path is ``-``, without their line ends.

    Raises:
        InvalidFile: The file is missing, unreadable, or not UTF-8.
    """
    name = "standard input" if str(path) == "-" else str(path)
    try:
        with _open(path) as file:
            for number, line in enumerate(file, start=1):
                try:
                    yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                except UnicodeDecodeError as error:
                    raise InvalidFile(
                        f"{name}, line {number}: expected UTF-8, but byte {error.start + 1} of the line is "
                        f"0x{line[error.start]:02x}; convert the file first, as with `iconv -t UTF-8`"
                    ) from None
    except RegardError:
        raise
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InvalidFile(f"{name}: expected a gzip file, but it is damaged or cut off: {error}") from None
    except OSError as error:
        raise InvalidFile(f"{name}: cannot be read: {error.strerror or error}") from None


def _open(path: Path) -> AbstractContextManager[Iterable[bytes]]:
    if str(path) == "-":
        return nullcontext(sys.stdin.buffer)
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def one_line(text: str) -> str:
    """The text without the tabs and line ends that a model of bytes can write: one field of one line."""
    return re.sub(r"[\t\r\n]+", " ", text)


@contextmanager
def writing(path: Path | None) -> Iterator[TextIO]:
    """A text file that appears under its name only when it is complete; standard output where there is no path.

    Raises:
        InvalidFile: The file cannot be written.
    """
    if path is None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # as what is read, whatever the locale
        yield sys.stdout
        return
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():  # /dev/null and the like: there is nothing to put in their place
        with target.open("w", encoding="utf-8") as file:
            yield file
        return
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8", newline="\n") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    except RegardError:
        raise
    except OSError as error:
        raise InvalidFile(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)
