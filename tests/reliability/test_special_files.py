"""Files that are not regular, or cannot be read: every reader refuses them at once and names their kind."""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from helpers.readers import READERS
from regard.errors import InvalidFile, RegardError

CASES = [(name, path) for name, reader in READERS.items() for path in reader.kinds]
SECONDS = 20


@pytest.fixture(scope="module")
def originals(tmp_path_factory) -> dict[str, Path]:
    """The folder of each reader, as it should be."""
    root = tmp_path_factory.mktemp("originals")
    for name, reader in READERS.items():
        (root / name).mkdir()
        reader.write(root / name)
    return {name: root / name for name in READERS}


@pytest.fixture
def _limit():
    """Ends a reader that waits."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def _is_named(error: RegardError, path: str) -> bool:
    return Path(path).name in str(error) and isinstance(error, InvalidFile)


@pytest.mark.usefixtures("_limit")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["a pipe", "a device", "a folder"])
@pytest.mark.parametrize(("name", "path"), CASES)
def test_what_is_not_a_file_is_refused_at_once(originals, tmp_path, name, path, kind):
    folder = shutil.copytree(originals[name], tmp_path / "damaged")
    (folder / path).unlink()
    if kind == "a pipe":
        os.mkfifo(folder / path)
    elif kind == "a device":
        (folder / path).symlink_to("/dev/zero")
    else:
        (folder / path).mkdir()
    with pytest.raises(RegardError) as error:
        READERS[name].read(folder)
    assert _is_named(error.value, path)
    assert kind in str(error.value)


@pytest.mark.usefixtures("_limit")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "path"), CASES)
def test_an_unreadable_file_is_not_reported_as_damaged(originals, tmp_path, name, path, monkeypatch):
    folder = shutil.copytree(originals[name], tmp_path / "damaged")
    original = builtins.open

    def deny(file: Any, *arguments: Any, **options: Any) -> Any:
        is_named = isinstance(file, (str, os.PathLike)) and Path(file).name == Path(path).name
        if is_named and Path(file).is_relative_to(folder):
            raise PermissionError(errno.EACCES, "Permission denied", str(file))
        return original(file, *arguments, **options)

    monkeypatch.setattr(builtins, "open", deny)
    monkeypatch.setattr(io, "open", deny)
    with pytest.raises(RegardError) as error:
        READERS[name].read(folder)
    assert _is_named(error.value, path)
    assert f"{Path(path).name}: could not be read: Permission denied" in str(error.value)
    assert "damaged" not in str(error.value).replace(str(folder), "")
    assert "truncated" not in str(error.value)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="only root can be another user for a while")
def test_a_file_of_another_user(tmp_path_factory, originals):
    """The same with real permissions, which root does not have to heed."""
    folder = shutil.copytree(originals["recording"], tmp_path_factory.mktemp("private") / "folder")
    (folder / "run.regard").chmod(0o600)
    for parent in (folder, *folder.parents[:3]):
        parent.chmod(parent.stat().st_mode | 0o055)
    os.seteuid(65534)
    try:
        with pytest.raises(InvalidFile, match=r"run\.regard: could not be read: Permission denied"):
            READERS["recording"].read(folder)
    finally:
        os.seteuid(0)
