"""Tables: the strongest weights and the measures of queries as columns, and columns as files."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from regard.analysis.padding import valid_rows_and_columns
from regard.checks import Checks
from regard.errors import InvalidArgument, InvalidType, require, short_repr
from regard.files import as_path, atomic_write
from regard.ops.measures import MeasureLike, as_measures
from regard.recordings.layer import require_one_sequence
from regard.recordings.recording import Recording

SUFFIXES = (".csv", ".parquet")
"""The file formats of `save_table`."""
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")
"""What begins a formula in a spreadsheet."""

Columns = dict[str, list[Any]]
"""A table by columns, as ``pandas.DataFrame`` takes it."""


def edge_table(recording: Recording, k: int = 8, *, by: Literal["query", "key"] = "query") -> Columns:
    """The k strongest keys of each query of every head, or the k strongest queries of each key. Padding is left out.

    Args:
        recording: A recording of one sequence.
        k: Number of edges for each query; fewer where it attends to fewer keys.
        by: ``"key"`` for the strongest queries of each key.

    Returns:
        Columns by name, as ``pandas.DataFrame`` takes them: ``layer``, ``kind``, ``head``, ``query``, ``key`` (from 0),
        ``query_token``, ``key_token`` and ``weight``. A row is an edge.

    Raises:
        InvalidType: If it is not a recording.
        InvalidArgument: If k is below 1 or `by` is unknown.

    Memory:
        O(queries * k) per head.

    Examples:
        >>> import regard
        >>> from regard.analysis import edge_table
        >>> table = edge_table(regard.pipelines.Translator.load().record("Thank you."), k=1)
        >>> table["query_token"][0], round(sum(table["weight"]), 1) > 1
        ('▁Thank', True)
    """
    _check_recording(recording)
    with Checks() as checks:
        checks.integer("k", k, low=1)
        checks.choice("by", by, ("query", "key"))
    names = ("layer", "kind", "head", "query", "key", "query_token", "key_token", "weight")
    columns: Columns = {name: [] for name in names}
    for layer in recording.layers:
        of_rows = torch.tensor(valid_rows_and_columns(layer)[0], device="cpu")
        weights = layer.weights.detach().at(queries=of_rows)
        matrix = weights if by == "query" else weights.mT
        top = matrix.topk(min(k, matrix.shape[3]))
        query_tokens, key_tokens = layer.query_tokens, layer.key_tokens
        for head, values, indices in zip(layer.head_indices, top.values[0], top.indices[0], strict=True):
            rows, places = (indices >= 0).nonzero(as_tuple=True)  # −1 where a row has fewer than k
            queries, keys = (rows, indices[rows, places]) if by == "query" else (indices[rows, places], rows)
            queries = of_rows[queries.cpu()]
            columns["layer"] += [layer.name] * len(rows)
            columns["kind"] += [layer.kind] * len(rows)
            columns["head"] += [head] * len(rows)
            columns["query"] += queries.tolist()
            columns["key"] += keys.tolist()
            columns["query_token"] += [query_tokens[query] for query in queries.tolist()]
            columns["key_token"] += [key_tokens[key] for key in keys.tolist()]
            columns["weight"] += values[rows, places].tolist()
    return columns


def row_table(recording: Recording, measure: MeasureLike = ("entropy", "max", "mean_distance")) -> Columns:
    """Measures of each query of every head; those that are padding are left out.

    Distances are between positions in the matrix, so those of cross-attention depend on padding.

    Args:
        recording: A recording of one sequence.
        measure: Measures with results for each query, as for `regard.attend`.

    Returns:
        Columns by name, as ``pandas.DataFrame`` takes them: ``layer``, ``kind``, ``head``, ``query``, ``token``, and
        one for each measure or each part of its result: ``max_weight``, ``max_score``.

    Raises:
        InvalidType: If it is not a recording.
        InvalidArgument: If a measure has no results for each query.
    """
    _check_recording(recording)
    measures = as_measures(measure)
    with Checks() as checks:
        for name, each in measures.items():
            checks.that(each.axis == "queries", f"measure: '{name}' is not of queries; use layer.weights.measure")
    columns: Columns = {name: [] for name in ("layer", "kind", "head", "query", "token")}
    for layer in recording.layers:
        rows, heads, tokens = valid_rows_and_columns(layer)[0], layer.weights.shape[1], layer.query_tokens
        columns["layer"] += [layer.name] * heads * len(rows)
        columns["kind"] += [layer.kind] * heads * len(rows)
        columns["head"] += [head for head in layer.head_indices for _ in rows]
        columns["query"] += rows * heads
        columns["token"] += [tokens[row] for row in rows] * heads
        for name, result in layer.weights.detach().at(queries=rows).measure(measures).items():
            for part, tensor in _named_tensors(name, result).items():
                for column, values in _flatten_columns(part, tensor[0]).items():
                    columns.setdefault(column, []).extend(values)
    return columns


def _check_recording(recording: object) -> None:
    if not isinstance(recording, Recording):
        hint = "; pass its .recording" if hasattr(recording, "recording") else ""
        raise InvalidType(f"recording: expected a Recording, got {type(recording).__name__}{hint}")
    require_one_sequence(recording.layers)


def _named_tensors(name: str, result: Any) -> dict[str, Tensor]:
    """The tensors of a result; those of a named tuple by their names, those of a tuple by number."""
    if not isinstance(result, tuple):
        return {name: result}
    fields = getattr(result, "_fields", range(len(result)))
    return {f"{name}_{field}": part for field, part in zip(fields, result, strict=True)}


def _flatten_columns(name: str, result: Tensor) -> Mapping[str, Sequence[Any]]:
    """A result for one sequence, (heads, queries, ...), as columns."""
    if result.ndim == 2:
        return {name: result.flatten().tolist()}
    flat = result.flatten(2).flatten(0, 1)
    return {f"{name}_{number}": flat[:, number].tolist() for number in range(flat.shape[1])}


def save_table(columns: Columns, path: str | os.PathLike[str], *, escape_formulas: bool = False) -> None:
    """Write columns to a file, atomically.

    A spreadsheet runs a cell of a CSV file as a formula if it begins with ``=``, ``+``, ``-``, ``@``, a tab or a line
    end, as tokens of a text can.

    Args:
        columns: Lists, arrays or tensors of equal length by name, as `edge_table`, `row_table` and `head_scores` return
            them.
        path: ``*.csv`` or ``*.parquet``.
        escape_formulas: Whether to write an apostrophe before text in a CSV file that a spreadsheet would run as a
            formula; numbers are not changed. Set it for files that someone opens in a spreadsheet. Default: False,
            because a program that reads the file gets other tokens then.

    Raises:
        InvalidType: If the columns are not a dict of lists, or the path is not a path.
        InvalidArgument: If the suffix is unknown, the columns differ in length, or Parquet cannot hold them.
        InvalidFile: If the file cannot be written.
        MissingExtra: If pyarrow, which writes Parquet, is not installed.
    """
    if not isinstance(columns, Mapping):
        raise InvalidType(f"columns: expected a dict of lists, got {type(columns).__name__}")
    for name, column in columns.items():
        if isinstance(column, str) or not hasattr(column, "__len__"):
            raise InvalidType(f"columns: expected a list as {short_repr(name)}, got {short_repr(column)}")
    columns = {name: _as_list(column) for name, column in columns.items()}
    path, lengths = as_path(path), sorted({len(column) for column in columns.values()})
    with Checks() as checks:
        checks.that(
            path.suffix.lower() in SUFFIXES, f"path: expected *{' or *'.join(SUFFIXES)}, got {short_repr(path.name)}"
        )
        checks.that(len(lengths) <= 1, f"columns: expected equal lengths, got {', '.join(map(str, lengths))}")
    if path.suffix.lower() == ".csv":
        text = io.StringIO()
        writer, quoting_writer = (
            csv.writer(text, lineterminator="\n", quoting=quoting) for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL)
        )
        for row in (columns, *zip(*columns.values(), strict=True)):
            cells = [_escape_formula(cell) for cell in row] if escape_formulas else list(row)
            has_return = any(isinstance(cell, str) and "\r" in cell for cell in cells)  # Python 3.11 does not quote it
            (quoting_writer if has_return else writer).writerow(cells)
        with atomic_write(path) as file:
            file.write(text.getvalue().encode("utf-8", "backslashreplace"))  # a token may be half a character
    else:
        pyarrow = require("pyarrow", extra="parquet", needed_by="Parquet")
        parquet = require("pyarrow.parquet", extra="parquet", needed_by="Parquet")
        try:
            table = pyarrow.table(dict(columns))
        except (pyarrow.ArrowException, UnicodeEncodeError) as error:  # values of several types, or half a character
            raise InvalidArgument(f"columns: Parquet cannot hold them: {error}") from error
        with atomic_write(path) as file:
            parquet.write_table(table, file)


def _escape_formula(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA_STARTS) else cell


def _as_list(column: Any) -> list[Any]:
    return column.tolist() if hasattr(column, "tolist") else list(column)
