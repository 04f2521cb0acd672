"""Lines are read back unchanged, in NFC, and files that cannot be read are named with the line."""

from __future__ import annotations

import gzip
import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from regard.errors import InvalidFile, InvalidType
from regard.text.lines import read_lines
from regard.text.readers import read_pairs


def write(path: Path, text: str | bytes) -> Path:
    raw = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


@pytest.mark.parametrize("name", ["text.en", "text.en.gz"])
def test_lines_end_at_line_feeds_only(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, "\ufeffone\r\n\n\ufefftwo\u2028still two\x0b\ne\u0301")
    assert list(read_lines(path)) == ["one", "", "\ufefftwo\u2028still two\x0b", "é"]


def test_a_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("grün\n".encode())))
    assert list(read_lines("-")) == ["grün"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"no")))
    with pytest.raises(
        InvalidFile, match=r"^standard input, line 1: expected source, tab, target, got no tab in 'no'$"
    ):
        list(read_pairs(["-"]))
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InvalidFile, match=r"^standard input: could not be read: it is closed$"):
        list(read_lines(Path("-")))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"good\ngr\xfcn\n", "line 2: expected UTF-8, got 0xfc at byte 3 of the line; convert the file"),
        (b"\xef\xbb\xbfgr\xfcn\n", "line 1: expected UTF-8, got 0xfc at byte 6 of the line"),
        (b"\xef\xbb\xbfgood\ngr\xfcn\n", "line 2: expected UTF-8, got 0xfc at byte 3 of the line"),
    ],
)
@pytest.mark.parametrize("name", ["latin.txt", "latin.txt.gz"])
def test_bytes_that_are_not_utf8_are_named_with_their_line(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(InvalidFile, match=f"^{re.escape(str(path))}, {message}"):
        list(read_lines(path))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "no such file"),
        (lambda path: path.mkdir(), "expected a file, got a folder"),
        (
            lambda path: path.write_bytes(b"plain"),
            "expected a gzip file, but it is damaged or truncated after line 0: Not a gzipped file",
        ),
        (
            lambda path: path.write_bytes(
                gzip.compress(b"".join(b"%d\n" % number for number in range(50_000)))[:-9999]
            ),
            r"it is damaged or truncated after line [1-9]\d+: Compressed file ended",
        ),
    ],
    ids=["missing", "folder", "not gzip", "cut off"],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, make, message: str) -> None:
    path = tmp_path / "text.gz"
    make(path)
    with pytest.raises(InvalidFile, match=rf"text\.gz: .*{message}"):
        list(read_lines(path))


@pytest.mark.parametrize("path", [None, 5, b"lines.txt"])
def test_a_path_is_a_str_or_a_path(path: Any) -> None:
    with pytest.raises(InvalidType, match="path: expected a path, got "):
        next(read_lines(path))


@pytest.mark.parametrize("suffix", [".zst", ".bz2", ".xz", ".zip", ".arrow"])
def test_a_format_that_cannot_be_read_is_named(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"a.txt{suffix}").write_bytes(b"text\n")
    with pytest.raises(
        InvalidFile, match=rf"expected text, plain or \.gz, or \.parquet, got \{suffix}; convert the file"
    ):
        list(read_lines(tmp_path / f"a.txt{suffix}"))
