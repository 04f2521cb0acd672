"""Lines are written to standard output or to a file, which is complete or not written."""

from __future__ import annotations

import gzip
import io
import sys
from pathlib import Path

import pytest

from regard.cli.output import open_output, stdin_is_terminal, strip_newlines
from regard.errors import InvalidArgument, InvalidFile
from regard.text.lines import read_lines


def test_a_translation_is_one_field_of_strip_newlines():
    assert strip_newlines("a\tb\r\n\nc\u2028d") == "a b c\u2028d"


def test_without_a_path_it_is_standard_output_in_utf8(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", newline="\r\n"))
    with open_output(None) as file:
        file.write("grün\n")
        file.flush()
    assert raw.getvalue() == "grün\n".encode()


def test_a_file_is_whole_or_not_at_all(tmp_path):
    with open_output(tmp_path / "out") as file:
        file.write("grün\n")
        assert not (tmp_path / "out").exists()
    assert (tmp_path / "out").read_bytes() == "grün\n".encode()
    with (
        pytest.raises(InvalidFile, match=r"no/out: could not be written: there is no folder .*no; make it first"),
        open_output(tmp_path / "no/out"),
    ):
        pass


def test_input_that_is_closed_is_not_typed(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert not stdin_is_terminal()


@pytest.mark.parametrize("spelling", ["a.txt", "./a.txt", "link.txt"])
def test_the_input_is_not_overwritten(tmp_path, monkeypatch, spelling):
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("text")
    Path("link.txt").symlink_to("a.txt")
    message = f"--output: expected another file than the input, got {Path(spelling)}"
    with pytest.raises(InvalidArgument, match=message), open_output(Path(spelling), ["-", Path("a.txt")]):
        pass
    assert Path("a.txt").read_text() == "text"
    with open_output(Path("b.txt"), [Path("a.txt")]) as file:
        file.write("other")
    assert Path("b.txt").read_text() == "other"


def test_an_output_with_the_suffix_gz_is_compressed(tmp_path):
    contents = []
    for name in ("a.gz", "b.gz"):
        with open_output(tmp_path / name) as file:
            file.write("grün\n")
        contents.append((tmp_path / name).read_bytes())
    assert gzip.decompress(contents[0]).decode() == "grün\n"
    assert contents[0] == contents[1]  # neither time nor name is stored
    assert list(read_lines(tmp_path / "a.gz")) == ["grün"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gz", "b.gz"]
