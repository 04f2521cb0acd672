"""Readers of text files: lines, pairs, word alignments and labeled texts, as UTF-8 in NFC."""

from __future__ import annotations

import gzip
import itertools
import sys
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from regard.errors import InvalidArgument, InvalidFile, InvalidType, short_repr
from regard.files import as_path
from regard.input_files import check_file, parse_json

MAX_DIGITS = 18
"""Of the index of a word."""


def read_lines(path: str | Path) -> Iterator[str]:
    r"""Read the lines of a text file, in NFC and without line ends.

    Args:
        path: UTF-8 file, plain or ``.gz``; ``-`` is standard input. Only ``\n`` and ``\r\n`` end a line.

    Yields:
        Lines.

    Raises:
        InvalidType: If the path is not a str or path.
        InvalidFile: If the file is missing, unreadable, not a regular file or a recording (``*.regard``), or a line is
            not UTF-8; the message has the line's number.
    """
    name = display_name(path)
    if name.endswith(".regard") and as_path(path).is_file():
        raise InvalidFile(f"{name}: expected a text file, got a recording; `regard show` opens it")
    number = 0
    try:
        with _open(path) as file:
            for number, raw in enumerate(file, start=1):
                line = raw.decode("utf-8").rstrip("\r\n")
                yield unicodedata.normalize("NFC", line.removeprefix("\ufeff") if number == 1 else line)
    except UnicodeDecodeError as error:
        raise InvalidFile(
            f"{name}, line {number}: expected UTF-8, got 0x{error.object[error.start]:02x} at byte {error.start + 1} "
            "of the line; convert the file first, for example with `iconv -t UTF-8`"
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


def _open(path: str | Path) -> AbstractContextManager[Iterable[bytes]]:
    path = as_path(path)
    if str(path) != "-":
        check_file(path)
        return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")
    if sys.stdin is None:
        raise OSError("it is closed")
    return nullcontext(sys.stdin.buffer)


def check_files(files: Sequence[str | Path]) -> None:
    """Raise `InvalidType` unless files are a sequence: a single path is not."""
    if isinstance(files, (str, Path)) or not isinstance(files, Sequence):  # without Checks, which imports torch
        raise InvalidType(f"files: expected a sequence of paths, got {type(files).__name__}; pass a list")


def read_pairs(files: Sequence[str | Path]) -> Iterator[tuple[str, str]]:
    """Read pairs of a source and a target sentence, without surrounding white space.

    Args:
        files: One TSV (source, tab, target; further columns are ignored) or two line-aligned files, plain or ``.gz``.

    Yields:
        Pairs, including empty ones: those of empty lines.

    Raises:
        InvalidType: If files are not a sequence, such as a single path.
        InvalidArgument: If there are not one or two files.
        InvalidFile: If a file cannot be read, a line of a TSV has text but no tab, or two files have different numbers
            of lines.
    """
    check_files(files)
    if len(files) == 1:
        for number, line in enumerate(read_lines(files[0]), start=1):
            columns = line.split("\t") if line.strip() else ["", ""]
            if len(columns) < 2:
                where = f"{display_name(files[0])}, line {number}"
                raise InvalidFile(f"{where}: expected source, tab, target, got no tab in {line[:60]!r}")
            yield columns[0].strip(), columns[1].strip()
        return
    if len(files) != 2:
        raise InvalidArgument(f"files: expected one TSV or two line-aligned files, got {len(files)} files")
    counts = [0, 0]
    for source, target in itertools.zip_longest(*map(read_lines, files)):
        counts[0] += source is not None
        counts[1] += target is not None
        if source is not None and target is not None:
            yield source.strip(), target.strip()
    if counts[0] != counts[1]:
        raise InvalidFile(f"{files[0]}, {files[1]}: expected the same number of lines, got {counts[0]} and {counts[1]}")


def read_alignments(path: str | Path) -> Iterator[list[tuple[int, int]]]:
    """Read word alignments in the format of fast_align and eflomal.

    Args:
        path: One line per pair, such as ``0-0 1-2 2-1``: index of a source word, index of a target word, both from 0;
            white space separates words. An empty line has no links.

    Yields:
        The (source, target) links of each line.

    Raises:
        InvalidFile: If the file cannot be read, or a line has another format.
    """
    for number, line in enumerate(read_lines(path), start=1):
        links = [link.partition("-")[::2] for link in line.split()]
        if not all(word.isdecimal() and len(word) <= MAX_DIGITS for link in links for word in link):
            where = f"{display_name(path)}, line {number}"
            raise InvalidFile(f"{where}: expected word indices source-target such as '0-0 1-2', got {short_repr(line)}")
        yield [(int(source), int(target)) for source, target in links]


def read_labeled_texts(files: Sequence[str | Path]) -> Iterator[tuple[str, str, str]]:
    """Read texts with their classes from TSV files: text, tab, class; further columns are ignored.

    Yields:
        The position (``file, line 3``, for messages), the text and the class, without surrounding white space.

    Raises:
        InvalidType: If files are not a sequence, such as a single path.
        InvalidFile: If a file cannot be read, or a line lacks the tab, the text or the class.
    """
    check_files(files)
    for path in files:
        for number, line in enumerate(read_lines(path), start=1):
            where = f"{display_name(path)}, line {number}"
            text, label = (column.strip() for column in f"{line}\t".split("\t")[:2])
            if not text or not label:
                raise InvalidFile(f"{where}: expected text, tab, class, got {line[:60]!r}")
            yield where, text, label


def read_references(path: str | Path) -> tuple[list[str], list[list[str]]]:
    """Read sources and their references from a TSV file; a repeated source brings a further reference.

    Args:
        path: Lines of source, tab and reference, plain or ``.gz``; ``-`` is standard input.

    Returns:
        The distinct sources in order, and the references of each.

    Raises:
        InvalidFile: If the file cannot be read or is empty, or a line has no tab or an empty side.
    """
    pairs, name = list(read_pairs([path])), display_name(path)
    for number, (source, reference) in enumerate(pairs, start=1):
        if not source or not reference:
            raise InvalidFile(f"{name}, line {number}: expected a source, a tab and a reference, got an empty side")
    if not pairs:
        raise InvalidFile(f"{name}: expected pairs, got an empty file")
    grouped = group_references(pairs)
    return list(grouped), list(grouped.values())


def read_texts(path: str | Path) -> list[str]:
    """Read one text per line, or the field ``text`` of each object of a ``.jsonl`` file.

    Raises:
        InvalidFile: If the file cannot be read, or a line of a ``.jsonl`` file has no such field.
    """
    lines, name = list(read_lines(path)), display_name(path)
    if not name.removesuffix(".gz").endswith(".jsonl"):
        return lines
    texts = []
    for number, line in enumerate(lines, start=1):
        try:
            values = parse_json(line, name)
        except InvalidFile:
            values = None
        text = values.get("text") if isinstance(values, dict) else None
        if not isinstance(text, str):
            expected = "an object with a 'text', as `regard generate --json` prints it"
            raise InvalidFile(f"{name}, line {number}: expected {expected}, got {line[:60]!r}")
        texts.append(text)
    return texts


def group_references(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Group the targets of each source, in order; pairs with an empty side are skipped.

    Examples:
        >>> group_references([("hi", "hallo"), ("bye", "tschüs"), ("hi", "grüß dich"), ("", "leer")])
        {'hi': ['hallo', 'grüß dich'], 'bye': ['tschüs']}
    """
    grouped: dict[str, list[str]] = {}
    for source, target in pairs:
        if source and target:
            grouped.setdefault(source, []).append(target)
    return grouped
