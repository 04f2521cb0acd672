"""The rows of a run in ``metrics.csv``: one a logged step and one a validation, cut back where a run is resumed."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers.logger import Logger

FILE = "metrics.csv"
COLUMNS: tuple[str, ...] = (
    "step",
    "epoch",
    "loss",
    "learning_rate",
    "tokens",
    "tokens_per_second",
    "valid_loss",
    "bleu",
    "chrf",
)


class MetricsFile(Logger):
    """Appends rows to ``metrics.csv``, each as soon as it is known.

    Args:
        folder: The run folder.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.path = folder / FILE

    @property
    def name(self) -> str:
        """The name that lightning asks for."""
        return "metrics"

    @property
    def version(self) -> str:
        """The version that lightning asks for."""
        return ""

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the recipe lies beside the file."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append a row; names that are no column are left out."""
        row = {"step": step, **{name: value for name, value in metrics.items() if name in COLUMNS}}
        with self.path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if not file.tell():
                writer.writeheader()
            writer.writerow(row)

    @rank_zero_only
    def cut_back(self, step: int) -> None:
        """Take out the rows after a step, and a last row that was not written whole."""
        if not self.path.is_file():
            return
        header, *rows = self.path.read_text(encoding="utf-8").splitlines(keepends=True) or [""]
        kept = [row for row in rows if row.endswith("\n") and int(row.split(",", 1)[0]) <= step]
        if not kept:
            self.path.unlink()
            return
        draft = self.path.with_suffix(".draft")
        draft.write_text("".join([header, *kept]), encoding="utf-8", newline="")
        draft.replace(self.path)
