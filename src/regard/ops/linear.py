"""Linear layers of a few rows, as in a step of generation, at the speed of memory."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.ops.kernels.native.library import library

MAX_ROWS = {torch.float32: 8, torch.bfloat16: 4}
"""By dtype; with more rows, torch's products are as fast. In float16, its product of one row is."""


def linear_of_few_rows(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    """Compute y = x Wᵀ + b without a gradient by the native library, or None where it does not suit.

    It reads each weight once, which takes as long as to add them up; torch's products of one row take about twice as
    long. A row's result does not depend on the other rows and on the number of threads.

    Args:
        x: (..., in), on a CPU.
        weight: (out, in), contiguous.
        bias: (out,), contiguous, or None.

    Returns:
        (..., out), or None for more rows or other dtypes than in `MAX_ROWS`, and where the library was not built.
    """
    rows = x.numel() // max(x.shape[-1], 1)
    found = library()
    if rows > MAX_ROWS.get(x.dtype, -1) or isinstance(found, str):
        return None
    y = found.linear(x.reshape(rows, x.shape[-1]).contiguous(), weight, bias)
    return y.view(*x.shape[:-1], weight.shape[0])
