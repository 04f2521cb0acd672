"""Results of recipes: each in a file of its own, and all of them as a table in the docs.

Run ``python recipes/results.py`` to write ``docs/results.md`` anew from ``docs/results/*.json``.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from regard.files import atomic_write

ROOT = Path(__file__).parent.parent
FOLDER, PAGE = ROOT / "docs/results", ROOT / "docs/results.md"
PICTURES = {"sagan": "SAGAN: an image of each class, and below it where three of its places, each marked, look in it."}
HEADER = """\
# Results

What the recipes of this repository reach, beside published figures. Each line is made anew by the command that stands
in it; `docs/results` holds the values of each seed, the commit and the machine.

| what | reached | published, or a peer | by |
|---|---|---|---|
"""


def command(program: str, **options: Any) -> str:
    """The command of a result: a program of this folder with its arguments, and an option for each value there is."""
    words = [f"python recipes/{program}"]
    for name, value in options.items():
        values = value if isinstance(value, list) else [value]
        words += [f"--{name.replace('_', '-')} {each}" for each in values if each is not None]
    return " ".join(words)


def write_result(path: Path, what: str, reached: str, published: str, by: str, **details: Any) -> None:
    """Write a result with what it was measured on; the table in the docs follows where it is one of the docs'."""
    path.parent.mkdir(parents=True, exist_ok=True)
    machine = {
        "commit": commit(),
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    found = {"what": what, "reached": reached, "published": published, "by": by, **details, **machine}
    path.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if path.resolve().parent == FOLDER:
        write_page()


def kept(path: Path, make: Callable[[], Any]) -> Any:
    """What takes long to make, and is made once: anything that JSON can hold."""
    if not path.is_file():
        found = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path, text=True) as file:
            json.dump(found, file)
    return json.loads(path.read_text(encoding="utf-8"))


def spread(values: Sequence[float], digits: int = 1) -> str:
    """A mean, and the deviation of several."""
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation}"


def effort(run: Path) -> tuple[int, float]:
    """How many tokens a training has learned from, and how many seconds it took."""
    with (run / "metrics.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["tokens_per_second"]]
    tokens = [int(row["tokens"]) for row in rows]
    return sum(tokens), sum(count / int(row["tokens_per_second"]) for count, row in zip(tokens, rows, strict=True))


def page(folder: Path = FOLDER) -> str:
    """The table of all results."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    rows = [f"| {each['what']} | {each['reached']} | {each['published']} | `{each['by']}` |\n" for each in found]
    pictures = sorted(folder.glob("*.png"))
    shown = [(path.name, PICTURES.get(path.stem, path.stem)) for path in pictures]
    return HEADER + "".join(rows) + "".join(f"\n![{told}](results/{name})\n\n{told}\n" for name, told in shown)


def write_page(folder: Path = FOLDER, path: Path = PAGE) -> None:
    """Write the table of all results."""
    path.write_text(page(folder), encoding="utf-8")


def commit() -> str:
    """What this code is, and whether it was changed since."""
    changed = "-dirty" if _git("status", "--porcelain", "--", ":!docs/results", ":!docs/results.md") else ""
    return (_git("rev-parse", "--short", "HEAD") or "none") + changed


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    write_page()
