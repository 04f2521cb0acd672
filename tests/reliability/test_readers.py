"""Every reader against damaged files: it reads them, or raises an error of this library, within seconds."""

from __future__ import annotations

import random
import shutil
import signal
from pathlib import Path

import pytest

from helpers.mutate import mutate
from helpers.pairwise import everything
from helpers.readers import READERS
from regard.errors import InvalidFile, RegardError

NUMBER = 6400 if everything() else 40
"""Files that are damaged for a reader of weight 1."""
SECONDS = 20
MAX_MESSAGE = 100_000
SEED = 1


class Hang(BaseException):
    """A reader took too long; no reader can catch it as an `Exception`."""


@pytest.fixture
def _limit():
    """Raises `Hang` in a reader that takes too long."""

    def stop(number, frame):
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("_limit")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_read_or_refused(tmp_path: Path, name: str, record_property) -> None:
    reader = READERS[name]
    original = tmp_path / "original"
    original.mkdir()
    reader.write(original)
    reader.read(shutil.copytree(original, tmp_path / "sound"))
    folder = shutil.copytree(original, tmp_path / "damaged")
    number, refused = round(NUMBER * reader.weight), 0
    for case in range(number):
        draw = random.Random(f"{name} {SEED} {case}")
        path, kind = draw.choice(list(reader.kinds.items()))
        data = (original / path).read_bytes()
        (folder / path).write_bytes(mutate(data, kind, draw))  # it stays there if the process crashes
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            reader.read(folder)
        except RegardError as error:
            refused += 1
            message = str(error)  # of one of many kinds
            names_file = folder.name in message or Path(path).name in message  # a tokenizer in use has no folder
            assert names_file or not isinstance(error, InvalidFile), f"case {case} of {path}: {message}"  # noqa: PT017
            assert len(message) < MAX_MESSAGE, f"case {case} of {path}: {message[:300]}"
        except BaseException as error:
            raise AssertionError(f"case {case} of {path}: {type(error).__name__}: {str(error)[:300]}") from error
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        (folder / path).write_bytes(data)
    assert refused > number / 10  # the damage is not too small
    record_property("damaged files", number)
