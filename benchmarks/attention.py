"""`regard.attend` on CPU compared with PyTorch's SDPA and with dense attention: time and peak memory.

Run: ``python benchmarks/attention.py``; for a quick check: ``--keys 128 --rounds 1``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import torch
from memory import peak_megabytes
from timing import Run, relative_time, report, speedup
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard

SEED, HEADS, HEAD_DIM = 0, 8, 64
MEASURES = ["entropy", "received"]
DenseMeasure = Callable[[Tensor, Tensor], object]
"""Compute a measure from dense scores and weights, (batch, heads, queries, keys)."""
DENSE_MEASURES: dict[str, DenseMeasure] = {
    "entropy": lambda scores, weights: torch.special.entr(weights).sum(-1),
    "received": lambda scores, weights: weights.sum(-2),
}


def qkv(n: int, requires_grad: bool = False) -> list[Tensor]:
    """Random query, key and value, (1, HEADS, n, HEAD_DIM)."""
    return [torch.randn(1, HEADS, n, HEAD_DIM).requires_grad_(requires_grad) for _ in range(3)]


def call(function: Callable[..., object], inputs: Sequence[Tensor], **options: Any) -> Run:
    """Calls of a function without gradients."""

    def run() -> object:
        with torch.no_grad():
            return function(*inputs, **options)

    return run


def dense(query: Tensor, key: Tensor, value: Tensor, measures: Sequence[DenseMeasure]) -> object:
    """The output and the measures of the whole weight matrix."""
    scores = query @ key.mT * HEAD_DIM**-0.5
    weights = scores.softmax(-1)
    return weights @ value, [measure(scores, weights) for measure in measures]


def with_gradient(n: int, measure: str | None) -> Run:
    """Forward and backward of `attend` with a measure, or of SDPA."""
    inputs = qkv(n, requires_grad=True)

    def run() -> object:
        if measure is None:
            loss = sdpa(*inputs).sum()
        else:
            att = regard.attend(*inputs, measure=measure)
            loss = att.output.sum() + att.measured[measure].sum()
        return torch.autograd.grad(loss, inputs)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    n, rounds = arguments.keys, arguments.rounds
    torch.manual_seed(SEED)
    memory = {
        f"forward, {4 * n:,} keys": peak_megabytes(call(regard.attend, qkv(4 * n), measure=MEASURES)),
        f"forward and backward, {4 * n:,} keys": peak_megabytes(with_gradient(4 * n, "entropy")),
    }
    inputs = qkv(n)
    measured = call(regard.attend, inputs, measure=MEASURES)
    causal = call(regard.attend, inputs, mask=regard.Causal(), measure=MEASURES)
    runs = {  # ours and the baseline
        **{f"SDPA: output, {keys}": (call(regard.attend, qkv(keys)), call(sdpa, qkv(keys))) for keys in (128, 512, n)},
        f"SDPA: output, entropy and received, {n}": (measured, call(sdpa, inputs)),
        f"SDPA: output, kernel='blockwise', {n}": (
            call(regard.attend, inputs, kernel="blockwise"),
            call(sdpa, inputs),
        ),
        f"causal SDPA: causal, with entropy and received, {n}": (causal, call(sdpa, inputs, is_causal=True)),
        f"SDPA: forward and backward with entropy, {n}": (with_gradient(n, "entropy"), with_gradient(n, None)),
    }
    ratios = {f"time relative to {name}": relative_time(*pair, rounds) for name, pair in runs.items()}
    baseline = call(dense, inputs, measures=list(DENSE_MEASURES.values()))
    ratios[f"speedup over dense PyTorch: output, entropy and received, {n}"] = speedup(measured, baseline, rounds)
    report("attention", ratios, SEED, heads=HEADS, head_dim=HEAD_DIM, peak_megabytes=memory)


if __name__ == "__main__":
    main()
