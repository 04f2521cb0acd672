"""Lines of text out: to standard output, or to a whole file or none."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from regard.files import atomic_write


def one_line(text: str) -> str:
    """The text without the tabs and line ends that a model of bytes can write: one field of one line."""
    return re.sub(r"[\t\r\n]+", " ", text)


@contextmanager
def writing(path: Path | None) -> Iterator[IO[str]]:
    """A text file that appears under its name only when it is complete; standard output for ``-`` and no path.

    Raises:
        InvalidFile: The file cannot be written.
    """
    if path is not None and str(path) != "-":
        with atomic_write(path, text=True) as file:
            yield file
        return
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # as what is read, whatever the locale
    yield sys.stdout


def is_typed() -> bool:
    """Whether standard input is a person at a keyboard; it is None where the shell closed it."""
    return sys.stdin is not None and sys.stdin.isatty()
