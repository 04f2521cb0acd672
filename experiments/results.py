"""Results of recipes: one JSON file each, and a table of all of them in the docs.

``python experiments/results.py`` writes ``docs/results.md`` from ``docs/results/*.json``.
"""

from __future__ import annotations

import csv
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from regard.files import atomic_write

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tools"))
from machine import commit, machine_info  # noqa: E402, F401

FOLDER, PAGE = ROOT / "docs/results", ROOT / "docs/results.md"
CAPTIONS = {"sagan": "SAGAN: one generated image per class; below it, the attention of three marked positions."}
HEADER = """\
# Results

Results of the recipes in this repository, with published results or those of another library for comparison. The
command in the last column reproduces the row; `docs/results` holds the values of each seed, the commit and the machine.

| experiment | result | published or peer result | command |
|---|---|---|---|
"""


def command(program: str, **options: Any) -> str:
    """The command that reproduces a result: a script of this folder, with an option for each value that is not None."""
    parts = [f"python experiments/{program}"]
    for name, value in options.items():
        values = value if isinstance(value, list) else [value]
        parts += [f"--{name.replace('_', '-')} {each}" for each in values if each is not None]
    return " ".join(parts)


def write_result(path: Path, what: str, reached: str, published: str, by: str, **details: Any) -> None:
    """Write a result with its commit and machine; update the table if the file is in docs/results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {"what": what, "reached": reached, "published": published, "by": by, **details, **machine_info()}
    path.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if path.resolve().parent == FOLDER:
        write_page()


def cached(path: Path, compute: Callable[[], Any]) -> Any:
    """The value stored in this JSON file, computed and written first if the file is missing."""
    if not path.is_file():
        value = compute()
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path, text=True) as file:
            json.dump(value, file)
    return json.loads(path.read_text(encoding="utf-8"))


def spread(values: Sequence[float], digits: int = 1) -> str:
    """The mean, and the standard deviation if there are several values."""
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation}"


def effort(run: Path) -> tuple[int, float]:
    """Number of target tokens of a training, and its duration in seconds."""
    with (run / "metrics.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["tokens_per_second"]]
    tokens = [int(row["tokens"]) for row in rows]
    return sum(tokens), sum(count / int(row["tokens_per_second"]) for count, row in zip(tokens, rows, strict=True))


def page(folder: Path = FOLDER) -> str:
    """The table of all results."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    rows = [f"| {each['what']} | {each['reached']} | {each['published']} | `{each['by']}` |\n" for each in results]
    figures = [(path.name, CAPTIONS.get(path.stem, path.stem)) for path in sorted(folder.glob("*.png"))]
    return HEADER + "".join(rows) + "".join(f"\n![{text}](results/{name})\n\n{text}\n" for name, text in figures)


def write_page(folder: Path = FOLDER, path: Path = PAGE) -> None:
    """Write the table of all results."""
    path.write_text(page(folder), encoding="utf-8")


if __name__ == "__main__":
    write_page()
