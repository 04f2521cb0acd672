"""Only regular files are read; errors name the file and the problem."""

from __future__ import annotations

import hashlib
import os

import pytest

from regard.errors import InvalidCheckpoint, InvalidFile
from regard.input_files import check_file, exists, hash_file, parse_json, read_file, read_json


def test_a_file_is_read(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"a": [1, "é"]}', encoding="utf-8")
    assert read_file(path) == path.read_bytes()
    assert read_json(path) == {"a": [1, "é"]}
    assert exists(path)


def test_a_hash_is_that_of_the_content(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(range(256)) * 5000)
    assert hash_file(path) == hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(InvalidCheckpoint, match="none: no such file"):
        hash_file(tmp_path / "none", InvalidCheckpoint)


def test_what_is_not_a_file_is_named(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("x")
    reasons = {
        "none": "no such file",
        "file/below": "no such file",
        ".": "expected a file, got a folder",
        "pipe": "expected a file, got a pipe",
        "zero": "expected a file, got a device",
        "loop": "could not be read: Too many levels of symbolic links",
        "x" * 300: "could not be read: File name too long",
        "a\0b": "could not be read: embedded null byte",
    }
    for name, reason in reasons.items():
        path = tmp_path / name
        with pytest.raises(InvalidFile) as error:
            check_file(path)
        assert str(error.value) == f"{path}: {reason}"
        assert exists(path) == (reason != "no such file")
    with pytest.raises(InvalidCheckpoint):
        check_file(tmp_path / "none", InvalidCheckpoint)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting value"),
        ("{", "Expecting property name"),
        ("[" * 100_000, "its values are nested too deeply"),
        ('{"a":' * 100_000, "its values are nested too deeply"),
        (r'{"a": "\ud800"}', "surrogates not allowed"),
        (r'{"\udfff": 1}', "surrogates not allowed"),
        ("9" * 5000, "Exceeds the limit"),
        (b"\xff", "codec can't decode byte 0xff"),
    ],
)
def test_what_is_not_json_is_named(text, reason):
    with pytest.raises(InvalidFile, match=r"^a\.json: not valid JSON: .*" + reason):
        parse_json(text, "a.json")


def test_pairs_of_surrogates_are_characters():
    assert parse_json(r'["\ud83d\ude00"]', "a.json") == ["😀"]


def test_a_byte_order_mark_is_not_part_of_the_text(tmp_path):
    path = tmp_path / "marked.json"
    path.write_bytes(b"\xef\xbb\xbf" + b'{"a": 1}')
    assert read_json(path) == {"a": 1}
