"""The rows of a run in ``metrics.csv``: one a logged step and one a validation, cut back where a run is resumed."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers.logger import Logger

from regard.errors import InvalidFile
from regard.files import atomic_write

FILE = "metrics.csv"
COLUMNS: tuple[str, ...] = (
    "step",
    "epoch",
    "loss",
    "learning_rate",
    "tokens",
    "tokens_per_second",
)


class ResumableCSVLogger(Logger):
    """Appends rows to ``metrics.csv``, each as soon as it is known.

    Args:
        folder: The run folder.
        measured: The columns for what the task measures.
    """

    def __init__(self, folder: Path, measured: Sequence[str]) -> None:
        super().__init__()
        self.path, self.columns = folder / FILE, (*COLUMNS, *measured)

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
        row = {"step": step, **{name: value for name, value in metrics.items() if name in self.columns}}
        with self.path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns)
            if not file.tell():
                writer.writeheader()
            writer.writerow(row)

    @rank_zero_only
    def cut_back(self, step: int) -> None:
        """Take out the rows after a step, and a last row that was not written whole; give all rows today's columns.

        Raises:
            InvalidFile: If a row is damaged; the file stays as it is.
        """
        if not self.path.is_file():
            return
        kept = [row for row in self._rows() if int(row["step"]) <= step]
        if not kept:
            self.path.unlink()
            return
        with atomic_write(self.path, text=True) as file:
            writer = csv.DictWriter(file, self.columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(kept)

    def _rows(self) -> list[dict[str, str]]:
        """The rows that were written whole."""
        try:
            text = self.path.read_text(encoding="utf-8")
            reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1], newline=""))
            rows = list(reader)
        except (UnicodeDecodeError, csv.Error) as error:
            raise InvalidFile(f"{self.path}: cannot be read: {error}; mend it, or remove it") from error
        names = ",".join(reader.fieldnames or ())
        for number, row in enumerate(rows, start=2):
            if None in row or not (row.get("step") or "").isdecimal():
                raise InvalidFile(
                    f"{self.path}, line {number}: should be a step and values under {names}; "
                    "mend the line, or remove it"
                )
        return rows
