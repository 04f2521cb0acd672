"""A fault of one process ends all of them with a sentence, and leaves a complete state."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.forked import Ranks, start_ranks
from helpers.pairwise import everything
from helpers.training_processes import train_with_fault
from helpers.training_runs import make_recipe
from regard.training import train
from regard.training.state import find_state

LIMIT = 60  # seconds after the fault


@pytest.fixture
def recipe(tmp_path: Path, keys: dict[str, Any]) -> Path:
    """Two processes save every four steps."""
    keys["data"]["valid"] = None
    keys["checkpoint"] = {"every_n_steps": 4}
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(keys))
    return path


def wait(ranks: Ranks, *, stopped: int | None = None) -> list[str]:
    """Wait for processes that must end by themselves; return their errors."""
    end = time.monotonic() + 3 * LIMIT  # with their start
    others = [process for rank, process in enumerate(ranks.processes) if rank != stopped]
    while any(process.is_alive() for process in others) and time.monotonic() < end:
        time.sleep(0.05)
    alive = [process.is_alive() for process in others]
    for process in ranks.processes:
        process.kill()
        process.join()
    errors = [path.read_text() for path in ranks.errors]
    assert not any(alive), errors
    return errors


def sentences(errors: str) -> list[str]:
    """The messages of a process, of which a traceback is none."""
    assert "Traceback" not in errors or "OutOfMemoryError" in errors, errors
    return [line for line in errors.splitlines() if line.startswith("regard: ")]


def saved_step(recipe: Path) -> int:
    state = find_state(recipe.parent / "run")
    assert state is not None
    return state.step


@pytest.mark.parametrize(("victim", "size"), [(0, 2), (1, 2), (0, 4), (1, 4), (3, 4)] if everything() else [(0, 2)])
def test_a_killed_process_is_named_by_the_others(recipe: Path, victim: int, size: int) -> None:
    ranks = start_ranks(train_with_fault, str(recipe), "SIGKILL", victim, folder=recipe.parent, world_size=size)
    errors = wait(ranks)
    for rank in range(size):
        if rank == victim:
            assert ranks.processes[rank].exitcode == -signal.SIGKILL
            continue
        assert ranks.processes[rank].exitcode == 2, errors[rank]
        message = f"regard: process {victim} of {size} has ended or does not answer, so process {rank} ends; its own "
        assert [line[: len(message)] for line in sentences(errors[rank])] == [message], errors[rank]
        assert "Traceback" not in errors[rank]
    assert saved_step(recipe) in (4, 8)  # that of step 8 may be on its way


def test_a_stopped_process_does_not_stop_the_others_for_ever(recipe: Path) -> None:
    ranks = start_ranks(train_with_fault, str(recipe), "SIGSTOP", 1, folder=recipe.parent, world_size=2)
    errors = wait(ranks, stopped=1)
    assert ranks.processes[0].exitcode == 2
    assert [line.partition(" of ")[0] for line in sentences(errors[0])] == ["regard: process 1"]


def test_a_process_that_goes_on_after_the_others_have_ended_says_so(recipe: Path) -> None:
    ranks = start_ranks(train_with_fault, str(recipe), "SIGSTOP", 0, folder=recipe.parent, world_size=2)
    ranks.processes[1].join(3 * LIMIT)
    assert ranks.processes[0].pid is not None
    os.kill(ranks.processes[0].pid, signal.SIGCONT)
    errors = wait(ranks)
    assert ranks.processes[0].exitcode == 2
    message = "process 0 of 2 did not answer for 8 seconds, so the others have ended; --resume continues from the last "
    assert [line[: len(message) + 8] for line in sentences(errors[0])] == [f"regard: {message}"], errors[0]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_signal_to_one_process_before_the_first_step_is_named(recipe: Path, victim: int) -> None:
    ranks = start_ranks(train_with_fault, str(recipe), "early SIGTERM", victim, folder=recipe.parent, world_size=2)
    errors = wait(ranks)
    assert [process.exitcode for process in ranks.processes] == ([143, 2] if victim == 0 else [2, 143])
    message = "stopped by SIGTERM; nothing was saved"
    if victim:
        assert sentences(errors[0]) == [f"regard: process 1: {message}"], errors[0]
    else:
        assert errors[0].endswith(f"{message}\n"), errors[0]
    assert sentences(errors[1]) == []


def test_a_process_that_fails_is_named_by_the_others(recipe: Path) -> None:
    ranks = start_ranks(train_with_fault, str(recipe), "out of memory", 1, folder=recipe.parent, world_size=2)
    errors = wait(ranks)
    assert [process.exitcode for process in ranks.processes] == [2, 1]
    assert [line.partition(" of ")[0] for line in sentences(errors[0])] == ["regard: process 1"]
    assert "OutOfMemoryError" in errors[1]


LAUNCH = """
import os, sys
from helpers.training_processes import train_with_fault
train_with_fault(sys.argv[2], "SIGKILL", int(os.environ["VICTIM"]))
"""


@pytest.mark.parametrize("victim", [0, 1] if everything() else [1])
def test_a_killed_process_is_named_without_torchrun(recipe: Path, tmp_path: Path, victim: int) -> None:
    keys = yaml.safe_load(recipe.read_text())
    keys["trainer"]["devices"] = 2
    recipe.write_text(yaml.safe_dump(keys))
    script, errors = tmp_path / "launch.py", tmp_path / "errors.txt"
    script.write_text(LAUNCH)
    environment = {**os.environ, "VICTIM": str(victim)}
    with errors.open("w") as file:
        command = [sys.executable, str(script), "train", str(recipe)]
        code = subprocess.run(command, stderr=file, env=environment, timeout=3 * LIMIT, check=False).returncode
    expected = f"regard: process {victim} of 2 has ended or does not answer, so process {1 - victim} ends"
    end = time.monotonic() + LIMIT
    while expected not in errors.read_text() and time.monotonic() < end:  # a child can outlive process 0 for a while
        time.sleep(0.05)
    assert [line.partition(";")[0] for line in sentences(errors.read_text())] == [expected], errors.read_text()
    assert code == (2 if victim else -signal.SIGKILL)


def test_another_recipe_is_one_sentence_of_process_0(recipe: Path) -> None:
    change, message = "trainer.max_steps=31", "trainer.max_steps: expected 30 as on process 0, got 31"
    ranks = start_ranks(train_with_fault, str(recipe), change, 1, folder=recipe.parent, world_size=2)
    errors = wait(ranks)
    assert sentences(errors[0]) == [f"regard: process 1: {message}; start all processes with the same recipe"]
    assert sentences(errors[1]) == []
    assert [process.exitcode for process in ranks.processes] == [2, 2]
    assert not (recipe.parent / "run").exists()  # and can be started again


def test_a_full_disk_of_one_process_keeps_the_last_state(recipe: Path) -> None:
    ranks = start_ranks(train_with_fault, str(recipe), "full disk", 1, 7, folder=recipe.parent, world_size=2)
    errors = wait(ranks)
    folder = recipe.parent / "run" / "state" / "step-000000008"
    assert sentences(errors[0]) == [
        f"regard: {folder}: could not be saved (process 1: File too large); the state of step 4 is complete"
    ]
    assert sentences(errors[1]) == []
    assert [process.exitcode for process in ranks.processes] == [2, 2]
    assert saved_step(recipe) == 4
    assert not folder.exists()
    assert train(make_recipe(yaml.safe_load(recipe.read_text())), resume=True).step == 30


def test_missing_and_damaged_shards_are_named_once(recipe: Path) -> None:
    start_ranks(train_with_fault, str(recipe), "", -1, folder=recipe.parent, world_size=2).finish()
    state = find_state(recipe.parent / "run")
    assert state is not None
    assert len(state.shards) == 2
    shards = [state.folder / name for name in sorted(state.shards)]
    shards[0].write_bytes(shards[0].read_bytes()[:-1])
    shards[1].unlink()
    ranks = start_ranks(train_with_fault, str(recipe), "", -1, 0, True, folder=recipe.parent, world_size=2)
    errors = wait(ranks)
    text = errors[0]
    assert re.search(rf"process 0: {re.escape(str(shards[0]))}: expected a training state, got a damaged file", text)
    assert re.search(rf"process 1: {re.escape(str(shards[1]))}: no such file; the state has 2 files, which all", text)
    assert sentences(errors[1]) == []
    assert [process.exitcode for process in ranks.processes] == [2, 2]
