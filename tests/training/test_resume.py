"""A training that is killed by a signal at any moment and resumed gives the same result."""

from __future__ import annotations

import csv
import random
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

from helpers.forked import finish, start
from helpers.pairwise import everything
from helpers.training_processes import train_file


def rows(run: Path) -> list[dict[str, str]]:
    """The log without the columns of time."""
    with (run / "metrics.csv").open(encoding="utf-8") as file:
        return [
            {name: value for name, value in row.items() if name != "tokens_per_second"} for row in csv.DictReader(file)
        ]


def last_step(run: Path) -> int:
    try:
        lines = (run / "metrics.csv").read_text().splitlines()[1:]
    except FileNotFoundError:  # also when a run restarts
        lines = []
    return int(lines[-1].partition(",")[0] or 0) if lines else 0


# Validations, every 10 steps, and states, every 7, meet at step 70.
@pytest.mark.parametrize(
    ("steps", "accumulate", "num_workers"), [(80, 1, 0), (40, 2, 2)] if everything() else [(40, 2, 2)]
)
def test_a_killed_training_resumes_bit_for_bit(
    tmp_path: Path, keys: dict[str, Any], steps: int, accumulate: int, num_workers: int
) -> None:
    keys["trainer"] |= {"max_steps": steps, "accumulate_grad_batches": accumulate}
    keys["model"] |= {"dropout": 0.2, "attention_dropout": 0.1}
    runs = [tmp_path / "whole", tmp_path / "killed"]
    for run, workers in zip(runs, (0, num_workers), strict=True):
        config = {**keys, "trainer": {**keys["trainer"], "num_workers": workers}, "output_dir": str(run)}
        run.with_suffix(".yaml").write_text(yaml.safe_dump(config))

    def begin(run: Path, resume: bool) -> ForkServerProcess:
        return start(train_file, str(run.with_suffix(".yaml")), resume, errors=run.with_suffix(".txt"))

    full = begin(runs[0], False)
    draw = random.Random()  # any moment must do, so each run of this test tries others
    killed = []
    for moment in sorted(draw.sample(range(1, steps - 10), 2)):
        process = begin(runs[1], bool(killed))
        while last_step(runs[1]) < moment and process.is_alive():
            time.sleep(0.002)
        time.sleep(draw.uniform(0, 0.03))
        process.kill()
        process.join()
        killed.append(last_step(runs[1]))
    finish([full, begin(runs[1], True)], [run.with_suffix(".txt") for run in runs])
    assert 0 < killed[0] < steps, killed
    expected, actual = rows(runs[0]), rows(runs[1])
    assert actual == expected, killed
    assert [int(row["step"]) for row in expected if row["bleu"]] == list(range(10, steps + 1, 10))
    for name in ("last", "best", "averaged"):
        expected_weights, weights = (load_file(run / name / "model.safetensors") for run in runs)
        assert {key: value.numpy().tobytes() for key, value in weights.items()} == {
            key: value.numpy().tobytes() for key, value in expected_weights.items()
        }, (name, killed)
