"""A language small enough to be learned in seconds, and a recipe for it."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from regard.training import Recipe, apply_overrides

WORDS = {
    "one": "eins", "two": "zwei", "three": "drei", "four": "vier", "red": "rot", "blue": "blau", "cats": "Katzen",
    "dogs": "Hunde", "birds": "Vögel", "and": "und", "see": "sehen", "like": "mögen",
}  # fmt: skip


def make_recipe(config: dict[str, Any], *overrides: str) -> Recipe:
    return Recipe.from_dict(apply_overrides(config, overrides))


def rows(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def bytes_of(run: Path, name: str = "last") -> dict[str, bytes]:
    return {key: value.numpy().tobytes() for key, value in load_file(run / name / "model.safetensors").items()}


def write_corpus(path: Path, pairs: int, seed: int) -> Path:
    draw = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(pairs):
            words = draw.choices(list(WORDS), k=draw.randint(1, 9))
            file.write(f"{' '.join(words)}.\t{' '.join(WORDS[word] for word in words)}.\n")
    return path


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
