"""The same rows as text, JSON Lines and Parquet."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

FORMATS = (".txt", ".txt.gz", ".jsonl", ".jsonl.gz", ".json", ".parquet")


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]], row_group_size: int = 3) -> Path:
    """Write rows in the format of the suffix; in text, tabs separate the columns."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), path, row_group_size=row_group_size)
        return path
    is_text = path.name.removesuffix(".gz").endswith((".txt", ".tsv"))
    lines = ["\t".join(map(str, row.values())) if is_text else json.dumps(row) for row in rows]
    content = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def write_texts(path: Path, texts: Sequence[str], **options: Any) -> Path:
    return write_rows(path, [{"text": text} for text in texts], **options)
