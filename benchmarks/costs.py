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
    return TEXT.format(
        capability={"AVX512": "AVX-512"}.get(found["answers"]["capability"], found["answers"]["capability"]),
        products=found["answers"]["products"],
        mkl=attention["the same with MKL's products in times of SDPA, 4096"],
        usual=attention["streamed with entropy and received in times of SDPA, 4096"],
        answers="\n".join(answers),
        others="\n".join(f"| {what} | {value:.2f} |" for what, value in alone.items()),
        memory="\n".join(memory),
    )


def _read(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
