"""A/B timing: two functions run in turn in one process, and the results are ratios of their times."""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from regard.ops.kernels.native.kernel import Native

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tools"))
from machine import machine_info  # noqa: E402

RESULTS = ROOT / "benchmarks/results"
Run = Callable[[], object]


def relative_time(ours: Run, baseline: Run, rounds: int) -> list[float]:
    """Our time divided by the baseline's in each round (lower is better)."""
    return [run_time / baseline_time for run_time, baseline_time in paired_times(ours, baseline, rounds)]


def speedup(ours: Run, baseline: Run, rounds: int) -> list[float]:
    """The baseline's time divided by ours in each round (higher is better)."""
    return [baseline_time / run_time for run_time, baseline_time in paired_times(ours, baseline, rounds)]


def paired_times(ours: Run, baseline: Run, rounds: int) -> list[tuple[float, float]]:
    """Seconds of A and B, run as A B A B after one warm-up round; ten times as many rounds if a run is short."""
    warm_up = seconds(ours), seconds(baseline)
    rounds *= 10 if min(warm_up) < 0.03 else 1
    return [(seconds(ours), seconds(baseline)) for _ in range(rounds)]


def seconds(run: Run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def report(
    script: str, ratios: dict[str, list[float]], seed: int, *, section: str | None = None, **settings: Any
) -> None:
    """Print the median of each list of ratios, and `write` them.

    Args:
        script: Name of the script.
        ratios: The ratios of each round, by ``"metric: what was measured"``.
        seed: Seed of the script.
        section: See `write`.
        settings: Sizes, and results other than ratios.
    """
    for name, values in ratios.items():
        print(f"{script}: {name}: {statistics.median(values):.2f} (from {min(values):.2f} to {max(values):.2f})")
    write(script, ratios, seed, section=section, **settings)


def write(
    script: str, ratios: dict[str, list[float]], seed: int, *, section: str | None = None, **settings: Any
) -> None:
    """Write all ratios, their medians and the machine to ``results/<script>.json``.

    Args:
        script: Name of the script.
        ratios: See `report`.
        seed: Seed of the script.
        section: The part of the file to write; one of its own where ``REGARD_ISA`` names an instruction set. Default:
            the whole file.
        settings: Sizes, and results other than ratios.
    """
    medians = {name: round(statistics.median(values), 3) for name, values in ratios.items()}
    ratios = {name: [round(value, 4) for value in values] for name, values in ratios.items()}
    result = {"median_ratio": medians, "ratios": ratios, "seed": seed, "settings": settings, **machine_info()}
    result |= {
        "capability": torch.backends.cpu.get_cpu_capability(),
        "instruction_set": Native().variant(),
        "threads": torch.get_num_threads(),
    }
    path = RESULTS / f"{script}.json"
    if section is not None and os.environ.get("REGARD_ISA"):
        section += f", {result['instruction_set']}"
    if section is not None:
        others = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        result = others | {section: result}
    path.parent.mkdir(exist_ok=True)
    text = json.dumps(result, indent=2)
    text = re.sub(r"\[[^\[\]{}]*\]", lambda numbers: " ".join(numbers[0].split()), text)  # a line for each list
    path.write_text(text + "\n", encoding="utf-8")
