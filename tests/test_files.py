"""Files and folders are written completely or not at all; links, pipes and the umask are respected."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import regard.files as files_module
from regard.errors import InvalidFile
from regard.files import atomic_folder, atomic_write


def put(path, content: str | bytes = "after\n") -> None:
    with atomic_write(path, text=isinstance(content, str)) as file:
        file.write(content)


def test_a_file_appears_only_when_it_is_complete(tmp_path):
    path = tmp_path / "out.txt"
    path.write_text("before")
    with atomic_write(path, text=True) as file:
        file.write("grün\r\n")
        file.flush()
        assert path.read_text() == "before"
    assert path.read_bytes() == "grün\r\n".encode()
    put(str(path), b"\xff")
    assert path.read_bytes() == b"\xff"
    assert list(tmp_path.iterdir()) == [path]


def test_an_existing_file_is_replaced_and_not_overwritten(tmp_path):
    path, link = tmp_path / "out.txt", tmp_path / "link"
    path.write_text("before")
    link.hardlink_to(path)
    put(path)
    assert (path.read_text(), link.read_text()) == ("after\n", "before")


@pytest.mark.parametrize(
    "interruption", [KeyboardInterrupt, InvalidFile("input, line 3: bad"), OSError(errno.ENOSPC, "No space left")]
)
@pytest.mark.parametrize("when", ["while it is written", "at the end"])
def test_an_existing_file_stays_when_writing_fails(tmp_path, monkeypatch, interruption, when):
    path = tmp_path / "out.txt"
    path.write_text("before")

    def fail(*arguments):
        raise interruption

    if when == "at the end":
        monkeypatch.setattr(files_module.os, "fsync", fail)
    with pytest.raises((KeyboardInterrupt, OSError)) as caught, atomic_write(path, text=True) as file:  # noqa: PT012 - the block is the test
        file.write("half")
        if when != "at the end":
            fail()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
    if type(interruption) is OSError and when == "at the end":  # an error of the block is its own
        assert str(caught.value) == f"{path}: could not be written: No space left"


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_the_mode_is_that_of_a_new_file(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        put(tmp_path / "out.txt")
    finally:
        os.umask(before)
    assert (tmp_path / "out.txt").stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o755])
def test_the_mode_of_an_existing_file_stays(tmp_path, mode):
    for name in ("out.txt", "model.json"):
        (tmp_path / name).touch(mode)
        (tmp_path / name).chmod(mode)
    (tmp_path / "link").symlink_to("out.txt")
    with atomic_write(tmp_path / "link") as file:
        (part,) = set(tmp_path.glob(".saving-*"))
        assert part.stat().st_mode & 0o777 == mode  # while the file is empty
        file.write(b"secret")
    with atomic_folder(tmp_path) as staging:
        (staging / "model.json").write_text("secret")
        (staging / "new.json").touch()
    assert {name: (tmp_path / name).stat().st_mode & 0o777 for name in ("out.txt", "model.json")} == {
        "out.txt": mode,
        "model.json": mode,
    }


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_a_link(tmp_path, exists):
    (tmp_path / "folder").mkdir()
    if exists:
        (tmp_path / "folder/real").write_text("before")
    (tmp_path / "link").symlink_to("folder/real")
    put(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder/real").read_text() == "after\n"
    assert len(list(tmp_path.rglob("*"))) == 3


@pytest.mark.parametrize("through_link", [False, True])
def test_a_pipe_is_written_to(tmp_path, through_link):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    if through_link:
        (tmp_path / "link").symlink_to(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        put(tmp_path / ("link" if through_link else "pipe"))
        assert os.read(reading, 99) == b"after\n"
    finally:
        os.close(reading)
    assert pipe.is_fifo()


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="this system has no /dev/fd")
def test_an_open_pipe_is_written_to_by_its_name():
    reading, writing = os.pipe()  # like /dev/stdout
    put(f"/dev/fd/{writing}")
    os.close(writing)
    with open(reading, "rb") as file:
        assert file.read() == b"after\n"


def test_a_name_may_have_the_maximum_length(tmp_path):
    put(tmp_path / ("n" * 255))
    assert (tmp_path / ("n" * 255)).read_text() == "after\n"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no/out.txt", "there is no folder {}/no; make it first"),
        (".", "Is a directory"),
        ("a/b", "Not a directory"),
    ],
)
def test_a_path_that_cannot_be_written_is_named(tmp_path, path, message):
    (tmp_path / "a").touch()
    with pytest.raises(InvalidFile) as caught:
        put(tmp_path / path)
    assert str(caught.value) == f"{Path(tmp_path / path)}: could not be written: {message.format(tmp_path)}"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def write_some(folder: Path, **options) -> None:
    with atomic_folder(folder, **options) as staging:
        (staging / "a").write_text("new a")
        (staging / "sub").mkdir()
        (staging / "sub/b").write_text("new b")
        assert "new a" not in {text for path, text in contents(folder).items() if not path.startswith(".saving-")}


@pytest.fixture
def folder(tmp_path):
    for name in ("a", "c", "d"):
        (tmp_path / name).write_text(f"old {name}")
    return tmp_path


def test_a_folder_is_replaced_file_by_file(folder):
    write_some(folder)
    assert contents(folder) == {"a": "new a", "sub/b": "new b", "c": "old c", "d": "old d"}
    write_some(folder / "new" / "folder")
    assert contents(folder / "new" / "folder") == {"a": "new a", "sub/b": "new b"}


def test_stale_files_are_removed_unless_they_were_written(folder):
    write_some(folder, remove=("a", "c", "missing", "sub/b"))
    assert contents(folder) == {"a": "new a", "sub/b": "new b", "d": "old d"}


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left")])
@pytest.mark.parametrize("when", ["while it is written", "at the end"])
def test_a_folder_stays_when_writing_fails(folder, monkeypatch, failure, when):
    before = contents(folder)

    def fail(*arguments):
        raise failure

    if when == "at the end":
        monkeypatch.setattr(files_module.os, "fsync", fail)
    with pytest.raises((KeyboardInterrupt, OSError)) as caught, atomic_folder(folder, remove=["c"]) as staging:  # noqa: PT012 - the block is the test
        (staging / "a").write_text("new a")
        if when != "at the end":
            fail()
    assert contents(folder) == before
    assert len(list(folder.iterdir())) == 3
    if type(failure) is OSError and when == "at the end":
        assert str(caught.value) == f"{folder}: could not be written: No space left"


@pytest.mark.parametrize(("below", "reason"), [("", "File exists"), ("further", "Not a directory")])
def test_a_file_in_place_of_a_folder_is_named(tmp_path, below, reason):
    path = tmp_path / "file" / below
    (tmp_path / "file").touch()
    with pytest.raises(InvalidFile) as caught, atomic_folder(path):
        pass
    assert str(caught.value) == f"{path}: could not be written: {reason}"
