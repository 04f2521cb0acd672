"""A full disk: every writer raises the documented error, leaves nothing half-written, and keeps the old file."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import regard
from helpers.full_disk import full_disk
from helpers.recordings import recorded
from helpers.training_runs import write_corpus
from regard.analysis import save_table
from regard.cli import heads
from regard.cli.output import open_output
from regard.data.token_dataset import tokenize_once
from regard.errors import InvalidFile
from regard.explore import write_html
from regard.explore.steps_page import write_steps_html
from regard.models import GPT, GPTConfig, save_model
from regard.pipelines import Translator
from regard.pipelines.confidence import ConfidenceModel
from regard.text.tokenizer import train_translation_bpe
from regard.training.metrics_file import METRICS_FILE, MetricsFile
from regard.training.run_log import logging_to

LARGE = {"name": [f"row {number}" for number in range(5000)], "number": [*range(5000)]}


@cache
def model() -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig(100, d_model=16, num_heads=2, num_layers=1, d_ff=32, max_seq_len=32))


@cache
def trace() -> Any:
    return Translator.load().trace("Thank you.")


def save_scores(path: Path) -> None:
    scores = regard.analysis.head_scores(recorded(regard.weights(*torch.randn(2, 1, 2, 9, 8))))
    heads._write(scores, path)


def save_recording(path: Path) -> None:
    recorded(regard.weights(*torch.randn(2, 1, 2, 300, 8))).save(path)


def save_output(path: Path) -> None:
    with open_output(path) as file:
        file.write("a line\n" * 10**5)


def save_confidence(path: Path) -> None:
    ConfidenceModel(intercept=1.0, log_prob_weight=2.0, length_weight=3.0, threshold=0.5).save(path.parent)


def log_metrics(path: Path) -> None:
    logger = MetricsFile(path.parent, ["bleu"])
    for step in range(200):
        logger.append(step, {"loss": 1.0})


def discard_metrics(path: Path) -> None:
    """Rewrite the rows."""
    logger = MetricsFile(path.parent, [f"metric {number}" for number in range(2000)])
    logger.discard_after(10**9)


def tokenize(folder: Path) -> None:
    tokenize_once(folder, ["source"], lambda files, counts: iter([[[[*range(99)]] * 99]]), [])


FILES: dict[str, Callable[[Path], object]] = {
    "run.regard": save_recording,
    "page.html": lambda path: write_html(recorded(regard.weights(*torch.randn(2, 1, 2, 30, 8))), path),
    "steps.html": lambda path: write_steps_html(trace(), path),
    "table.csv": lambda path: save_table(LARGE, path),
    "table.parquet": lambda path: save_table(LARGE, path),
    "heads.csv": save_scores,
    "heads.png": save_scores,
    "heads.pdf": save_scores,
    "out.txt": save_output,
    "confidence.json": save_confidence,
}
FOLDERS: dict[str, Callable[[Path], object]] = {
    "model": lambda folder: save_model(folder, model()),
    "model with tokenizer": lambda folder: save_model(folder, model(), train_translation_bpe(["a b"], vocab_size=300)),
    "transformers": lambda folder: save_model(folder, model(), format="transformers"),
    "tokenizer": train_translation_bpe(["a b"], vocab_size=300).save,
    "tokenized data": tokenize,
}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("size", [0, 50])
@pytest.mark.parametrize("name", FILES)
def test_a_file_stays_and_nothing_is_left(tmp_path, name, size):
    path = tmp_path / name
    path.write_bytes(b"before")
    with pytest.raises(InvalidFile) as caught, full_disk(size):
        FILES[name](path)
    assert str(caught.value) == f"{path}: could not be written: File too large"
    assert contents(tmp_path) == {name: b"before"}
    FILES[name](path)
    assert len(path.read_bytes()) > 50


@pytest.mark.parametrize("size", [0, 50, 1500])
@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_stays_and_nothing_is_left(tmp_path, name, size):
    for file in ("config.json", "model.safetensors", "tokenizer.json", "mine"):
        (tmp_path / file).write_bytes(b"before")
    before = contents(tmp_path)
    with pytest.raises(InvalidFile, match=r"could not be written: .*File too large") as caught, full_disk(size):
        FOLDERS[name](tmp_path)
    assert str(caught.value).startswith(str(tmp_path))
    assert ".saving-" not in str(caught.value)
    assert contents(tmp_path) == before
    assert [path for path in tmp_path.rglob("*") if path.is_dir()] == []
    FOLDERS[name](tmp_path)


@pytest.mark.parametrize("extra", [0, 1, 11])
def test_metrics_keep_their_rows(tmp_path, extra):
    path = tmp_path / METRICS_FILE
    log_metrics(path)
    before = path.read_bytes()
    for change in (log_metrics, discard_metrics):
        with pytest.raises(InvalidFile) as caught, full_disk(len(before) + extra):
            change(path)
        assert str(caught.value) == f"{path}: could not be written: File too large"
        assert contents(tmp_path) == {METRICS_FILE: before}


SIZES = [300, 700, 2_000, 10_000, 30_000, 60_000] if os.environ.get("REGARD_TEST_ALL") == "1" else [30_000]
TRAIN = """
import sys
from helpers.full_disk import full_disk
from regard.cli.main import main
size = int(sys.argv.pop())
with full_disk(size):
    main()
"""


@pytest.mark.parametrize("size", SIZES)
def test_a_full_disk_ends_a_training_with_one_message(tmp_path, size):
    write_corpus(tmp_path / "train.tsv", 100, seed=1)
    keys = {
        "output_dir": str(tmp_path / "run"),
        "data": {"folder": str(tmp_path), "train": "train.tsv", "max_tokens_per_batch": 200},
        "tokenizer": {"vocab_size": 300},
        "model": {"d_model": 32, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1, "d_ff": 64},
        "trainer": {"max_steps": 9, "log_every_n_steps": 1, "accelerator": "cpu"},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(keys))
    command = [sys.executable, "-c", TRAIN, "train", tmp_path / "recipe.yaml", str(size)]
    completed = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert completed.returncode == 2, completed.stderr
    assert "Traceback" not in completed.stderr
    assert completed.stderr.splitlines()[-1].startswith("regard: ")
    assert "File too large" in completed.stderr
    assert [path for path in tmp_path.rglob(".*") if path.name != ".lock"] == []


def test_a_log_that_cannot_be_written_is_an_error(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("a line\n" * 10**5)
    with pytest.raises(InvalidFile) as caught, full_disk(10**5), logging_to(tmp_path):
        logging.getLogger("regard.training").info("a line")
    assert str(caught.value) == f"{path}: could not be written: File too large"
