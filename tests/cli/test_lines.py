"""Lines in and out: what is not UTF-8 or not there is named, and a file is written whole or not at all."""

from __future__ import annotations

import gzip
import io
import sys
from pathlib import Path

import pytest

from regard.cli.lines import one_line, read_lines, writing
from regard.errors import InvalidFile


@pytest.mark.parametrize("name", ["text.en", "text.en.gz"])
def test_lines_end_at_newlines_only(tmp_path, name):
    path = tmp_path / name
    data = "\ufeffone\r\n\ntwo\u2028still two\x0b\nthree".encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    assert list(read_lines(path)) == ["one", "", "two\u2028still two\x0b", "three"]


def test_a_dash_is_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("grün\n".encode())))
    assert list(read_lines(Path("-"))) == ["grün"]


def test_bytes_that_are_not_utf8_are_named_with_their_line(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes("good\ngr\xfcn\n".encode("latin-1"))
    with pytest.raises(InvalidFile, match=r"latin\.txt, line 2: expected UTF-8, but byte 3 of the line is 0xfc"):
        list(read_lines(path))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "cannot be read: No such file or directory"),
        (lambda path: path.mkdir(), "cannot be read: Is a directory"),
        (
            lambda path: path.write_bytes(b"plain"),
            "expected a gzip file, but it is damaged or cut off: Not a gzipped file",
        ),
        (
            lambda path: path.write_bytes(gzip.compress(b"line\n" * 999)[:-9]),
            "it is damaged or cut off: Compressed file",
        ),
    ],
    ids=["missing", "folder", "not gzip", "cut off"],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, make, said):
    path = tmp_path / "text.gz"
    make(path)
    with pytest.raises(InvalidFile, match=rf"text\.gz: .*{said}"):
        list(read_lines(path))


def test_a_file_appears_only_when_it_is_complete(tmp_path):
    path = tmp_path / "out.txt"
    path.write_text("before")
    with writing(path) as file:
        file.write("after\n")
        file.flush()
        assert path.read_text() == "before"
    assert path.read_text() == "after\n"
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_that_was_there_is_not_written_into(tmp_path):
    path, link = tmp_path / "out.txt", tmp_path / "link"
    path.write_text("before")
    link.hardlink_to(path)
    with writing(path) as file:
        file.write("after")
    assert (path.read_text(), link.read_text()) == ("after", "before")


@pytest.mark.parametrize(
    "interruption", [KeyboardInterrupt, InvalidFile("input, line 3: bad"), OSError(28, "No space left")]
)
def test_what_was_there_stays_when_writing_fails(tmp_path, interruption):
    path = tmp_path / "out.txt"
    path.write_text("before")
    with pytest.raises((KeyboardInterrupt, InvalidFile)) as caught, writing(path) as file:  # noqa: PT012 - what is inside is the test
        file.write("half")
        raise interruption
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
    if isinstance(interruption, OSError) and not isinstance(interruption, InvalidFile):
        assert str(caught.value) == f"{path}: cannot be written: No space left"


def test_a_translation_is_one_field_of_one_line():
    assert one_line("a\tb\r\n\nc\u2028d") == "a b c\u2028d"


def test_a_missing_folder_is_named(tmp_path):
    with (
        pytest.raises(InvalidFile, match=r"no/out\.txt: cannot be written: No such file"),
        writing(tmp_path / "no/out.txt"),
    ):
        pass


def test_a_link_stays_a_link_and_a_device_a_device(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with writing(tmp_path / "link") as file:
        file.write("text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "text"
    with writing(Path("/dev/null")) as file:
        file.write("text")
    assert Path("/dev/null").is_char_device()
