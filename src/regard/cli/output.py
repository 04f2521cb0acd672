"""Where commands write: standard output, a complete file or none, and a progress bar on stderr."""

from __future__ import annotations

import gzip
import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from regard.errors import InvalidArgument
from regard.files import atomic_write
from regard.input_files import exists


def strip_newlines(text: str) -> str:
    """Replace tabs and line ends, which a byte-level model can generate, so that the text is one field of one line."""
    return re.sub(r"[\t\r\n]+", " ", text)


@contextmanager
def open_output(path: Path | None, inputs: Sequence[str | Path] = ()) -> Iterator[IO[str]]:
    """Open a text file that appears under its name only when it is complete, or standard output for ``-`` and None.

    Args:
        path: The file; with the suffix ``.gz`` it is compressed.
        inputs: The files that are read, none of which may be the output.

    Raises:
        InvalidArgument: If the output is one of the inputs.
        InvalidFile: If the file cannot be written.
    """
    if path is not None and str(path) != "-":
        for each in inputs:
            if path.is_file() and exists(each) and os.path.samefile(path, each):
                raise InvalidArgument(f"--output: expected another file than the input, got {path}")
        with atomic_write(path, text=path.suffix != ".gz") as file:
            if path.suffix != ".gz":
                yield file
                return
            with (
                gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as compressed,
                io.TextIOWrapper(compressed, encoding="utf-8", newline="\n") as text,
            ):
                yield text
        return
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # as the input, whatever the locale
    yield sys.stdout


def stdin_is_terminal() -> bool:
    """Whether standard input is a terminal; it is None if the shell closed it."""
    return sys.stdin is not None and sys.stdin.isatty()


@contextmanager
def progress(description: str, total: int | None, unit: str = "lines") -> Iterator[Callable[[float], None]]:
    """Show a progress bar on stderr, unless stderr is not a terminal or lines are typed in one by one.

    Args:
        description: What is done, such as "translating".
        total: Number of units; None if it is unknown.
        unit: What is counted.

    Yields:
        A function that advances the bar by a number of units, or a fraction of one.
    """
    if not sys.stderr.isatty() or (total is None and stdin_is_terminal()):
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(description), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)


def note(message: str) -> None:
    """Print a note on stderr."""
    print(f"note: {message}", file=sys.stderr)


def print_path(label: str, path: Path) -> None:
    """Print the path of a file that was written, unbroken, so that terminals make it a link."""
    from rich.console import Console

    Console().print(f"{label}: {path.resolve()}", soft_wrap=True, markup=False, highlight=False)
