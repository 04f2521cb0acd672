"""Lines and pairs are read back unchanged, in NFC, and bad files are refused with file and line."""

from __future__ import annotations

import gzip
import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from regard.errors import InvalidArgument, InvalidFile, InvalidType
from regard.text.readers import group_references, read_labeled_texts, read_pairs

PAIRS = [("Hello.", "Hallo."), ("How are you?", "Wie geht's?"), ("cafe\u0301", "Café")]


def write(path: Path, text: str | bytes) -> Path:
    raw = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_tsv_and_aligned_files_give_the_same_pairs(tmp_path: Path, suffix: str, ending: str) -> None:
    tsv = write(tmp_path / f"both.tsv{suffix}", ending.join("\t".join(pair) for pair in PAIRS) + ending)
    sides = [
        write(tmp_path / f"side{side}{suffix}", "\ufeff" + ending.join(pair[side] for pair in PAIRS)) for side in (0, 1)
    ]
    expected = [*PAIRS[:2], ("café", "Café")]  # NFC
    assert list(read_pairs([tsv])) == expected
    assert list(read_pairs(sides)) == expected


def test_further_columns_are_ignored_and_white_space_around(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", " one\u2028line \teins\tlicence\n")
    assert list(read_pairs([path])) == [("one\u2028line", "eins")]


def test_a_line_without_a_tab_is_shown(tmp_path: Path) -> None:
    path = write(tmp_path / "tabs.tsv", f"a\tb\nc d{'x' * 99}\n")
    with pytest.raises(InvalidFile) as caught:
        list(read_pairs([path]))
    assert str(caught.value) == f"{path}, line 2: expected source, tab, target, got no tab in 'c d{'x' * 57}'"


@pytest.mark.parametrize("counts", [(3, 5), (5, 3)])
def test_unequal_line_counts_are_refused_with_both(tmp_path: Path, counts: tuple[int, int]) -> None:
    files = [write(tmp_path / f"side{side}", "x\n" * count) for side, count in enumerate(counts)]
    message = f"{files[0]}, {files[1]}: expected the same number of lines, got {counts[0]} and {counts[1]}"
    with pytest.raises(InvalidFile, match=re.escape(message)):
        list(read_pairs(files))


def test_three_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"files: expected one TSV or two line-aligned files, or .* got 3 files"):
        list(read_pairs([tmp_path / "a"] * 3))


def test_references_keep_their_order_and_empty_sides_have_none() -> None:
    pairs = [("b", "1"), ("a", "2"), ("b", "3"), ("c", ""), ("", "4"), ("b", "1")]
    assert list(group_references(iter(pairs)).items()) == [("b", ["1", "3", "1"]), ("a", ["2"])]


@pytest.mark.parametrize("read", [read_pairs, read_labeled_texts])
@pytest.mark.parametrize("files", ["f.tsv", Path("f.tsv")])
def test_a_single_path_is_refused(read: Any, files: Any) -> None:
    with pytest.raises(InvalidType, match=r"files: expected a sequence of paths, got .*; pass a list"):
        list(read(files))


def test_labeled_texts_of_standard_input_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"good\tpos\nbad\n")))
    texts = read_labeled_texts(["-"])
    assert next(texts) == ("standard input, line 1", "good", "pos")
    with pytest.raises(InvalidFile, match="standard input, line 2: expected text, tab, class, got 'bad'"):
        next(texts)


def test_an_empty_line_of_a_tsv_is_an_empty_pair(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("a\tb\n\n \nc\td\n")
    assert [*read_pairs([tmp_path / "pairs.tsv"])] == [("a", "b"), ("", ""), ("", ""), ("c", "d")]
