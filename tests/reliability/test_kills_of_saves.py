"""A save that is killed at any moment leaves the old or the new content, and the next save leaves nothing else.

One process imports the library and forks a process for each save. It saves in a loop, and is killed after a random
time, so that the kill meets every part of a save.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import regard
from helpers.attacks import number_of_tries, seed
from helpers.recordings import recorded
from regard.analysis import save_table
from regard.explore import write_html
from regard.models import GPT, GPTConfig, load_model, save_model
from regard.text.tokenizer import Tokenizer, train_translation_bpe
from regard.training.state import check_shards, find_state, load_tensors, save_state

ROWS = 20_000
CONFIG = GPTConfig(400, d_model=64, num_heads=2, num_layers=2, d_ff=256, max_seq_len=64)
TOKENIZER = train_translation_bpe(["the cat sat on the mat", "die Katze saß auf der Matte"], vocab_size=300)


def model(version: int) -> GPT:
    torch.manual_seed(version)
    return GPT(CONFIG)


def recording(version: int) -> regard.recordings.Recording:
    generator = torch.Generator().manual_seed(version)
    return recorded(regard.weights(*torch.randn(2, 1, 4, 500, 32, generator=generator)))


def version_of_model(folder: Path) -> int:
    """Also loads the tokenizer, which is the same in all versions."""
    assert Tokenizer.load(folder).fingerprint == TOKENIZER.fingerprint
    actual = load_model(folder).state_dict()
    return next(
        version
        for version, expected in enumerate(MODELS)
        if all(torch.equal(actual[name], weight) for name, weight in expected.state_dict().items())
    )


def version_of_recording(path: Path) -> int:
    query = regard.load(path).layers[0].weights.request.query
    return next(
        version
        for version, expected in enumerate(RECORDINGS)
        if torch.equal(query, expected.layers[0].weights.request.query)
    )


def version_of_state(path: Path) -> int:
    state = find_state(path)
    assert state is not None
    check_shards(state)
    tensors = {"model.weights": torch.zeros(10**5)}
    load_tensors(state.folder, tensors)
    assert torch.equal(tensors["model.weights"], torch.full((10**5,), float(state.loader["version"])))
    return state.loader["version"]


def version_of_text(path: Path) -> int:
    text = path.read_text(encoding="utf-8")
    return next(version for version in (0, 1) if text == TEXTS[path.suffix][version])


def save_next_state(path: Path, version: int) -> None:
    """Save the state of a later step, as a run does."""
    state = find_state(path)
    fields = {
        "step": 1 if state is None else state.step + 1,
        "num_processes": 1,
        "loader": {"version": version},
        "best": None,
        "num_worse": 0,
    }
    save_state(path, fields, {"model.weights": torch.full((10**5,), float(version))})


def save_rows(path: Path, version: int) -> None:
    save_table({"row": [f"version {version}"] * ROWS}, path)


def save_page(path: Path, version: int) -> None:
    write_html(PAGES[version], path)


MODELS = [model(version) for version in (0, 1)]
RECORDINGS = [recording(version) for version in (0, 1)]
PAGES = [recorded(regard.weights(*torch.full((2, 1, 1, 40, 8), 1.0 + version))) for version in (0, 1)]
TEXTS: dict[str, list[str]] = {}
TARGETS: dict[str, tuple[Callable[[Path, int], object], Callable[[Path], int]]] = {
    "model": (lambda folder, version: save_model(folder, MODELS[version], TOKENIZER), version_of_model),
    "run.regard": (lambda path, version: RECORDINGS[version].save(path), version_of_recording),
    "run": (save_next_state, version_of_state),
    "table.csv": (save_rows, version_of_text),
    "page.html": (save_page, version_of_text),
}


def kill_while_saving(save: Callable[[Path, int], object], path: Path, seconds: float) -> None:
    """Save both versions in turn in another process, and kill it after some seconds."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            os.write(writing, b"x")
            while True:
                for version in (1, 0):
                    save(path, version)
        finally:
            os._exit(1)
    os.close(writing)
    assert os.read(reading, 1) == b"x"
    os.close(reading)
    time.sleep(seconds)
    os.kill(process, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL


def names_in(folder: Path) -> list[str]:
    """The files and folders in a folder; all steps have one name."""
    return sorted(re.sub(r"step-\d{9}", "step", str(path.relative_to(folder))) for path in folder.rglob("*"))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("name", TARGETS)
def test_kills_of_saves(tmp_path, name):
    tries = number_of_tries(5, 100)
    draw = random.Random(f"{seed()} {name}")
    save, version_of = TARGETS[name]
    path = tmp_path / name
    for version in (1, 0):
        start = time.monotonic()
        save(path, version)
        seconds = time.monotonic() - start
        if path.suffix in (".csv", ".html"):
            TEXTS.setdefault(path.suffix, ["", ""])[version] = path.read_text(encoding="utf-8")
    names = names_in(tmp_path)
    left = 0
    for number in range(tries):
        moment = draw.uniform(0, 3 * seconds)
        kill_while_saving(save, path, moment)
        assert version_of(path) in (0, 1), (number, moment)
        left += names_in(tmp_path) != names
        if number % 4 == 3 or number == tries - 1:  # several kills in a row leave more than one
            save(path, number % 2)
            assert version_of(path) == number % 2
            assert names_in(tmp_path) == names, (number, moment)
    assert left > 0 or tries < 100  # the kills met saves
    print(f"{name}: {tries} kills, {left} of them left unfinished files")
