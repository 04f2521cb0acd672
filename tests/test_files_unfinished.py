"""Unfinished files: those of killed processes are removed by the next write, those of running ones are not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import regard.files as files_module
from regard.files import PREFIX, atomic_folder, atomic_write, remove_leftovers

WRITE_FILE = """
import sys, time
from regard.files import atomic_write
with atomic_write(sys.argv[1]) as file:
    file.write(b"half")
    file.flush()
    print("ready", flush=True)
    time.sleep(600)
"""
WRITE_FOLDER = """
import pathlib, sys, time
from regard.files import atomic_folder
with atomic_folder(sys.argv[1]) as staging:
    (staging / "a").write_text("half")
    print("ready", flush=True)
    time.sleep(600)
"""


def started(code: str, path: Path) -> subprocess.Popen[str]:
    """A process that is writing a file or folder."""
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def unfinished(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{PREFIX}*"))


def write_file(path: Path) -> None:
    with atomic_write(path) as file:
        file.write(b"whole")


def write_folder(path: Path) -> None:
    with atomic_folder(path) as staging:
        (staging / "a").write_text("whole")


@pytest.mark.parametrize(("code", "name"), [(WRITE_FILE, "out"), (WRITE_FOLDER, "")])
def test_the_next_write_removes_what_a_killed_one_left_and_nothing_of_a_living_one(tmp_path, code, name):
    path = tmp_path / name
    living, killed = started(code, path), started(code, path)
    kill(killed)
    assert len(unfinished(tmp_path)) == 2
    (write_file if name else write_folder)(path)
    (left,) = unfinished(tmp_path)
    assert (left / "a" if left.is_dir() else left).read_text() == "half"  # the living one has lost nothing
    kill(living)
    (write_file if name else write_folder)(path)
    assert unfinished(tmp_path) == []


def test_what_a_living_process_may_have_locked_is_removed_if_that_is_wanted(tmp_path):
    process = started(WRITE_FOLDER, tmp_path)
    remove_leftovers(tmp_path)
    assert len(unfinished(tmp_path)) == 1
    remove_leftovers(tmp_path, locked=True)
    assert unfinished(tmp_path) == []
    kill(process)


def test_the_unfinished_files_of_other_targets_stay(tmp_path):
    kill(started(WRITE_FILE, tmp_path / "another"))
    write_file(tmp_path / "out")
    assert len(unfinished(tmp_path)) == 1
    write_file(tmp_path / "another")
    assert unfinished(tmp_path) == []


def test_files_and_links_of_others_are_not_touched(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").touch()
    (tmp_path / ".saved").touch()
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "mine")
    os.mkfifo(tmp_path / f"{PREFIX}pipe")
    before = sorted(tmp_path.rglob("*"))
    remove_leftovers(tmp_path)
    remove_leftovers(tmp_path / "missing")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_file_that_is_removed_before_it_has_its_lock_is_created_again(tmp_path, monkeypatch, kind):
    """Another process may clean up just then."""
    lock, removed = files_module._lock, []

    def remove_first(descriptor: int, path: Path) -> bool:
        if not removed:
            removed.append(path)
            remove_leftovers(path.parent)
            assert not path.exists()
        return lock(descriptor, path)

    monkeypatch.setattr(files_module, "_lock", remove_first)
    if kind == "file":
        write_file(tmp_path / "a")
    else:
        write_folder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "whole"


def test_many_writers_of_one_file_do_not_disturb_each_other(tmp_path):
    failures = []

    def write(number: int) -> None:
        try:
            for _ in range(30):
                with atomic_write(tmp_path / "out", text=True) as file:
                    file.write(f"{number}" * 1000)
        except OSError as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert set((tmp_path / "out").read_text()) <= set("01234567")
    assert unfinished(tmp_path) == []
