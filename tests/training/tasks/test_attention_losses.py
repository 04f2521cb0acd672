"""Losses on attention by their names in a recipe: each trains its property of attention."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

import pytest

from helpers.training_runs import WORDS, make_recipe
from regard.errors import InvalidRecipe
from regard.training import train


def align(folder: Path) -> None:
    """The language keeps the order of words, so each is aligned with the one at the same position."""
    lines = (folder / "train.tsv").read_text(encoding="utf-8").splitlines()
    links = (
        " ".join(f"{position}-{position}" for position in range(len(line.split("\t")[0].split()))) for line in lines
    )
    (folder / "train.align").write_text("\n".join(links) + "\n")


def losses(keys: dict[str, Any], attention: dict[str, Any], run: str) -> dict[str, list[float]]:
    """The losses that a training logs, by column."""
    folder = Path(keys["data"]["folder"])
    train(make_recipe(keys | {"output_dir": str(folder / run), "attention_loss": attention}))
    with (folder / run / "metrics.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["loss"]]
    return {name: [float(row[name]) for row in rows] for name in rows[0] if name.endswith("loss") and rows[0][name]}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("entropy", {"ceiling": 0.0, "kind": "encoder", "layers": -1}),
        ("entropy", {"floor": 3.0, "kind": "decoder", "heads": [1]}),
        ("alignment", {"file": "train.align"}),
        ("coverage", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_a_loss_with_a_weight_falls_below_one_that_hardly_counts(
    tmp_path: Path, keys: dict[str, Any], name: str, options: dict[str, Any]
) -> None:
    align(tmp_path)
    column = f"{name}_loss"
    hardly = losses(keys, {name: options | {"weight": 1e-9}}, "hardly")
    much = losses(keys, {name: options | {"weight": 10.0}}, "much")
    assert list(much) == ["loss", column]
    assert much[column][0] == pytest.approx(hardly[column][0], rel=0.2)
    assert much[column][-1] < 0.9 * hardly[column][-1]


def test_a_student_learns_the_attention_of_its_teacher(tmp_path: Path, keys: dict[str, Any]) -> None:
    teacher = tmp_path / "teacher"
    losses(keys, {}, "teacher")
    student = keys | {"seed": 2}
    hardly, much = (
        losses(student, {"kl_divergence": {"weight": weight, "teacher": str(teacher / "last")}}, f"student {weight}")
        for weight in (1e-9, 10.0)
    )
    assert much["kl_divergence_loss"][-1] < 0.5 * hardly["kl_divergence_loss"][-1]


def test_a_teacher_that_does_not_fit_is_refused_for_every_reason(tmp_path: Path, keys: dict[str, Any]) -> None:
    losses(keys | {"trainer": keys["trainer"] | {"max_steps": 3}}, {}, "teacher")
    draw = random.Random(1)
    other = "\n".join(f"{draw.choice(list(WORDS))} new\tneu" for _ in range(50))
    (tmp_path / "other.tsv").write_text(other + "\n", encoding="utf-8")
    keys["data"] |= {"train": "other.tsv"}
    keys["model"] |= {"num_heads": 4, "num_decoder_layers": 2}
    divergence = {"weight": 1.0, "teacher": str(tmp_path / "teacher" / "last"), "layers": [1]}
    with pytest.raises(InvalidRecipe) as error:
        train(make_recipe(keys | {"attention_loss": {"kl_divergence": divergence}}))
    for reason in (
        "expected the model's tokenizer",
        "expected 4 heads as in the model, got 2",
        "expected a cross layer 1, got 1",
    ):
        assert reason in str(error.value)


def test_a_resumed_training_continues_its_losses(tmp_path: Path, keys: dict[str, Any]) -> None:
    coverage = {"coverage": {"weight": 1.0}}
    full = losses(keys, coverage, "whole")
    half = keys | {"output_dir": str(tmp_path / "half"), "attention_loss": coverage}
    train(make_recipe(half | {"trainer": keys["trainer"] | {"max_steps": 14}}))
    train(make_recipe(half), resume=True)
    with (tmp_path / "half" / "metrics.csv").open(encoding="utf-8") as file:
        again = [float(row["coverage_loss"]) for row in csv.DictReader(file) if row["loss"]]
    assert again == full["coverage_loss"]
    with pytest.raises(InvalidRecipe, match=r"attention_loss\.coverage\.weight: expected 1.0 as in the run, got 2.0"):
        train(make_recipe(half | {"attention_loss": {"coverage": {"weight": 2.0}}}), resume=True)
