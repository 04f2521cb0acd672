"""Lines and pairs of text from files: UTF-8 in NFC, or an error that names the file and the line."""

from __future__ import annotations

import gzip
import itertools
import sys
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from regard.errors import InvalidArgument, InvalidFile, InvalidType, raise_problems


def read_lines(path: str | Path) -> Iterator[str]:
    r"""Read the lines of a text file in NFC and without their line ends.

    Args:
        path: The file, UTF-8, plain or ``.gz``; ``-`` is standard input. A line ends at ``\n`` or ``\r\n`` only.

    Yields:
        Lines.

    Raises:
        InvalidFile: If the file is missing or unreadable, or if a line is not UTF-8 (the message names the line).
    """
    name = shown(path)
    number = 0
    try:
        with _open(path) as file:
            for number, raw in enumerate(file, start=1):
                line = raw.decode("utf-8").rstrip("\r\n")
                yield unicodedata.normalize("NFC", line.removeprefix("\ufeff") if number == 1 else line)
    except UnicodeDecodeError as error:
        raise InvalidFile(
            f"{name}, line {number}: expected UTF-8, but byte {error.start + 1} of the line is "
            f"0x{error.object[error.start]:02x}; convert the file first, as with `iconv -t UTF-8`"
        ) from None
    except FileNotFoundError:
        raise InvalidFile(f"{name}: no such file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InvalidFile(
            f"{name}: expected a gzip file, but it is damaged or cut off after line {number}: {error}"
        ) from None
    except OSError as error:
        raise InvalidFile(f"{name}: cannot be read: {error.strerror or error}") from None


def shown(path: str | Path) -> str:
    """What errors call a file."""
    return "standard input" if str(path) == "-" else str(path)


def _open(path: str | Path) -> AbstractContextManager[Iterable[bytes]]:
    if str(path) != "-":
        return gzip.open(path, "rb") if Path(path).suffix == ".gz" else open(path, "rb")
    if sys.stdin is None:
        raise OSError("it is closed")
    return nullcontext(sys.stdin.buffer)


def read_pairs(files: Sequence[str | Path]) -> Iterator[tuple[str, str]]:
    """Read pairs of source and target sentence, each without white space around it.

    Args:
        files: One TSV (source, tab, target; further columns are ignored) or two line-aligned files, plain or ``.gz``.

    Yields:
        Pairs, empty ones included.

    Raises:
        InvalidFile: If a file cannot be read, a line of a TSV has no tab, or two files have unequal numbers of lines.
    """
    if len(files) == 1:
        for number, line in enumerate(read_lines(files[0]), start=1):
            columns = line.split("\t")
            if len(columns) < 2:
                raise InvalidFile(
                    f"{shown(files[0])}, line {number}: no tab; a line should be source, tab, target, "
                    f"but it is {line[:60]!r}"
                )
            yield columns[0].strip(), columns[1].strip()
        return
    if len(files) != 2:
        raise InvalidArgument(f"a corpus is one TSV or two line-aligned files, but {len(files)} files were given")
    counts = [0, 0]
    for lines in itertools.zip_longest(*map(read_lines, files)):
        source, target = lines
        counts[0] += source is not None
        counts[1] += target is not None
        if source is not None and target is not None:
            yield source.strip(), target.strip()
    if counts[0] != counts[1]:
        raise InvalidFile(
            f"line-aligned files should have equally many lines, but {files[0]} has {counts[0]} "
            f"and {files[1]} has {counts[1]}"
        )


def read_alignments(path: str | Path) -> Iterator[list[tuple[int, int]]]:
    """Read which words of pairs belong together, as word aligners such as fast_align and eflomal write it.

    Args:
        path: A file with a line for each pair, ``0-0 1-2 2-1``: numbers of a source word and of a target word, from 0,
            where words are what white space parts; an empty line aligns nothing.

    Yields:
        (source, target) of each line.

    Raises:
        InvalidFile: If it cannot be read, or a line is of another form.
    """
    for number, line in enumerate(read_lines(path), start=1):
        links = [link.partition("-")[::2] for link in line.split()]
        if not all(source.isdecimal() and target.isdecimal() for source, target in links):
            raise InvalidFile(
                f"{shown(path)}, line {number}: expected numbers of words, source-target, as in '0-0 1-2', got {line!r}"
            )
        yield [(int(source), int(target)) for source, target in links]


def read_labeled_texts(files: Sequence[str | Path]) -> Iterator[tuple[str, str, str]]:
    """Read texts with their classes from TSV files, ``text``, tab, ``class``; further columns are ignored.

    Yields:
        Where the line stands, the text, and the class, both without white space around them.

    Raises:
        InvalidFile: If a file cannot be read, or a line has no tab, no text or no class.
    """
    for path in files:
        for number, line in enumerate(read_lines(path), start=1):
            text, tab, rest = line.partition("\t")
            label = rest.partition("\t")[0].strip()
            if not tab or not text.strip() or not label:
                raise InvalidFile(
                    f"{path}, line {number}: a line should be a text, a tab and a class, but it is {line[:60]!r}"
                )
            yield f"{path}, line {number}", text.strip(), label


def check_texts(texts: Sequence[str]) -> None:
    """Refuse what a tokenizer cannot read.

    Raises:
        InvalidType: If texts are no sequence of str.
        InvalidArgument: If one holds half a letter; all are named.
    """
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise InvalidType(f"texts must be a sequence of str, but is a {type(texts).__name__}: give a list")
    named = [(f"texts[{place}]", text) for place, text in enumerate(texts)]
    raise_problems(type_objections(named), InvalidType)
    raise_problems(letter_objections(named))


def type_objections(texts: Iterable[tuple[str, object]]) -> list[str]:
    """Say which of the named texts are no str.

    Example:
        >>> type_objections([("line 1", "yes"), ("line 2", None)])
        ['line 2 must be a str, but is a NoneType']
    """
    return [
        f"{name} must be a str, but is a {type(text).__name__}" for name, text in texts if not isinstance(text, str)
    ]


def letter_objections(texts: Iterable[tuple[str, str]]) -> list[str]:
    r"""Say which of the named texts hold half a letter, as of bytes that were decoded wrongly.

    Example:
        >>> letter_objections([("line 1", "a\ud800")])
        ["line 1 must be Unicode, but its character 2 is the lone surrogate '\\ud800': decode its bytes anew"]
    """
    objections = []
    for name, text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            came = f"its character {error.start + 1} is the lone surrogate {text[error.start]!r}"
            objections.append(f"{name} must be Unicode, but {came}: decode its bytes anew")
    return objections


def group_references(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Group the targets of each source, in the order in which they come; pairs with an empty side are left out.

    Example:
        >>> group_references([("hi", "hallo"), ("bye", "tschüs"), ("hi", "grüß dich"), ("", "leer")])
        {'hi': ['hallo', 'grüß dich'], 'bye': ['tschüs']}
    """
    grouped: dict[str, list[str]] = {}
    for source, target in pairs:
        if source and target:
            grouped.setdefault(source, []).append(target)
    return grouped
