"""The small language, and the keys of a recipe for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from helpers.training_runs import WORDS, write_corpus


@pytest.fixture(scope="session")
def path_of_processes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The ``PYTHONPATH`` of processes that tests start: with the helpers, and without torchmetrics.

    Fabric imports torchmetrics where it is installed, which takes seconds; the extra `train` does not install it.
    """
    folder = tmp_path_factory.mktemp("path")
    (folder / "torchmetrics.py").write_text("raise ImportError('hidden by the tests')\n")
    return os.pathsep.join([str(Path(__file__).parents[1]), str(folder)])


@pytest.fixture(autouse=True)
def _path_of_processes(path_of_processes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", path_of_processes)


@pytest.fixture
def words() -> dict[str, str]:
    """The dictionary of the language."""
    return WORDS


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Any]:
    """The keys of a recipe that trains in a second or two."""
    write_corpus(tmp_path / "train.tsv", 400, seed=1)
    write_corpus(tmp_path / "valid.tsv", 40, seed=2)
    return {
        "output_dir": str(tmp_path / "run"),
        "data": {"folder": str(tmp_path), "train": "train.tsv", "valid": "valid.tsv", "max_tokens_per_batch": 200},
        "tokenizer": {"vocab_size": 300},
        "model": {"d_model": 16, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1, "d_ff": 32},
        "optimizer": {"learning_rate": 0.01, "warmup_steps": 20},
        "trainer": {"max_steps": 30, "log_every_n_steps": 3, "accelerator": "cpu"},
        "validation": {"every_n_steps": 10, "bleu_sentences": 8},
        "checkpoint": {"every_n_steps": 7, "average_last": 2, "snapshot_every_n_steps": 5},
    }
