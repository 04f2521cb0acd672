"""Errors while a file is written name it only if it caused them, not if the block around it raised."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import regard.files as files_module
from regard.errors import InvalidFile
from regard.files import atomic_write


@pytest.fixture(params=["new", "old", "link", "pipe"])
def place(request, tmp_path):
    """Where there is nothing, a file, a link to it, or a pipe with a reader."""
    (tmp_path / "old").write_text("before")
    (tmp_path / "link").symlink_to("old")
    os.mkfifo(tmp_path / "pipe")
    reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    yield tmp_path / request.param
    os.close(reading)


def missing_file(folder):
    (folder / "missing").read_text()


def missing_folder(folder):
    (folder / "no/such").mkdir()


def full_disk(folder):
    raise OSError(errno.ENOSPC, "No space left on device", str(folder / "another"))


def lost_connection(folder):
    raise ConnectionResetError("peer is gone")


@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize("fail", [missing_file, missing_folder, full_disk, lost_connection])
def test_an_error_of_the_block_is_not_blamed_on_the_file(place, tmp_path, fail, text):
    before = sorted(tmp_path.iterdir())
    raised = []
    with pytest.raises(OSError) as caught, atomic_write(place, text=text) as file:  # noqa: PT011, PT012 - see below
        file.write("half" if text else b"half")
        try:
            fail(tmp_path)
        except OSError as error:
            raised.append(error)
            raise
    assert [caught.value] == raised  # that very one
    assert caught.value.__cause__ is None
    assert sorted(tmp_path.iterdir()) == before  # no part of a file is left
    assert (tmp_path / "old").read_text() == "before"


def test_an_error_of_a_file_within_a_file_is_blamed_on_the_inner_one(tmp_path):
    with pytest.raises(InvalidFile) as caught, atomic_write(tmp_path / "outer"), atomic_write(tmp_path / "no/inner"):
        pass
    assert str(caught.value).startswith(f"{tmp_path / 'no/inner'}: could not be written")
    assert list(tmp_path.iterdir()) == []


def refuse(*arguments, **options):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("step", ["open", "flush", "rename"])
@pytest.mark.parametrize("exists", [True, False])
def test_a_failure_to_write_the_file_itself_names_it(tmp_path, monkeypatch, step, exists):
    path = tmp_path / "out.txt"
    if exists:
        path.write_text("before")
    if step == "open":
        monkeypatch.setattr(files_module, "_NamedFile", refuse)
    elif step == "flush":
        monkeypatch.setattr(files_module.os, "fsync", refuse)
    else:
        for owner in (Path, os):
            monkeypatch.setattr(owner, "replace", refuse)
            monkeypatch.setattr(owner, "rename", refuse)
    with pytest.raises(InvalidFile) as caught, atomic_write(path, text=True) as file:
        file.write("whole")
    monkeypatch.undo()
    assert str(caught.value) == f"{path}: could not be written: No space left on device"
    assert isinstance(caught.value.__cause__, OSError)
    assert [each.read_text() for each in tmp_path.iterdir()] == (["before"] if exists else [])


def test_what_is_buffered_fails_when_the_file_is_closed_and_is_blamed_on_it(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)  # the pipe has no reader
    with (
        pytest.raises(InvalidFile, match="could not be written: Broken pipe"),
        atomic_write(f"/dev/fd/{writing}") as file,
    ):
        file.write(b"few bytes")
    os.close(writing)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
@pytest.mark.parametrize("size", [10, 10**6])
def test_a_full_disk_names_the_file(size):
    with (
        pytest.raises(InvalidFile, match="/dev/full: could not be written: No space left"),
        atomic_write("/dev/full") as file,
    ):
        file.write(bytes(size))
