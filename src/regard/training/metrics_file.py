"""``metrics.csv``: a row for each logged step and each validation; a resumed run continues it."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from regard.errors import InvalidFile
from regard.files import atomic_write, naming
from regard.input_files import exists, read_file

METRICS_FILE = "metrics.csv"
COLUMNS = ("step", "epoch", "loss", "learning_rate", "tokens", "tokens_per_second")


class MetricsFile:
    """Appends rows to ``metrics.csv`` at once.

    Args:
        folder: The run folder.
        metric_names: The columns of the task.
    """

    def __init__(self, folder: Path, metric_names: Sequence[str]) -> None:
        self.path, self.columns = folder / METRICS_FILE, (*COLUMNS, *metric_names)

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a row with the metrics that have a column.

        Raises:
            InvalidFile: If it cannot be written; the file is as it was.
        """
        row = {"step": step, **{name: value for name, value in metrics.items() if name in self.columns}}
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns)
        with naming(self.path), self.path.open("ab", buffering=0) as file:
            size = file.tell()
            if not size:
                writer.writeheader()
            writer.writerow(row)
            lines = text.getvalue().encode()
            try:
                while lines:
                    lines = lines[file.write(lines) :]
            except OSError:
                file.truncate(size)
                raise

    def discard_after(self, step: int) -> None:
        """Remove the rows after a step and an incomplete last line, and rewrite the others with today's columns.

        Raises:
            InvalidFile: If a row is damaged; the file is not changed.
        """
        if not exists(self.path):
            return
        try:
            lines = read_file(self.path).decode().splitlines(keepends=True)
            reader = csv.DictReader(line for line in lines if line.endswith("\n"))
            rows = list(reader)
        except (UnicodeDecodeError, csv.Error) as error:
            raise InvalidFile(f"{self.path}: could not be read: {error}; repair or remove it") from error
        for number, row in enumerate(rows, start=2):
            if None in row or not re.fullmatch("[0-9]{1,18}", row.get("step") or ""):
                expected = f"expected a step and values for {','.join(reader.fieldnames or ())[:200]}"
                raise InvalidFile(f"{self.path}, line {number}: {expected}; repair or remove the line")
        rows = [row for row in rows if int(row["step"]) <= step]
        if not rows:
            self.path.unlink()
            return
        with atomic_write(self.path, text=True) as file:
            writer = csv.DictWriter(file, self.columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
