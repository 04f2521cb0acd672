"""Two ways to do the same work, timed in turn in one process; the figure is the median of their ratios."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from regard.ops import matmul

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parent.parent


def ratios(ours: Callable[[], object], theirs: Callable[[], object], rounds: int) -> list[float]:
    """How many times longer theirs takes than ours, in each of some rounds A B A B, after one round to warm up."""
    found = []
    for round_number in range(rounds + 1):
        mine, others = seconds(ours), seconds(theirs)
        if round_number:
            found.append(others / mine)
    return found


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def report(name: str, found: dict[str, list[float]], seed: int, **settings: Any) -> None:
    """Print the median of each list of ratios, and write all of them with what they were measured on."""
    medians = {what: round(statistics.median(values), 3) for what, values in found.items()}
    for what, value in medians.items():
        print(f"{name}: {what}: {value:.2f} (from {min(found[what]):.2f} to {max(found[what]):.2f})")
    RESULTS.mkdir(exist_ok=True)
    result = {"median_ratio": medians, "ratios": found, "seed": seed, "settings": settings, **machine()}
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")


def machine() -> dict[str, Any]:
    """The commit and the machine's shape."""
    commit = _git("rev-parse", "--short", "HEAD") or "none"
    changed = "-dirty" if _git("status", "--porcelain", "--", ":!benchmarks/results") else ""
    return {
        "commit": commit + changed,
        "cpu": platform.processor() or platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "products": "oneDNN" if matmul.is_onednn_faster() else "MKL",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
