"""A training that is killed at any moment, resumed and killed again gives what an uninterrupted one gives.

One process imports the library and forks a process for each run, so that a run takes a fraction of a second. The moment
of a kill is a random fraction of the time that a whole run takes: from before the folder is created to after the end.
"""

from __future__ import annotations

import csv
import json
import random
import shutil
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
ENCODER = {"d_model": 8, "num_heads": 2, "num_layers": 1, "d_ff": 16, "dropout": 0.1, "max_seq_len": 32}
TRANSLATOR = {
    "d_model": 8,
    "num_heads": 2,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "d_ff": 16,
    "dropout": 0.1,
}
TASKS: dict[str, dict[str, Any]] = {
    "translation": {
        "data": {"train": "train.tsv", "valid": "valid.tsv", "max_tokens_per_batch": 200},
        "model": TRANSLATOR,
        "validation": {"every_n_steps": 4, "bleu_sentences": 2},
    },
    "causal_lm": {
        "data": {"train": "train.txt", "valid_fraction": 0.2, "block_size": 12, "batch_size": 4},
        "model": {**ENCODER, "positions": "alibi"},
    },
    "causal_lm, streamed": {
        "data": {
            "train": ["train.txt", "valid.txt"],
            "valid": "valid.txt",
            "streaming": True,
            "buffer_size": 400,
            "sample_by": "line",
            "block_size": 12,
            "batch_size": 4,
        },
        "model": ENCODER,
    },
    "masked_lm": {
        "data": {"train": "train.txt", "valid": "valid.txt", "max_length": 30, "max_tokens_per_batch": 200},
        "model": ENCODER,
    },
    "classification": {
        "data": {"train": "classes.tsv", "valid": "classes.tsv", "max_length": 30, "batch_size": 8},
        "model": ENCODER,
    },
    "tagging": {
        "data": {"train": "tags.conll", "valid": "tags.conll", "max_length": 30, "batch_size": 8},
        "model": ENCODER,
    },
}
LOADS = [(2, 2), (0, 1)]
"""Processes that prepare batches, and batches of a step."""
CASES = [(task, *LOADS[(number + row) % 2]) for row in range(2) for number, task in enumerate(TASKS)]
"""Each task with and without workers and accumulation; two neighbors differ in both."""


def keys_of(folder: Path, run: str, task: str, num_workers: int, accumulate: int) -> dict[str, Any]:
    keys = TASKS[task]
    return {
        "validation": {"every_n_steps": 4},
        **keys,
        "task": task.partition(",")[0],
        "output_dir": str(folder / run),
        "data": {"folder": str(folder), **keys["data"]},
        "tokenizer": {"vocab_size": 270},
        "trainer": {
            "max_steps": 12,
            "log_every_n_steps": 1,
            "accelerator": "cpu",
            "num_workers": num_workers,
            "accumulate_grad_batches": accumulate,
        },
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
    for name, number, which in (("train", 60, 1), ("valid", 4, 2)):
        lines = write_corpus(folder / f"{name}.tsv", number, seed=which).read_text().splitlines()
        (folder / f"{name}.txt").write_text("\n".join(line.partition("\t")[0] for line in lines) + "\n")
        if name == "train":
            texts = [line.partition("\t")[0] for line in lines]
            classes = [f"{text}\t{'many' if text.count(' ') > 4 else 'few'}\n" for text in texts]
            (folder / "classes.tsv").write_text("".join(classes))
            tagged = ["".join(f"{word} {word[0].upper()}\n" for word in text.split()) for text in texts]
            (folder / "tags.conll").write_text("\n".join(tagged))
    return folder


def test_kills_of_training(folder):
    """Each run is killed up to three times, and then ends as one that was not."""
    tries = number_of_tries(3, 100)
    draw = random.Random(seed())
    with subprocess.Popen(
        [sys.executable, str(RUNNER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as runner:
        assert runner.stdin is not None
        assert runner.stdout is not None

        def run(name: str, case: tuple[str, int, int], resume: bool, seconds: float | None) -> dict[str, Any]:
            """Run a recipe, and kill it after some seconds."""
            recipe = folder / f"{name}.yaml"
            recipe.write_text(yaml.safe_dump(keys_of(folder, name, *case)))
            runner.stdin.write(json.dumps({"recipe": str(recipe), "resume": resume, "seconds": seconds}) + "\n")
            runner.stdin.flush()
            return json.loads(runner.stdout.readline())

        whole: dict[tuple[str, int, int], tuple[float, dict[str, Any]]] = {}
        for case in CASES[:tries]:
            name = "whole-{}-{}-{}".format(*case)
            completed = run(name, case, False, None)
            assert completed["code"] == 0, completed["errors"]
            whole[case] = completed["seconds"], results(folder / name)
        ends = killed = number = 0
        while ends < tries:
            case = CASES[ends % len(CASES)]
            seconds, expected = whole[case]
            name, fractions = f"run-{number}", []
            while True:  # kill, resume, kill again, ...
                can_resume = (folder / name / "recipe.yaml").is_file()
                fraction = None if len(fractions) >= 3 else draw.uniform(0, 1.05)
                completed = run(name, case, can_resume, fraction and fraction * seconds)
                if completed["code"] == 0:
                    if not fractions:
                        whole[case] = completed["seconds"], expected  # the machine may have become faster or slower
                    break
                assert completed["code"] == -9, (case, fractions, completed["errors"])
                fractions.append(fraction)
            assert results(folder / name) == expected, (case, fractions)
            left = [path for path in (folder / name).rglob(".*") if path.name != ".lock"]
            assert left == [], (case, fractions)
            number += 1
            ends += bool(fractions)
            killed += len(fractions)
            shutil.rmtree(folder / name)
            print(f"{ends} identical ends after {killed} kills, of {case}", flush=True)
        runner.stdin.close()
