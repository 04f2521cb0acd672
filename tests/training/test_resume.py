"""Kill a training for real, at any moment, and get what it would have given."""

from __future__ import annotations

import csv
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

TRAIN = (
    "import sys, torch; torch.set_num_threads(1)\n"
    "from regard.training import load_recipe, train\n"
    "train(load_recipe(sys.argv[1]), resume='--resume' in sys.argv)"
)


def start(recipe: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-W", "error::UserWarning:regard", "-c", TRAIN, str(recipe), *arguments],
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[bytes]) -> None:
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors.decode()


def rows(run: Path) -> list[dict[str, str]]:
    """What is in the log less what the clock says."""
    with (run / "metrics.csv").open(encoding="utf-8") as file:
        return [
            {name: value for name, value in row.items() if name != "tokens_per_second"} for row in csv.DictReader(file)
        ]


def last_step(run: Path) -> int:
    try:
        lines = (run / "metrics.csv").read_text().splitlines()[1:]
    except FileNotFoundError:  # also where a run begins again
        lines = []
    return int(lines[-1].partition(",")[0] or 0) if lines else 0


@pytest.mark.parametrize(("accumulate", "num_workers"), [(1, 0), (2, 2)])
def test_a_killed_training_goes_on_bit_for_bit(
    tmp_path: Path, keys: dict[str, Any], accumulate: int, num_workers: int
) -> None:
    keys["trainer"] |= {"max_steps": 120, "accumulate_grad_batches": accumulate}
    keys["model"] |= {"dropout": 0.2, "attention_dropout": 0.1}
    runs = [tmp_path / "whole", tmp_path / "killed"]
    for run, workers in zip(runs, (0, num_workers), strict=True):
        config = {**keys, "trainer": {**keys["trainer"], "num_workers": workers}, "output_dir": str(run)}
        run.with_suffix(".yaml").write_text(yaml.safe_dump(config))
    whole = start(runs[0].with_suffix(".yaml"))
    draw = random.Random()  # any moment must do, so each run of this test tries others
    killed = []
    for moment in sorted(draw.sample(range(1, 110), 2)):
        process = start(runs[1].with_suffix(".yaml"), *(["--resume"] if killed else []))
        while last_step(runs[1]) < moment and process.poll() is None:
            time.sleep(0.002)
        time.sleep(draw.uniform(0, 0.03))
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        killed.append(last_step(runs[1]))
    finish(start(runs[1].with_suffix(".yaml"), "--resume"))
    finish(whole)
    assert 0 < killed[0] < 120, killed
    expected, found = rows(runs[0]), rows(runs[1])
    assert found == expected, killed
    assert [int(row["step"]) for row in expected if row["bleu"]] == list(range(10, 121, 10))
    for name in ("last", "best", "averaged"):
        expected_weights, weights = (load_file(run / name / "model.safetensors") for run in runs)
        assert {key: value.numpy().tobytes() for key, value in weights.items()} == {
            key: value.numpy().tobytes() for key, value in expected_weights.items()
        }, (name, killed)
