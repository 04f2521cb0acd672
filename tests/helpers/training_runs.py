"""A language small enough to be learned in seconds, recipes for it, and what a run wrote."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

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
