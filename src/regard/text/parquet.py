"""Rows of Parquet files, read batch by batch by pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from regard.errors import InvalidFile, require
from regard.input_files import check_file

_BATCH_SIZE = 256  # rows that are decoded together; a row can be a whole document


def read_parquet(
    path: str | Path, columns: Sequence[str], row_groups: tuple[int, int] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read columns of a Parquet file.

    Args:
        path: The file.
        columns: Names of columns; a dot separates the name of a nested one.
        row_groups: The first row group to read and the one after the last. Default: all.

    Yields:
        The number of each row in the file, from 1, and its values by the name of the column.

    Raises:
        InvalidFile: If the file is missing or damaged.
        MissingExtra: If pyarrow is not installed.
    """
    number = 0
    with _opened(path) as file:
        try:
            first, last = row_groups or (0, file.num_row_groups)
            number = sum(file.metadata.row_group(index).num_rows for index in range(first))
            for batch in file.iter_batches(
                _BATCH_SIZE, row_groups=range(first, last), columns=list(columns), use_threads=False
            ):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
        except UnicodeDecodeError:
            raise InvalidFile(f"{path}: expected UTF-8, got other bytes after row {number}") from None


def parquet_columns(path: str | Path) -> list[str]:
    """The names of all columns of a Parquet file, with those that nested ones are in; errors as for `read_parquet`."""
    with _opened(path) as file:
        schema = file.schema
        return [schema.column(index).path for index in range(len(schema))]


def row_group_sizes(path: str | Path) -> list[int]:
    """The number of rows of each row group of a Parquet file; errors as for `read_parquet`."""
    with _opened(path) as file:
        return [file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)]


@contextmanager
def _opened(path: str | Path) -> Iterator[Any]:
    pyarrow = require("pyarrow", extra="parquet", needed_by="reading Parquet")
    parquet = require("pyarrow.parquet", extra="parquet", needed_by="reading Parquet")
    check_file(path)
    try:
        # a row group is read in pieces of this size, however large it is
        with parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
            yield file
    except InvalidFile:
        raise
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InvalidFile(f"{path}: expected a Parquet file, got a damaged one: {reason}") from None
