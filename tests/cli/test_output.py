"""Lines out: to standard output or to a whole file, one field a line."""

from __future__ import annotations

import io
import sys

import pytest

from regard.cli.output import is_typed, one_line, writing
from regard.errors import InvalidFile


def test_a_translation_is_one_field_of_one_line():
    assert one_line("a\tb\r\n\nc\u2028d") == "a b c\u2028d"


def test_without_a_path_it_is_standard_output_in_utf8(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", newline="\r\n"))
    with writing(None) as file:
        file.write("grün\n")
        file.flush()
    assert raw.getvalue() == "grün\n".encode()


def test_a_file_is_whole_or_not_at_all(tmp_path):
    with writing(tmp_path / "out") as file:
        file.write("grün\n")
        assert not (tmp_path / "out").exists()
    assert (tmp_path / "out").read_bytes() == "grün\n".encode()
    with (
        pytest.raises(InvalidFile, match=r"no/out: could not be written: there is no folder .*no; make it first"),
        writing(tmp_path / "no/out"),
    ):
        pass


def test_input_that_is_closed_is_not_typed(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert not is_typed()
