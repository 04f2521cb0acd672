"""Parquet and JSON Lines have the texts that text files have, and a bad row is named with its file and number."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json
import pyarrow.parquet as pq
import pytest

from helpers.corpora import FORMATS, write_rows, write_texts
from regard.errors import InvalidArgument, InvalidFile
from regard.text.lines import read_lines
from regard.text.readers import read_labeled_texts, read_pairs
from regard.text.tables import check_first_row, is_table, read_table, read_texts

TEXTS = ["one", "", "zwei Vögel", "cafe\u0301", '"four" \\ four', "☃" * 50, "the end"] * 3
NFC = ["one", "", "zwei Vögel", "café", '"four" \\ four', "☃" * 50, "the end"] * 3


@pytest.mark.parametrize("suffix", FORMATS)
def test_all_formats_have_the_same_texts(tmp_path: Path, suffix: str) -> None:
    path = write_texts(tmp_path / f"corpus{suffix}", TEXTS)
    assert [*read_texts(path)] == NFC
    assert is_table(path) == (".txt" not in suffix)


def test_tables_are_read_as_pyarrow_reads_them(tmp_path: Path) -> None:
    rows = [{"url": str(index), "content": f"a\nb {index}", "n": index} for index in range(700)]
    lines, parquet = (write_rows(tmp_path / name, rows, row_group_size=99) for name in ("a.jsonl", "a.parquet"))
    assert [*read_texts(lines, "content")] == pa_json.read_json(lines)["content"].to_pylist()
    assert [*read_texts(parquet, "content")] == pq.read_table(parquet)["content"].to_pylist()


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_dot_reads_a_column_in_a_column(tmp_path: Path, suffix: str) -> None:
    rows = [{"translation": {"en": f"cat {index}", "de": f"Katze {index}"}} for index in range(5)]
    path = write_rows(tmp_path / f"pairs{suffix}", rows)
    columns = {"source_column": "translation.en", "target_column": "translation.de"}
    assert [*read_pairs([path], **columns)] == [(f"cat {index}", f"Katze {index}") for index in range(5)]
    with pytest.raises(InvalidFile, match=r"'translation\.fr' \(text_column\), got .*translation\.en"):
        next(read_texts(path, "translation.fr"))
    dotted = write_rows(tmp_path / f"dotted{suffix}", [{"a.b": "c"}])
    assert [*read_texts(dotted, "a.b")] == ["c"]


@pytest.mark.parametrize("suffix", [".tsv", ".jsonl", ".json", ".parquet"])
def test_pairs_and_classes_of_all_formats(tmp_path: Path, suffix: str) -> None:
    pairs = write_rows(tmp_path / f"pairs{suffix}", [{"source": f" s{n}", "target": f"t{n} "} for n in range(4)])
    assert [*read_pairs([pairs])] == [(f"s{n}", f"t{n}") for n in range(4)]
    classes = write_rows(tmp_path / f"classes{suffix}", [{"text": f"t{n}", "label": n % 2} for n in range(4)])
    unit = "row" if suffix == ".parquet" else "line"
    expected = [(f"{classes}, {unit} {n + 1}", f"t{n}", str(n % 2)) for n in range(4)]
    assert [*read_labeled_texts([classes])] == expected


def test_several_tables_have_the_pairs_of_all(tmp_path: Path) -> None:
    files = [write_rows(tmp_path / f"{n}.parquet", [{"source": f"s{n}", "target": f"t{n}"}]) for n in range(3)]
    assert [*read_pairs(files)] == [("s0", "t0"), ("s1", "t1"), ("s2", "t2")]
    with pytest.raises(InvalidArgument, match=r"files: expected one TSV or two .*, got both kinds"):
        next(read_pairs([files[0], tmp_path / "a.tsv"]))


BAD = {
    "missing column": (
        [{"text": "a"}, {"texts": "b"}],
        "line 2: expected the column 'text' \\(text_column\\), got texts, did you mean",
    ),
    "number": ([{"text": "a"}, {"text": 5}], "line 2: expected a str in the column 'text', got 5"),
    "null": ([{"text": "a"}, {"text": None}], "line 2: expected a str in the column 'text', got None"),
    "list": ([["a"]], r"line 1: expected one JSON object per line, got .*; convert a list with `jq -c '\.\[\]'`"),
    "string": (["a"], "line 1: expected one JSON object per line, got"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_is_named(tmp_path: Path, name: str) -> None:
    rows, message = BAD[name]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(InvalidFile, match=f"^{re.escape(str(path))}, {message}"):
        list(read_texts(path))


def test_what_is_not_json_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n\n{"text": "b"\n')
    with pytest.raises(InvalidFile, match=r"a\.jsonl, line 3: not valid JSON"):
        list(read_texts(path))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["a", "b", None], r"a\.parquet, row 3: expected a str in the column 'text', got None"),
        ([1, 2], r"a\.parquet, row 1: expected a str in the column 'text', got 1"),
        ([b"\xff"], r"a\.parquet, row 1: expected a str in the column 'text', got b'\\xff'"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, values: list[Any], message: str) -> None:
    path = write_rows(tmp_path / "a.parquet", [{"text": value} for value in values], row_group_size=2)
    with pytest.raises(InvalidFile, match=message):
        list(read_texts(path))


def test_the_columns_of_a_parquet_file_are_listed(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.parquet", [{"content": "a", "url": "b"}])
    with pytest.raises(InvalidFile, match=r"a\.parquet: expected the column 'text' \(text_column\), got content, url"):
        next(read_texts(path))


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "other"])
def test_a_damaged_parquet_file_is_named(tmp_path: Path, damage: str) -> None:
    path = write_texts(tmp_path / "a.parquet", [f"{n} " * 50 for n in range(1000)], row_group_size=500)
    raw = bytearray(path.read_bytes())
    if damage == "flipped":
        raw[2000:2400] = bytes(400)
    path.write_bytes({"cut": raw[:-100], "flipped": raw, "empty": b"", "other": b"text\n"}[damage])
    with pytest.raises(InvalidFile, match=r"a\.parquet: expected a Parquet file, got a damaged one: "):
        list(read_texts(path))


def test_bytes_of_parquet_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    ends = np.array([0, 1, 2], np.int32).tobytes()
    raw = pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(ends), pa.py_buffer(b"a\xff")])
    pq.write_table(pa.table({"text": raw}), tmp_path / "a.parquet")
    with pytest.raises(InvalidFile, match=r"a\.parquet: expected UTF-8, got other bytes after row 0"):
        list(read_texts(tmp_path / "a.parquet"))


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_the_first_row_is_checked(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.table({"text": pa.array([], pa.string())}), path)
    else:
        path.write_text("\n\n")
    with pytest.raises(InvalidFile, match=rf"a\{suffix}: expected at least one row, got none"):
        check_first_row(path, {"data.text_column": "text"})
    write_texts(path, ["a"])
    check_first_row(path, {"data.text_column": "text"})
    with pytest.raises(
        InvalidFile, match=r"expected the column 'txt' \(data\.txt_column\), got text, did you mean 'text'\?"
    ):
        check_first_row(path, {"data.txt_column": "txt"})


@pytest.mark.parametrize("suffix", [".txt", ".jsonl"])
@pytest.mark.parametrize("size", [1, 7, 16, 1000])
def test_parts_of_bytes_have_each_line_once(tmp_path: Path, suffix: str, size: int) -> None:
    texts = ["", "a", "bb ☃", "", "ccc " * 9, "d\u2028d", "e"]
    path = write_texts(tmp_path / f"a{suffix}", texts)
    end = path.stat().st_size
    parts = [(start, min(start + size, end)) for start in range(0, end, size)]
    assert [text for part in parts for text in read_texts(path, part=part)] == texts


def test_parts_of_row_groups_have_each_row_once(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "a.parquet", TEXTS, row_group_size=4)
    assert [text for n in range(6) for text in read_texts(path, part=(n, n + 1))] == NFC
    columns = {"text_column": "text"}
    rows = [row.where for n in range(6) for row in read_table(path, columns, (n, n + 1))]
    assert rows == [f"{path}, row {n}" for n in range(1, len(TEXTS) + 1)]


def test_lines_of_a_part_are_named_with_their_number_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n' * 5 + '{"text": 5}\n')
    for start in range(70):
        with pytest.raises(InvalidFile, match=r"a\.jsonl, line 6: expected a str"):
            list(read_texts(path, part=(start, 1000)))
    (tmp_path / "b.txt").write_bytes(b"one\ntwo\n\xff\n")
    with pytest.raises(InvalidFile, match=r"b\.txt, line 3: expected UTF-8"):
        list(read_lines(tmp_path / "b.txt", (5, 100)))
