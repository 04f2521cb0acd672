"""Readers of files of pairs, word alignments and labeled texts, in constant memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from regard.errors import InvalidArgument, InvalidFile, short_repr
from regard.text.lines import Part, check_files, display_name, line_name, read_lines
from regard.text.tables import Row, is_table, read_table

MAX_DIGITS = 18
"""Of the index of a word."""


def read_pairs(
    files: Sequence[str | Path], *, source_column: str = "source", target_column: str = "target"
) -> Iterator[tuple[str, str]]:
    """Read pairs of a source and a target sentence, without surrounding white space.

    Args:
        files: One TSV (source, tab, target; further columns are ignored), two line-aligned files, plain or ``.gz``, or
            any number of Parquet or JSON Lines files.
        source_column: The column of the sources in Parquet and JSON Lines, as for `read_texts`.
        target_column: The column of the targets.

    Yields:
        Pairs, including empty ones: those of empty lines.

    Raises:
        InvalidType: If files are not a sequence, such as a single path.
        InvalidArgument: If there are other files.
        InvalidFile: If a file cannot be read, a line of a TSV has text but no tab, a row lacks a text, or two files
            have different numbers of lines.
    """
    check_pair_files(files)
    if is_table(files[0]) or len(files) == 1:
        for path in files:
            yield from read_pairs_of_file(path, source_column=source_column, target_column=target_column)
        return
    counts = [0, 0]
    for source, target in itertools.zip_longest(*map(read_lines, files)):
        counts[0] += source is not None
        counts[1] += target is not None
        if source is not None and target is not None:
            yield source.strip(), target.strip()
    if counts[0] != counts[1]:
        raise InvalidFile(f"{files[0]}, {files[1]}: expected the same number of lines, got {counts[0]} and {counts[1]}")


def read_pairs_of_file(
    path: str | Path, *, source_column: str, target_column: str, part: Part | None = None
) -> Iterator[tuple[str, str]]:
    """Read a part of a TSV or of a table as `read_pairs` does."""
    if is_table(path):
        for row in read_table(path, {"source_column": source_column, "target_column": target_column}, part):
            yield row.text("source_column").strip(), row.text("target_column").strip()
        return
    for number, line in enumerate(read_lines(path, part), start=1):
        columns = line.split("\t") if line.strip() else ["", ""]
        if len(columns) < 2:
            where = line_name(path, number, part)
            raise InvalidFile(f"{where}: expected source, tab, target, got no tab in {line[:60]!r}")
        yield columns[0].strip(), columns[1].strip()


def check_pair_files(files: Sequence[str | Path]) -> None:
    """Check that files are those of pairs, as in `read_pairs`, by their number and names.

    Raises:
        InvalidType: If files are not a sequence, such as a single path.
        InvalidArgument: If they are others.
    """
    check_files(files)
    num_tables = sum(map(is_table, files))
    if num_tables != len(files) or not files:
        expected = "expected one TSV or two line-aligned files, or Parquet or JSON Lines files"
        if num_tables:
            raise InvalidArgument(f"files: {expected}, got both kinds")
        if len(files) not in (1, 2):
            raise InvalidArgument(f"files: {expected}, got {len(files)} files")


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


def read_labeled_texts(
    files: Sequence[str | Path], *, text_column: str = "text", label_column: str = "label"
) -> Iterator[tuple[str, str, str]]:
    """Read texts with their classes.

    Args:
        files: TSV files (text, tab, class; further columns are ignored), or Parquet or JSON Lines files.
        text_column: The column of the texts in Parquet and JSON Lines, as for `read_texts`.
        label_column: The column of the classes: their names, or numbers, whose digits are then the names.

    Yields:
        The position (``file, line 3``, for messages), the text and the class, without surrounding white space.

    Raises:
        InvalidType: If files are not a sequence, such as a single path.
        InvalidFile: If a file cannot be read, or a line or a row lacks the tab, the text or the class.
    """
    check_files(files)
    for path in files:
        for row, text, label in read_labeled_rows(path, text_column=text_column, label_column=label_column):
            yield row.where, text, label


def read_labeled_rows(
    path: str | Path, *, text_column: str, label_column: str, part: Part | None = None
) -> Iterator[tuple[Row, str, str]]:
    """Read a part of a file as `read_labeled_texts` does; a row finds out its position only for a message."""
    columns = {"text_column": text_column, "label_column": label_column}
    if not is_table(path):
        for number, line in enumerate(read_lines(path, part), start=1):
            row = Row(path, number, part, columns, {})
            text, label = (column.strip() for column in f"{line}\t".split("\t")[:2])
            if not text or not label:
                raise InvalidFile(f"{row.where}: expected text, tab, class, got {line[:60]!r}")
            yield row, text, label
        return
    for row in read_table(path, columns, part):
        label = row.values["label_column"]
        text, label = row.text("text_column").strip(), str(label) if type(label) is int else row.text("label_column")
        if not text or not label.strip():
            raise InvalidFile(f"{row.where}: expected text and class, got {short_repr(text)} and {short_repr(label)}")
        yield row, text, label.strip()


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
