"""Which processes a launcher has started, and what they do when one of them fails."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from helpers.training_machines import MAX_STEPS, RUN, train_two, working_directory
from helpers.training_runs import bytes_of
from regard.errors import InvalidRecipe
from regard.training.launch import machines_and_devices
from regard.training.recipe_sections import TrainerConfig
from regard.training.state import find_state

TORCHRUN = {"WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "3", "RANK": "4", "LOCAL_RANK": "1"}
SLURM = {"SLURM_NTASKS": "4", "SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_STEP_ID": "0"}
POD = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "regard-master-0", "MASTER_PORT": "23456"}


def processes(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], **trainer: Any) -> tuple[int, int | str]:
    for name in {**TORCHRUN, **SLURM, **POD}:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return machines_and_devices(TrainerConfig(max_steps=1, **trainer))


@pytest.mark.parametrize(
    ("environment", "trainer", "expected"),
    [
        ({}, {}, (1, "auto")),
        ({}, {"devices": 2, "num_nodes": 1}, (1, 2)),
        (TORCHRUN, {}, (2, 3)),
        (TORCHRUN, {"devices": 3, "num_nodes": 2}, (2, 3)),
        (SLURM, {}, (2, 2)),
        (SLURM, {"devices": 2, "num_nodes": 2}, (2, 2)),
        (SLURM | TORCHRUN, {}, (2, 3)),  # `srun torchrun`, one for each machine
        (SLURM | {"SLURM_JOB_NAME": "bash"}, {}, (1, "auto")),  # a shell that salloc opened
        ({"SLURM_NTASKS": "1"}, {}, (1, 1)),
    ],
)
def test_processes_that_a_launcher_started(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], trainer: dict[str, int], expected: tuple[int, object]
) -> None:
    assert processes(monkeypatch, environment, **trainer) == expected


@pytest.mark.parametrize(
    ("environment", "trainer", "message"),
    [
        (
            {},
            {"num_nodes": 2},
            (
                "trainer.num_nodes: expected torchrun or srun on 2 machines, got a process without them; start "
                "`torchrun --nnodes ... -m regard train ...` on each machine, or set trainer.num_nodes to 1"
            ),
        ),
        (
            TORCHRUN,
            {"devices": 2},
            "trainer.devices: expected 3, as torchrun started 2 x 3 processes, got 2; leave it out, or start as many",
        ),
        (
            SLURM,
            {"num_nodes": 4},
            "trainer.num_nodes: expected 2, as srun started 2 x 2 processes, got 4; leave it out, or start as many",
        ),
        (
            {"SLURM_NTASKS": "4", "SLURM_NNODES": "2"},
            {},
            "trainer.devices: expected the 4 tasks of the Slurm job, got one process; start `srun regard train ...`",
        ),
        (
            POD,
            {},
            (
                "trainer.devices: expected 2 processes that torchrun started, as WORLD_SIZE says, got one without it; "
                "start `torchrun -m regard train ...`"
            ),
        ),
    ],
)
def test_processes_that_would_wait_for_others(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], trainer: dict[str, int], message: str
) -> None:
    with pytest.raises(InvalidRecipe) as error:
        processes(monkeypatch, environment, **trainer)
    assert str(error.value) == message


def test_a_run_without_a_shared_folder_resumes_from_copies_of_its_state(tmp_path: Path) -> None:
    whole, first, second = (working_directory(tmp_path / name) for name in ("whole", "first", "second"))
    assert train_two(whole, whole) == ["", ""]
    recipe = (first / "recipe.yaml").read_text()
    for folder in (first, second):
        (folder / "recipe.yaml").write_text(recipe.replace(f"max_steps: {MAX_STEPS}", "max_steps: 6"))
    assert train_two(first, second) == ["", ""]
    for folder in (first, second):
        (folder / "recipe.yaml").write_text(recipe)
    error = (
        f"regard.errors.InvalidCheckpoint: process 1: {RUN}/state/step-000000006/shard-00001-of-00001.safetensors: "
        "no such file; the state has 1 files, which all processes read"
    )
    assert train_two(first, second, resume=True) == [error, ""]
    shutil.copytree(first / RUN, second / RUN, dirs_exist_ok=True)
    assert train_two(first, second, resume=True) == ["", ""]
    assert bytes_of(first / RUN) == bytes_of(whole / RUN)


def test_a_signal_to_one_process_ends_all_when_the_state_is_saved(tmp_path: Path) -> None:
    first, second = (working_directory(tmp_path / name, max_steps=100_000) for name in ("first", "second"))

    def terminate(processes: Sequence[ForkServerProcess]) -> None:
        while not (first / RUN / "metrics.csv").exists() and all(process.is_alive() for process in processes):
            time.sleep(0.05)
        processes[1].terminate()

    assert train_two(first, second, interfere=terminate) == ["", ""]
    step = re.search(r"stopped by SIGTERM; --resume continues from step (\d+)", (first / RUN / "train.log").read_text())
    assert step is not None
    state = find_state(first / RUN)
    assert state is not None
    assert state.step == int(step[1])


def test_other_data_on_a_machine_end_all_processes(tmp_path: Path) -> None:
    first, second = (working_directory(tmp_path / name) for name in ("first", "second"))
    with (second / "valid.tsv").open("a") as file:
        file.write("one\teins\n")
    error = (
        "regard.errors.InvalidFile: process 1: data.valid: expected the data of machine 0 on machine 1, "
        "got other data; copy valid.tsv"
    )
    assert train_two(first, second) == [error, ""]
    assert not (first / RUN).exists() or not list((first / RUN).glob("*"))


def test_divided_weights_need_a_shared_folder(tmp_path: Path) -> None:
    first, second = (working_directory(tmp_path / name, strategy="fsdp") for name in ("first", "second"))
    error = (
        f"regard.errors.InvalidArgument: {RUN}: expected a folder that all machines share, as each writes its part of "
        "the training state; share it, or set trainer.strategy to ddp"
    )
    assert train_two(first, second) == [error, ""]
