"""The largest singular values on CPU: time compared with SDPA and with the dense decomposition, passes and peak memory.

Random queries and keys are a hard case: after the first one, the singular values are close together. Larger ones
(``sharpness``) lie farther apart, as those of trained models do.

Run: ``python benchmarks/spectra.py``; for a quick check: ``--tokens 2048``.
"""

from __future__ import annotations

import argparse

import torch
from attention import HEAD_DIM, HEADS, SEED, call, qkv
from attention import sdpa as attention
from memory import in_subprocess, peak_megabytes
from timing import Run, relative_time, report, speedup

import regard

ROUNDS = 3
VALUES = 4
DENSE_TOKENS = 1024
"""Where the dense decomposition takes seconds."""
TOLERANCES = (1e-1, 1e-2)
"""Largest residuals; errors of values are like their squares, divided by gaps."""
SHARPNESS = (1.0, 4.0)


def matrix(tokens: int, sharpness: float) -> regard.WeightMatrix:
    query, key, _ = qkv(tokens)
    return regard.weights(sharpness * query, key)


def singular_values(weights: regard.WeightMatrix, tol: float) -> Run:
    return lambda: weights.singular_values(VALUES, tol=tol)


def passes(weights: regard.WeightMatrix, tol: float) -> int:
    """How many passes over the weights reach a tolerance."""
    allowed = 2
    while True:
        try:
            weights.singular_values(VALUES, tol=tol, max_passes=allowed)
        except regard.errors.InvalidArgument:
            allowed += 2
        else:
            return allowed


def memory_of(tokens: int) -> float:
    """Peak memory of the largest singular values above the inputs, in MB."""
    torch.manual_seed(SEED)
    return round(peak_megabytes(singular_values(matrix(tokens, 1.0), TOLERANCES[0])), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    tokens = parser.parse_args().tokens
    torch.manual_seed(SEED)
    ratios, counts = {}, {}
    baseline = call(attention, qkv(tokens))
    for sharpness in SHARPNESS:
        weights, small = matrix(tokens, sharpness), matrix(min(tokens, DENSE_TOKENS), sharpness)
        ratios[f"speedup over the dense decomposition: sharpness {sharpness:g}, {small.shape[2]} tokens"] = speedup(
            singular_values(small, TOLERANCES[-1]), lambda small=small: torch.linalg.svdvals(small.dense()), ROUNDS
        )
        for tol in TOLERANCES:
            name = f"sharpness {sharpness:g}, tol {tol:g}"
            counts[name] = passes(weights, tol)
            ratios[f"time relative to SDPA: {name}"] = relative_time(singular_values(weights, tol), baseline, ROUNDS)
    megabytes = {str(size): in_subprocess(memory_of, size) for size in (tokens, 8 * tokens)}
    print(f"spectra: passes: {counts}\nspectra: peak megabytes: {megabytes}")
    report("spectra", ratios, SEED, heads=HEADS, head_dim=HEAD_DIM, tokens=tokens, passes=counts, megabytes=megabytes)


if __name__ == "__main__":
    main()
