"""Linear layers of a few rows, as in a step of generation, at the speed of memory."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.native.library import DTYPES, Library, LinearCall, library

MAX_ROWS = {torch.float32: 8, torch.bfloat16: 4}
"""With more rows, torch's products are as fast. In float16, even its product of one row is."""


def linear_of_few_rows(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    """Compute y = x Wᵀ + b without a gradient, or return None where torch is faster or the library was not built.

    The native library reads each weight from memory once, which takes as long as adding them up; torch takes about
    twice as long for one row. A row's result depends neither on the other rows nor on the number of threads.

    Args:
        x: (..., in), on a CPU.
        weight: (out, in), contiguous.
        bias: (out,), contiguous, or None.

    Returns:
        (..., out), or None for more rows or other dtypes than in `MAX_ROWS`.
    """
    if x.shape[:-1].numel() > MAX_ROWS.get(x.dtype, -1):
        return None
    found = library()
    return None if isinstance(found, str) else multiply(found, x.contiguous(), weight, bias)


def multiply(loaded: Library, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute y = x Wᵀ + b for a few rows x (..., in). All are contiguous, and all float32 or all bfloat16."""
    out_features, in_features = weight.shape
    y = x.new_empty(*x.shape[:-1], out_features)
    call = LinearCall(
        rows=x.shape[:-1].numel(),
        in_features=in_features,
        out_features=out_features,
        x=x.data_ptr(),
        weight=weight.data_ptr(),
        bias=None if bias is None else bias.data_ptr(),
        y=y.data_ptr(),
        dtype=DTYPES[x.dtype],
    )
    loaded.run_linear(call)
    return y
