"""Linear layers of a few rows, as in a step of generation, at the speed of memory."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.ops.kernels.native.library import library

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
    return None if isinstance(found, str) else found.linear(x.contiguous(), weight, bias)
