"""Lines are written to standard output or to a file, which is complete or not written."""

from __future__ import annotations

import io
import sys

import pytest

from regard.cli.output import open_output, stdin_is_terminal, strip_newlines
from regard.errors import InvalidFile


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
