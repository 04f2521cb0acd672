"""Rows of the log, and cutting them back."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from regard.errors import InvalidFile
from regard.training.metrics_file import COLUMNS as COMMON
from regard.training.metrics_file import MetricsFile

MEASURED = ("valid_loss", "bleu", "chrf", "entropy_loss", "alignment_loss", "coverage_loss", "kl_divergence_loss")
COLUMNS = (*COMMON, *MEASURED)


def test_rows_are_appended_at_once(tmp_path: Path) -> None:
    MetricsFile(tmp_path, MEASURED).append(3, {"loss": 2.5, "unknown": 1.0})
    MetricsFile(tmp_path, MEASURED).append(4, {"bleu": 7.0})
    with (tmp_path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert [(row["step"], row["loss"], row["bleu"]) for row in rows] == [("3", "2.5", ""), ("4", "", "7.0")]


@pytest.mark.parametrize(
    ("step", "left"), [(0, None), (4, [2, 4, 4]), (5, [2, 4, 4]), (6, [2, 4, 4, 6]), (9, [2, 4, 4, 6])]
)
def test_discard_after_removes_later_and_incomplete_rows(tmp_path: Path, step: int, left: list[int] | None) -> None:
    metrics = MetricsFile(tmp_path, MEASURED)
    metrics.discard_after(step)  # nothing there yet
    for row in (2, 4, 4, 6):
        metrics.append(row, {"loss": 1.0})
    with metrics.path.open("a") as file:
        file.write("8,0,1.")  # the process was killed here
    metrics.discard_after(step)
    if left is None:
        assert not metrics.path.exists()
        return
    metrics.append(10, {"loss": 1.0})
    with metrics.path.open() as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == [*left, 10]


def test_an_older_log_gets_the_new_columns(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path, MEASURED)
    metrics.path.write_text("step,epoch,loss,tokens_per_second,retired\n50,0,8.5,100,x\n100,0,7.5,90,x\n")
    metrics.discard_after(50)
    metrics.append(100, {"loss": 7.25, "tokens": 9})
    with metrics.path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [tuple(row) for row in rows] == [COLUMNS, COLUMNS]
    assert [(row["loss"], row["tokens"], row["tokens_per_second"]) for row in rows] == [
        ("8.5", "", "100"),
        ("7.25", "9", ""),
    ]


@pytest.mark.parametrize("row", ["x,0,1.0", ",0,1.0", "-1,0", "3" + "," * 20, ",,"])
def test_a_damaged_row_is_named(tmp_path: Path, row: str) -> None:
    metrics = MetricsFile(tmp_path, MEASURED)
    metrics.append(2, {"loss": 1.0})
    before = metrics.path.read_text() + f"{row}\n"
    metrics.path.write_text(before)
    with pytest.raises(InvalidFile, match=r"metrics\.csv, line 3: expected a step and values for step,epoch,loss"):
        metrics.discard_after(2)
    assert metrics.path.read_text() == before


def test_a_log_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_bytes(b"step\n\xff\n")
    with pytest.raises(InvalidFile, match=r"metrics\.csv: could not be read: 'utf-8' codec"):
        MetricsFile(tmp_path, MEASURED).discard_after(2)
