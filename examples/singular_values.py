"""The largest singular values of one head's attention weights at 16,384 tokens, a matrix of 1 GiB in float32.

If the singular values fall quickly, the matrix has a low effective rank: the head mixes all tokens in nearly the same
way. SciPy's Lanczos iteration only needs products with the matrix and its transpose, which are computed without storing
the matrix.

Run: ``python examples/singular_values.py --tokens 16384``
"""

from __future__ import annotations

import argparse
import time

import torch
from scipy.sparse.linalg import svds

import regard


def largest(weights: regard.WeightMatrix, count: int) -> list[float]:
    """The largest singular values of one head, in descending order."""
    values = svds(weights.linear_operator(), k=count, return_singular_vectors=False, rng=0, tol=1e-4)
    return sorted(values.tolist(), reverse=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Print the largest singular values of a head that attends to all tokens and of one with a window."
    )
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--count", type=int, default=5)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 1, arguments.tokens, 64)
    for name, mask in (("all tokens", None), ("a window of 64", regard.Window(63, 0))):
        start = time.perf_counter()
        values = largest(regard.weights(query, key, mask=mask), arguments.count)
        print(f"{name:15}", " ".join(f"{value:.4f}" for value in values), f"  {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
