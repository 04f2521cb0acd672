"""A training that is killed at any moment, resumed and killed again gives what an uninterrupted one gives.

One process imports the library and forks a process for each run, so that a run takes a fraction of a second. The moment
of a kill is a random fraction of the time that a whole run takes: from before the folder is created to after the end.
"""

from __future__ import annotations

import csv
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.attacks import number_of_tries, seed
from helpers.training_runs import bytes_of, write_corpus

RUNNER = Path(__file__).parents[1] / "helpers" / "run_and_kill.py"
MODELS = ("last", "best", "averaged")


def keys_of(folder: Path, run: str) -> dict[str, Any]:
    return {
        "output_dir": str(folder / run),
        "data": {"folder": str(folder), "train": "train.tsv", "valid": "valid.tsv", "max_tokens_per_batch": 200},
        "tokenizer": {"vocab_size": 270},
        "model": {
            "d_model": 8,
            "num_heads": 2,
            "num_encoder_layers": 1,
            "num_decoder_layers": 1,
            "d_ff": 16,
            "dropout": 0.1,
        },
        "trainer": {"max_steps": 12, "log_every_n_steps": 1, "accelerator": "cpu"},
        "validation": {"every_n_steps": 4, "bleu_sentences": 2},
        "checkpoint": {"every_n_steps": 3, "average_last": 2, "snapshot_every_n_steps": 2},
    }


def metrics(run: Path) -> list[dict[str, str]]:
    """All rows, without the columns of time."""
    with (run / "metrics.csv").open(encoding="utf-8") as file:
        return [
            {name: cell for name, cell in row.items() if name != "tokens_per_second"} for row in csv.DictReader(file)
        ]


def results(run: Path) -> dict[str, Any]:
    return {"metrics": metrics(run), **{name: bytes_of(run, name) for name in MODELS}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kills")
    write_corpus(folder / "train.tsv", 60, seed=1)
    write_corpus(folder / "valid.tsv", 4, seed=2)
    return folder


def test_kills_of_training(folder):
    tries = number_of_tries(3, 100)
    draw = random.Random(seed())
    with subprocess.Popen(
        [sys.executable, str(RUNNER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as runner:
        assert runner.stdin is not None
        assert runner.stdout is not None

        def run(name: str, resume: bool, fraction: float | None) -> dict[str, Any]:
            """Run a recipe, and kill it after a fraction of the time of a whole run."""
            recipe = folder / f"{name}.yaml"
            recipe.write_text(yaml.safe_dump(keys_of(folder, name)))
            seconds = None if fraction is None else fraction * full["seconds"]
            runner.stdin.write(json.dumps({"recipe": str(recipe), "resume": resume, "seconds": seconds}) + "\n")
            runner.stdin.flush()
            return json.loads(runner.stdout.readline())

        full = {"seconds": 0.0}
        for name in ("warm-up", "whole"):  # the first run also pays for imports
            full = run(name, False, None)
            assert full["code"] == 0, full["errors"]
        expected = results(folder / "whole")
        killed = number = 0
        while killed < tries:
            name, fractions = f"run-{number}", []
            while True:  # kill, resume, kill again, ...
                can_resume = (folder / name / "recipe.yaml").is_file()
                is_last = killed >= tries or len(fractions) >= 3
                fraction = None if is_last else draw.uniform(0, 1.05)
                completed = run(name, can_resume, fraction)
                if completed["code"] == 0:
                    if not can_resume:
                        full = completed  # the machine may have become faster or slower
                    break
                assert completed["code"] == -9, (name, fractions, completed["errors"])
                fractions.append(fraction)
                killed += 1
            assert results(folder / name) == expected, (name, fractions)
            left = [path for path in (folder / name).rglob(".*") if path.name != ".lock"]
            assert left == [], (name, fractions)
            number += 1
        runner.stdin.close()
    print(f"{killed} kills in {number} runs")
