"""Lines of text files, as UTF-8 in NFC: whole files, or those that begin in a range of bytes."""

from __future__ import annotations

import gzip
import sys
import unicodedata
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

from regard.errors import InvalidFile, InvalidType
from regard.files import as_path
from regard.input_files import check_file

UNREADABLE_SUFFIXES = (".arrow", ".bz2", ".lz4", ".tar", ".tgz", ".xz", ".zip", ".zst")

Part = tuple[int, int]
"""A part of a file, from ... to before: row groups of a Parquet file, or bytes of another, with the lines that begin
there."""


def read_lines(path: str | Path, part: Part | None = None) -> Iterator[str]:
    r"""Read the lines of a text file, in NFC and without line ends.

    Args:
        path: UTF-8 file, plain or ``.gz``; ``-`` is standard input. Only ``\n`` and ``\r\n`` end a line.
        part: The first byte and the byte after the last, of a plain file: lines that begin there are read. Default:
            all.

    Yields:
        Lines.

    Raises:
        InvalidType: If the path is not a str or path.
        InvalidFile: If the file is missing, unreadable, not a regular file, a recording (``*.regard``) or compressed
            in another way, or a line is not UTF-8; the message has the line's number.
    """
    name = display_name(path)
    if name.endswith(".regard") and as_path(path).is_file():
        raise InvalidFile(f"{name}: expected a text file, got a recording; `regard show` opens it")
    number = 0
    try:
        with _open(path) as file:
            for number, raw in enumerate(file if part is None else _lines_of(file, *part), start=1):
                line = raw.decode("utf-8").rstrip("\r\n")
                is_first = number == 1 and (part is None or part[0] == 0)
                yield unicodedata.normalize("NFC", line.removeprefix("\ufeff") if is_first else line)
    except UnicodeDecodeError as error:
        raise InvalidFile(
            f"{line_name(path, number, part)}: expected UTF-8, got 0x{error.object[error.start]:02x} at byte "
            f"{error.start + 1} of the line; convert the file first, for example with `iconv -t UTF-8`"
        ) from None
    except InvalidFile:
        raise
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InvalidFile(
            f"{name}: expected a gzip file, but it is damaged or truncated after line {number}: {error}"
        ) from None
    except OSError as error:
        raise InvalidFile(f"{name}: could not be read: {error.strerror or error}") from None


def display_name(path: str | Path) -> str:
    """What messages call a file: its path, or "standard input" for ``-``."""
    return "standard input" if str(path) == "-" else str(path)


def _lines_of(file: BinaryIO, start: int, stop: int) -> Iterator[bytes]:
    """The lines that begin in a range of bytes."""
    if start:
        file.seek(start - 1)
        file.readline()  # the end of a line that begins before
    while file.tell() < stop and (raw := file.readline()):
        yield raw


def line_name(path: str | Path, number: int, part: Part | None) -> str:
    """What messages call a line of a part of a file: with its number in the whole file."""
    if part is not None and part[0]:
        number += 1
        with open(path, "rb") as file:
            for size in range(part[0] - 1, 0, -(1 << 20)):
                number += file.read(min(size, 1 << 20)).count(b"\n")
    return f"{display_name(path)}, line {number}"


def _open(path: str | Path) -> AbstractContextManager[Any]:
    path = as_path(path)
    if str(path) != "-":
        check_file(path)
        if path.suffix in UNREADABLE_SUFFIXES:
            raise InvalidFile(f"{path}: expected text, plain or .gz, or .parquet, got {path.suffix}; convert the file")
        return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")
    if sys.stdin is None:
        raise OSError("it is closed")
    return nullcontext(sys.stdin.buffer)


def check_files(files: Sequence[str | Path]) -> None:
    """Raise `InvalidType` unless files are a sequence: a single path is not."""
    if isinstance(files, (str, Path)) or not isinstance(files, Sequence):  # without Checks, which imports torch
        raise InvalidType(f"files: expected a sequence of paths, got {type(files).__name__}; pass a list")
