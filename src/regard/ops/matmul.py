"""Matrix products in float32 on a CPU, by the faster of the two libraries that torch brings.

Torch multiplies float32 by MKL, which keeps the processors of other makers from their widest instructions. oneDNN,
which torch has for convolutions and bfloat16, does not: on an AMD processor with AVX-512 it takes from half the time to
nine tenths of it. It multiplies two matrices, not several pairs of them, and compiles a program for every new shape,
which it keeps: half a megabyte each, up to a thousand of them.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter, functional

LARGE = 2**23
"""From so many multiplications on: oneDNN compiles a program for every new shape, which takes as long as these do."""

WIDE = 2**16
"""Linear maps of fewer weights gain little."""

TERMS = 256
"""Sums of more terms are left to MKL: oneDNN adds them one by one, and is twice as far off after some thousands."""


def product(left: Tensor, right: Tensor, often: bool) -> Tensor:
    """The product by head, (batch, heads, rows, inner) by (batch, heads, inner, columns).

    Args:
        left: (batch, heads, rows, inner).
        right: (batch, heads, inner, columns).
        often: Whether many products have these shapes; of each shape oneDNN keeps a program of half a megabyte.
    """
    if not often or not _is_for_onednn(left, right):
        return left @ right
    if torch.is_grad_enabled() and (left.requires_grad or right.requires_grad):
        return _Product.apply(left, right)  # pyright: ignore[reportReturnType]
    return _by_onednn(left, right)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """What ``torch.nn.functional.linear`` gives; by oneDNN where no gradients are kept, as in generation."""
    few = weight.numel() < WIDE or not weight.is_contiguous() or not x.numel()
    if few or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or not _is_served(x, weight):
        return functional.linear(x, weight, bias)
    return torch.ops.mkldnn._linear_pointwise.default(x.contiguous(), weight, bias, "none", [], "")


class _Product(torch.autograd.Function):
    """oneDNN's product knows no derivative."""

    @staticmethod
    def forward(left: Tensor, right: Tensor) -> Tensor:
        found = _by_onednn(left, right)
        return found.clone() if found._is_view() else found  # masks are written into it

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        left, right = ctx.saved_tensors
        of_left, of_right = ctx.needs_input_grad
        return (
            product(gradient, right.mT, often=True) if of_left else None,
            product(left.mT, gradient, often=True) if of_right else None,
        )


def _by_onednn(left: Tensor, right: Tensor) -> Tensor:
    """The product of one head."""
    if left.stride(3) != 1:  # which is slow on the left side, but not on the right
        if left.numel() > right.numel():
            return _by_onednn(right.mT, left.mT).mT
        left = left.contiguous()
    column = _without_gaps(right)[0, 0].mT
    return torch.ops.mkldnn._linear_pointwise.default(_without_gaps(left), column, None, "none", [], "")


def _is_for_onednn(left: Tensor, right: Tensor) -> bool:
    batch, heads, rows, inner = left.shape
    alone = batch == heads == 1  # several would be multiplied one by one and put together, which takes what was won
    return alone and inner <= TERMS and rows * inner * right.shape[3] >= LARGE and _is_served(left, right)


def _is_served(left: Tensor, right: Tensor) -> bool:
    """Whether oneDNN takes these two, and is the faster one for them."""
    if not ONEDNN or left.dtype != torch.float32 or right.dtype != torch.float32 or left.device.type != "cpu":
        return False
    if torch.compiler.is_compiling() or forward_ad._current_level >= 0:  # a tangent may go along
        return False
    return all(type(each) in (Tensor, Parameter) and not _is_wrapped(each) for each in (left, right))


def _without_gaps(side: Tensor) -> Tensor:
    """The same with rows or columns that follow each other at once; others take oneDNN a thousand times as long."""
    lying = side.stride(3) == 1 and side.stride(2) == side.shape[3]
    upright = side.stride(2) == 1 and side.stride(3) == side.shape[2]
    return side if lying or upright else side.contiguous()


def _is_foreign() -> bool:
    """Whether MKL meets a processor that its maker did not make."""
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text()[:1000]
    except OSError:
        return "AuthenticAMD" in platform.processor()


_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # pyright: ignore[reportAttributeAccessIssue]

ONEDNN = (
    torch.backends.mkldnn.is_available()
    and torch.backends.mkl.is_available()
    and torch.backends.cpu.get_cpu_capability() == "AVX512"
    and _is_foreign()
)
"""Whether oneDNN is there and is the faster one."""
