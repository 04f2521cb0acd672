"""Texts in the columns of Parquet and JSON Lines files, row by row; other files are lines."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import InvalidFile, did_you_mean, short_repr
from regard.input_files import parse_json
from regard.text.lines import Part, display_name, line_name, read_lines
from regard.text.parquet import parquet_columns, read_parquet


class Row(NamedTuple):
    """A row of a table.

    Args:
        path: The file.
        number: From 1; in JSON Lines the line in the part of the file that is read.
        part: The part.
        columns: The names of the columns, by the argument that messages call each by.
        values: Their values, by the same.
    """

    path: str | Path
    number: int
    part: Part | None
    columns: Mapping[str, str]
    values: Mapping[str, Any]

    @property
    def where(self) -> str:
        """The position of the row, for messages: ``file, line 3`` or ``file, row 3``."""
        is_row = _is_parquet(self.path)
        return f"{self.path}, row {self.number}" if is_row else line_name(self.path, self.number, self.part)

    def text(self, argument: str) -> str:
        """The text in a column, in NFC.

        Raises:
            InvalidFile: If the value is not a str.
        """
        value = self.values[argument]
        if not isinstance(value, str):
            expected = f"expected a str in the column {short_repr(self.columns[argument])}"
            raise InvalidFile(f"{self.where}: {expected}, got {short_repr(value)}")
        return unicodedata.normalize("NFC", value)


def is_table(path: str | Path) -> bool:
    """Whether a file has rows with columns: Parquet, or JSON Lines in ``.jsonl`` or ``.json``, plain or ``.gz``."""
    return _is_parquet(path) or display_name(path).removesuffix(".gz").endswith((".jsonl", ".json"))


def _is_parquet(path: str | Path) -> bool:
    return str(path).endswith(".parquet")


def check_first_row(path: str | Path, columns: Mapping[str, str]) -> None:
    """Check that the first row of a table, or the first line of a text file, can be read.

    Raises:
        InvalidFile: As for `read_table` and `read_lines`, or if a table has no row.
    """
    if not is_table(path):
        next(read_lines(path), None)
    elif next(read_table(path, columns), None) is None:
        raise InvalidFile(f"{path}: expected at least one row, got none")


def read_table(path: str | Path, columns: Mapping[str, str], part: Part | None = None) -> Iterator[Row]:
    """Read columns of a Parquet or JSON Lines file; blank lines are skipped.

    Args:
        path: The file.
        columns: The name of each column, by the argument that messages call it by. ``translation.en`` is the column
            ``en`` in ``translation``.
        part: Row groups, or bytes of a plain JSON Lines file. Default: all.

    Yields:
        Rows.

    Raises:
        InvalidFile: If the file is damaged, or a row is not an object or lacks a column.
        MissingExtra: If a Parquet file is read and pyarrow is not installed.
    """
    for number, row in _read_parquet_rows(path, columns, part) if _is_parquet(path) else _read_json_lines(path, part):
        try:
            values = {argument: _value(row, column) for argument, column in columns.items()}
        except LookupError as error:
            (column,) = error.args
            where = Row(path, number, part, columns, {}).where
            known = [*row, *(f"{name}.{key}" for name in row if isinstance(row[name], dict) for key in row[name])]
            raise _missing_column(where, columns, column, known) from None
        yield Row(path, number, part, columns, values)


def _read_parquet_rows(
    path: str | Path, columns: Mapping[str, str], part: Part | None
) -> Iterator[tuple[int, dict[str, Any]]]:
    known = parquet_columns(path)
    for column in columns.values():
        if not any(f"{name}.".startswith(f"{column}.") for name in known):
            raise _missing_column(str(path), columns, column, known)
    return read_parquet(path, list(columns.values()), part)


def _read_json_lines(path: str | Path, part: Part | None) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(read_lines(path, part), start=1):
        text = line.strip()
        if not text:
            continue
        if text[0] != "{":
            where, hint = (
                line_name(path, number, part),
                "; convert a list with `jq -c '.[]'`" if text[0] == "[" else "",
            )
            raise InvalidFile(f"{where}: expected one JSON object per line, got {short_repr(text)}{hint}")
        try:
            yield number, parse_json(line, path)
        except InvalidFile:
            parse_json(line, line_name(path, number, part))  # counting the lines before the part takes time


def _value(row: Mapping[str, Any], column: str) -> Any:
    """The value of a column, which can be nested; raises KeyError with its whole name."""
    name, value = column, row
    while isinstance(value, dict):
        if name in value:
            return value[name]
        first, _, name = name.partition(".")
        value = value.get(first)
    raise KeyError(column)


def _missing_column(where: str, columns: Mapping[str, str], column: str, known: Sequence[str]) -> InvalidFile:
    argument = next(key for key, name in columns.items() if name == column)
    expected, got = f"expected the column {short_repr(column)} ({argument})", ", ".join(known) or "none"
    return InvalidFile(f"{where}: {expected}, got {got}{did_you_mean(column, known)}")


def read_texts(path: str | Path, text_column: str = "text", part: Part | None = None) -> Iterator[str]:
    """Read the lines of a text file, or the texts in a column of a Parquet or JSON Lines file, in NFC.

    Args:
        path: The file. ``.parquet``, ``.jsonl`` and ``.json``, the latter also with ``.gz``, have columns; any other is
            read as lines by `read_lines`.
        text_column: The column; ``translation.en`` is the column ``en`` in ``translation``.
        part: Row groups of a Parquet file, or bytes of a plain file. Default: all.

    Yields:
        Texts.

    Raises:
        InvalidFile: If the file cannot be read, or a row has no text in the column; the message has its number.
        MissingExtra: If a Parquet file is read and pyarrow is not installed.
    """
    if not is_table(path):
        return read_lines(path, part)
    return (row.text("text_column") for row in read_table(path, {"text_column": text_column}, part))
