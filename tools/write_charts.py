"""Write the charts of README and documentation from benchmarks/results, in light and dark: docs/charts.

Run: ``python tools/write_charts.py``
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "charts"
THEMES = {
    "light": {"text": "#1f2328", "muted": "#6e7781", "grid": "#d0d7de", "ours": "#2f6fb3", "other": "#b8c0c8"},
    "dark": {"text": "#e6edf3", "muted": "#9aa4ae", "grid": "#30363d", "ours": "#79b8ff", "other": "#58616b"},
}
SPEED = [  # title; rows of label, result file, section, key of the median, whether it is Regard
    (
        "attend, 8 heads of 64, 4,096 tokens, relative to SDPA",
        [
            ("output", "attention", None, "time relative to SDPA: output, 4096", True),
            (
                "output, entropy and received",
                "attention",
                None,
                "time relative to SDPA: output, entropy and received, 4096",
                True,
            ),
        ],
    ),
    (
        "BERT base, 2,048 tokens, relative to the model with SDPA",
        [
            (
                "watched",
                "watching",
                "time",
                "time relative to the unwatched model: BERT base, no measures, 2048",
                True,
            ),
            (
                "watched, entropy and received",
                "watching",
                "time",
                "time relative to the unwatched model: BERT base, entropy and received, 2048",
                True,
            ),
            (
                "eager, output_attentions=True",
                "watching",
                "time",
                "time relative to the unwatched model: BERT base, eager attention with output_attentions=True, 2048",
                False,
            ),
        ],
    ),
]


def results(script: str, section: str | None) -> dict[str, Any]:
    """What a benchmark measured."""
    found = json.loads((ROOT / "benchmarks" / "results" / f"{script}.json").read_text(encoding="utf-8"))
    return found[section] if section else found


def speed_rows() -> list[tuple[str, list[tuple[str, float, bool]]]]:
    """The bars of the chart of speed: a title, and for each bar its label, its length and whether it is Regard."""
    return [
        (title, [(label, results(script, part)["median_ratio"][key], ours) for label, script, part, key, ours in rows])
        for title, rows in SPEED
    ]


def memory_lines() -> dict[str, dict[int, float]]:
    """Peak memory in MB by number of keys."""
    settings = results("attention_measures", "memory")["settings"]
    measured = {
        f"Regard, {part}": {int(keys): value for keys, value in sizes.items()}
        for part, sizes in settings["megabytes"].items()
    }
    keys = sorted(measured["Regard, forward"])
    return {"the weight matrix alone": {n: settings["heads"] * n * n * 4 / 1e6 for n in keys}, **measured}


def draw_speed(colors: dict[str, str]) -> plt.Figure:
    """Horizontal bars in two groups."""
    groups = speed_rows()
    figure, axes = plt.subplots(figsize=(7.2, 2.9))
    y, ticks, labels = 0.0, [], []
    for title, rows in groups:
        axes.text(0, y, title, color=colors["muted"], fontsize=9.5, va="center")
        for label, value, ours in rows:
            y -= 1
            axes.barh(y, value, height=0.62, color=colors["ours" if ours else "other"])
            axes.text(value + 0.012, y, f"{value:.2f}", color=colors["text"], fontsize=9.5, va="center")
            ticks.append(y)
            labels.append(label)
        y -= 1.35
    axes.axvline(1, color=colors["muted"], linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
    axes.set_yticks(ticks, labels)
    axes.set_xticks([])
    axes.set_xlim(0, 1.5)
    axes.set_ylim(y + 0.9, 0.9)
    axes.set_title("Time (lower is better)", loc="left", color=colors["text"], fontsize=11)
    axes.tick_params(length=0, labelcolor=colors["text"], labelsize=9.5)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure


def draw_memory(colors: dict[str, str]) -> plt.Figure:
    """Lines on logarithmic axes, with labels at their ends."""
    figure, axes = plt.subplots(figsize=(7.2, 2.9))
    for name, sizes in memory_lines().items():
        color = colors["ours" if name.startswith("Regard") else "other"]
        dashes = (0, (4, 2)) if "backward" in name else "solid"
        axes.plot(list(sizes), list(sizes.values()), color=color, linestyle=dashes, marker="o", markersize=3.5)
        last = max(sizes)
        axes.annotate(
            f"{name}: {sizes[last]:,.0f} MB",
            (last, sizes[last]),
            xytext=(8, 0),
            textcoords="offset points",
            color=colors["text"],
            fontsize=9.5,
            va="center",
        )
    keys = sorted(memory_lines()["Regard, forward"])
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(keys, [f"{n:,}" for n in keys])
    axes.set_yticks([100, 1_000, 10_000, 100_000], ["100", "1,000", "10,000", "100,000"])
    axes.set_xlim(keys[0] * 0.9, keys[-1] * 9)
    axes.set_title(
        "Peak memory in MB, by number of tokens (lower is better)", loc="left", color=colors["text"], fontsize=11
    )
    axes.tick_params(length=0, labelcolor=colors["muted"], labelsize=9)
    axes.tick_params(which="minor", length=0)
    axes.grid(axis="y", color=colors["grid"], linewidth=0.6)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure


def main() -> None:
    """Draw both charts in both themes."""
    matplotlib.use("svg")
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "regard", "font.family": "sans-serif"})
    FOLDER.mkdir(exist_ok=True)
    for theme, colors in THEMES.items():
        for name, draw in (("speed", draw_speed), ("memory", draw_memory)):
            figure = draw(colors)
            figure.tight_layout()
            figure.savefig(FOLDER / f"{name}-{theme}.svg", transparent=True, metadata={"Date": None})
            plt.close(figure)


if __name__ == "__main__":
    main()
