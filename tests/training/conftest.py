"""A language small enough to be learned in seconds, and a recipe for it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

WORDS = {
    "one": "eins", "two": "zwei", "three": "drei", "four": "vier", "red": "rot", "blue": "blau", "cats": "Katzen",
    "dogs": "Hunde", "birds": "Vögel", "and": "und", "see": "sehen", "like": "mögen",
}  # fmt: skip


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
        "run": str(tmp_path / "run"),
        "data": {"folder": str(tmp_path), "train": "train.tsv", "valid": "valid.tsv", "batch_tokens": 200},
        "vocabulary": {"size": 300},
        "model": {"d_model": 16, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1, "d_ff": 32},
        "optimizer": {"learning_rate": 0.01, "warmup_steps": 20},
        "trainer": {"max_steps": 30, "log_every": 3, "accelerator": "cpu"},
        "validation": {"every": 10, "sentences": 8},
        "checkpoint": {"every": 7, "average": 2, "average_every": 5},
    }
