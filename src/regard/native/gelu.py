"""GELU with tanh, as GPT-2 approximates it: torch's tanh takes several times as long on a CPU as what surrounds it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from regard.native.library import DTYPES, GeluCall, library
from regard.native.linear import is_ordinary, is_recorded

MIN_ELEMENTS = 2**14
"""With fewer elements, a call of another library takes longer than what it saves."""


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU(x) = x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2, as ``torch.nn.functional.gelu(x, approximate="tanh")``.

    On a CPU the native library computes it and its first derivative, in float32 and bfloat16.

    Args:
        x: Any shape.

    Returns:
        The same shape and dtype.

    Reference: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units", section 2.

    Examples:
        >>> import torch
        >>> gelu_tanh(torch.tensor([-1.0, 0.0, 2.0]))
        tensor([-0.1588,  0.0000,  1.9546])
    """
    if not _is_supported(x):
        return functional.gelu(x, approximate="tanh")
    return _Gelu.apply(x) if torch.is_grad_enabled() and x.requires_grad else run_gelu(x)


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return run_gelu(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        (x,) = ctx.saved_tensors
        if torch.is_grad_enabled() or not (_is_supported(x) and is_ordinary(gradient)):  # or for a second derivative
            return torch.ops.aten.gelu_backward.default(gradient, x, approximate="tanh")
        return run_gelu(x, gradient.contiguous())


def _is_supported(x: Tensor) -> bool:
    return (
        x.numel() >= MIN_ELEMENTS
        and x.dtype in (torch.float32, torch.bfloat16)
        and not is_recorded()
        and is_ordinary(x)
        and x.is_contiguous()
        and not isinstance(library(), str)
    )


def run_gelu(x: Tensor, gradient: Tensor | None = None) -> Tensor:
    """GELU(x), or its derivative times a gradient."""
    found, y = library(), x.new_empty(x.shape)
    assert not isinstance(found, str)
    data = None if gradient is None else gradient.data_ptr()
    found.run_gelu(GeluCall(count=x.numel(), x=x.data_ptr(), gradient=data, y=y.data_ptr(), dtype=DTYPES[x.dtype]))
    return y
