"""Write docs/costs.md from what was measured.

Run: ``python benchmarks/costs.py``
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS, PAGE = Path(__file__).parent / "results", Path(__file__).parents[1] / "docs" / "costs.md"
BESIDE, DENSE = " in times of SDPA's output", ", dense, in times of ours"

TEXT = """# What an answer costs

Median ratios of times on two CPU cores with {capability}: 8 heads of 64, 4096 queries and keys, float32, ours and the
other in turn in one process. `python benchmarks/measures.py` measures them anew (every ratio lies in
`benchmarks/results`), and `python benchmarks/costs.py` writes this page.

SDPA multiplies by MKL. Ours computed scores by {products}: on AMD's processors with AVX-512 that is oneDNN, which takes
half the time there; elsewhere it is MKL too. By MKL alone the output with entropy and received took {mkl:.2f} times as
long as SDPA here, where it took {usual:.2f}.

## Answers, in the same pass as the output

The second column is the whole call in times of `scaled_dot_product_attention`, which gives the output alone. The third
is the dense way in plain torch, scores, softmax, output and the same answers, in times of ours; it holds the matrix,
537 MB here. "Four" is entropy, received, max and mean distance in one pass.

| answer | in times of SDPA's output | dense torch in times of ours |
|---|---|---|
{answers}

## Masks, gradients, layers, graphs

| | times |
|---|---|
{others}

## Memory

Peak above the inputs in MB, of the output with entropy and received, 8 heads. The matrix itself is in the last column.

| keys | forward | forward and backward | the matrix |
|---|---|---|---|
{memory}

## The explorer

12 layers of 12 heads, in headless Chromium on two CPU cores with AVX-512: the first picture from the beginning of the
navigation, the answer to a pointer at a cell, and a frame while the matrix is zoomed, in milliseconds
(`python benchmarks/explorer.py`). BertViz's views of the same weights, in the same browser, stand beside it; its pages
load libraries from a network, here from the disk.

| tokens | | MB | first picture | pointer | frame |
|---|---|---|---|---|---|
{explorer}

Writing the page takes {writing:.1f} times the forward pass of BERT base at 4,096 tokens, and memory above the recording
of {writing_memory}.
"""


def page() -> str:
    """The page, from the files of results."""
    found = {name: _read(name) for name in ("answers", "masks", "gradients", "layers", "graphs", "memory")}
    ratios, attention = found["answers"]["median_ratio"], _read("attention")["median_ratio"]
    names = [key.removesuffix(BESIDE) for key in ratios if key.endswith(BESIDE)]
    answers = [f"| {name} | {ratios[name + BESIDE]:.2f} | {ratios[name + DENSE]:.2f} |" for name in names]
    alone = {key: value for key, value in ratios.items() if not key.endswith((BESIDE, DENSE))}
    for name in ("masks", "gradients", "layers", "graphs"):
        alone |= found[name]["median_ratio"]
    megabytes = found["memory"]["settings"]["megabytes"]
    learnt = megabytes["forward and backward"]
    memory = [
        f"| {int(keys):,} | {forward:.0f} | {f'{learnt[keys]:.0f}' if keys in learnt else ''} | "
        f"{8 * int(keys) ** 2 * 4 / 1e6:,.0f} |"
        for keys, forward in megabytes["forward"].items()
    ]
    explorer = _read("explorer")
    told = explorer["settings"]
    return TEXT.format(
        explorer="\n".join(_explorer(told)),
        writing=explorer["median_ratio"]["writing the page in times of the forward pass, 4096"],
        writing_memory=", ".join(f"{size:.0f} MB at {int(tokens):,}" for tokens, size in told["memory"].items()),
        capability={"AVX512": "AVX-512"}.get(found["answers"]["capability"], found["answers"]["capability"]),
        products=found["answers"]["products"],
        mkl=attention["the same with MKL's products in times of SDPA, 4096"],
        usual=attention["output, entropy and received in times of SDPA, 4096"],
        answers="\n".join(answers),
        others="\n".join(f"| {what} | {value:.2f} |" for what, value in alone.items()),
        memory="\n".join(memory),
    )


def _explorer(told: dict[str, Any]) -> list[str]:
    """A line for each page that was looked at."""
    lines = []
    for where, found in told["milliseconds"].items():
        kind, tokens = where.split(", ")
        size = f"{told['megabytes'][tokens]:.1f}" if kind == "file" else ""
        name = "a file" if kind == "file" else "from `regard serve`"
        times = [f"{found[what]:.0f}" for what in ("first picture", "hover", "frame")]
        lines.append((int(tokens), f"| {int(tokens):,} | {name} | {size} | {' | '.join(times)} |"))
    for tokens, views in told["bertviz"].items():
        for view, found in views.items():
            hover = f"{found['hover']:.0f}" if "hover" in found else ""
            drawn = "not in a minute" if found["first picture"] is None else f"{found['first picture']:.0f}"
            first = f"{found['megabytes']:.1f} | {drawn}"
            lines.append((int(tokens), f"| {int(tokens):,} | BertViz, {view} | {first} | {hover} | |"))
    return [line for _, line in sorted(lines, key=lambda each: each[0])]


def _read(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
