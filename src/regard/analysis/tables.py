"""Plain numbers out: the strongest edges and the measures of rows as columns, and columns as files."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from regard.analysis.heads import Columns
from regard.analysis.recording import Layers, Recording
from regard.errors import InvalidArgument, InvalidType, MissingExtra, count_problems, raise_problems
from regard.files import atomic_write
from regard.ops.measures import MeasureLike, TopK, as_measures

ENDINGS = (".csv", ".npz", ".parquet")
"""The kinds of files that `save_table` writes."""


def edges(recording: Recording, k: int = 8) -> Columns:
    """The k strongest keys of each row of every head: who looks at whom, and how much.

    Args:
        recording: What was recorded.
        k: How many of each row; fewer where it sees fewer.

    Returns:
        Columns by name, for ``pandas.DataFrame``: ``layer``, ``kind``, ``head``, ``query`` and ``key`` (all from 0),
        ``query_token``, ``key_token``, ``weight``; a row is an edge.

    Raises:
        InvalidArgument: If k is no number of keys.

    Memory: O(queries · k) for each head.

    Example:
        >>> import regard
        >>> from regard.analysis import edges
        >>> table = edges(regard.generation.Translator.load().record("Thank you."), k=1)
        >>> table["query_token"][0], round(sum(table["weight"]), 1) > 1
        ('▁Thank', True)
    """
    _check(recording)
    raise_problems(count_problems(k=k))
    names = ("layer", "kind", "head", "query", "key", "query_token", "key_token", "weight")
    found: Columns = {name: [] for name in names}
    for layer in recording.layers:
        top = layer.weights.detach().measure(TopK(min(k, layer.weights.shape[3])))["topk"]
        of_heads = zip(layer.head_numbers, top.values[0].tolist(), top.indices[0].tolist(), strict=True)
        for head, values, indices in of_heads:
            for query, (weights, keys) in enumerate(zip(values, indices, strict=True)):
                for weight, key in zip(weights, keys, strict=True):
                    if key < 0:  # the row sees fewer
                        continue
                    edge = (layer.name, layer.kind, head, query, key, layer.queries[query], layer.keys[key], weight)
                    for name, value in zip(names, edge, strict=True):
                        found[name].append(value)
    return found


def row_table(recording: Recording, measure: MeasureLike = ("entropy", "max", "mean_distance")) -> Columns:
    """Measures of each row of every head.

    Args:
        recording: What was recorded.
        measure: What to ask, as for `regard.attend`: measures that give one number for each query, or several.

    Returns:
        Columns by name, for ``pandas.DataFrame``: ``layer``, ``kind``, ``head``, ``query``, ``token``, and one for each
        measure, or for each of its parts: ``max_weight``, ``max_score``.

    Raises:
        InvalidArgument: If a measure gives something else.
    """
    _check(recording)
    measures = as_measures(measure)
    wrong = [name for name, each in measures.items() if each.axis != "queries"]
    raise_problems([f"measure: '{name}' is not of rows: ask it of a layer's weights" for name in wrong])
    found: Columns = {name: [] for name in ("layer", "kind", "head", "query", "token")}
    for layer in recording.layers:
        _, heads, queries, _ = layer.weights.shape
        numbers = layer.head_numbers
        found["layer"] += [layer.name] * heads * queries
        found["kind"] += [layer.kind] * heads * queries
        found["head"] += [head for head in numbers for _ in range(queries)]
        found["query"] += [*range(queries)] * heads
        found["token"] += [*layer.queries] * heads
        for name, answer in layer.weights.detach().measure(measures).items():
            for part, value in _parts(name, answer).items():
                for column, values in _columns(part, value[0]).items():
                    found.setdefault(column, []).extend(values)
    return found


def _check(recording: object) -> None:
    if not isinstance(recording, Recording):
        instead = ": give seen.recording()" if isinstance(recording, Layers) else ""
        raise InvalidType(f"recording: expected a Recording, got {type(recording).__name__}{instead}")


def _parts(name: str, answer: Any) -> dict[str, Tensor]:
    """The tensors of an answer, which may be several, by names; those of a plain tuple by numbers."""
    if not isinstance(answer, tuple):
        return {name: answer}
    fields = getattr(answer, "_fields", range(len(answer)))
    return {f"{name}_{field}": part for field, part in zip(fields, answer, strict=True)}


def _columns(name: str, answer: Tensor) -> Mapping[str, Sequence[Any]]:
    """An answer about one sequence, (heads, queries, ...), by columns."""
    if answer.ndim == 2:
        return {name: answer.flatten().tolist()}
    flat = answer.flatten(2).flatten(0, 1)
    return {f"{name}_{number}": flat[:, number].tolist() for number in range(flat.shape[1])}


def save_table(columns: Columns, path: str | os.PathLike[str]) -> None:
    """Write columns as a file, whole or not at all.

    Args:
        columns: Of equal length, by name, as `edges`, `row_table` and `head_scores` give them.
        path: ``*.csv``; ``*.npz``, an array for each column; or ``*.parquet``.

    Raises:
        InvalidType: If the columns are no dict.
        InvalidArgument: If the name has another ending, or the columns are not of one length.
        InvalidFile: If the file cannot be written.
        MissingExtra: If it is to be Parquet, and pyarrow is not installed.
    """
    if not isinstance(columns, Mapping):
        raise InvalidType(f"columns: expected lists by name, as `edges` gives them, got {type(columns).__name__}")
    for name, column in columns.items():
        if isinstance(column, str) or not hasattr(column, "__len__"):
            raise InvalidType(f"columns: expected a list as {name!r}, got {column!r:.80}")
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidType(f"path: expected the path of a file, got {path!r:.80}")
    place, lengths = Path(path), {len(column) for column in columns.values()}
    if place.suffix.lower() not in ENDINGS:
        raise InvalidArgument(f"path: expected a name that ends with one of {', '.join(ENDINGS)}, got {place.name!r}")
    if len(lengths) > 1:
        raise InvalidArgument(f"columns: expected one length for all, got {', '.join(map(str, sorted(lengths)))}")
    data = {".csv": _csv, ".npz": _npz, ".parquet": _parquet}[place.suffix.lower()](columns)
    with atomic_write(place) as file:
        file.write(data)


def _csv(columns: Columns) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue().encode("utf-8", "backslashreplace")


def _npz(columns: Columns) -> bytes:
    data = io.BytesIO()
    arrays: dict[str, Any] = {name: np.array(column) for name, column in columns.items()}
    if "file" in arrays:
        raise InvalidArgument("columns: NumPy's archives can hold none that is called 'file'; give it another name")
    np.savez_compressed(data, **arrays)
    return data.getvalue()


def _parquet(columns: Columns) -> bytes:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra("Parquet needs pyarrow: install it with `pip install pyarrow`") from None
    data = io.BytesIO()
    try:
        table = pyarrow.table(dict(columns))
    except (pyarrow.ArrowException, UnicodeEncodeError) as error:  # values of several kinds, or half a character
        raise InvalidArgument(f"columns: Parquet cannot hold them: {error}") from error
    parquet.write_table(table, data)
    return data.getvalue()
