"""Float32 matrix products and linear layers on a CPU, by the faster of the two libraries that torch has.

Torch multiplies float32 with MKL, which does not use the widest instructions of other vendors' processors. oneDNN,
which torch has for convolutions and bfloat16, does: on AMD processors with AVX-512 it takes 0.5 to 0.9 times as long.
It multiplies two matrices, not batches, and compiles a program for every new shape, of which it keeps up to a thousand
at half a megabyte each.
"""

from __future__ import annotations

import platform
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter, functional

from regard.ops.autograd import Function

MIN_MULTIPLY_ADDS = 2**23
"""Below this, compiling oneDNN's program for a new shape takes longer than the product."""

MIN_WEIGHTS = 2**16
"""Linear layers with fewer weights gain little."""

MAX_INNER = 256
"""Longer sums stay with MKL: oneDNN adds their terms one by one, and is twice as far off after some thousands."""


def matmul(left: Tensor, right: Tensor, is_repeated: bool) -> Tensor:
    """The product per head, (batch, heads, rows, inner) by (batch, heads, inner, columns).

    `is_repeated` says that many products have these shapes, so that oneDNN's program for them pays off.
    """
    if not is_repeated or not _suits_onednn(left, right):
        return left @ right
    if torch.is_grad_enabled() and (left.requires_grad or right.requires_grad):
        return _Matmul.apply(left, right)
    return _onednn_matmul(left, right)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`torch.nn.functional.linear`, by oneDNN where no gradients are needed, as in generation."""
    unsuitable = weight.numel() < MIN_WEIGHTS or not weight.is_contiguous() or not x.numel()
    if unsuitable or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or not _prefers_onednn(x, weight):
        return functional.linear(x, weight, bias)
    return torch.ops.mkldnn._linear_pointwise.default(x.contiguous(), weight, bias, "none", [], "")


class _Matmul(Function):
    """oneDNN's product has no derivative of its own."""

    @staticmethod
    def forward(left: Tensor, right: Tensor) -> Tensor:
        result = _onednn_matmul(left, right)
        return result.clone() if result._is_view() else result  # masks are written into it

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        left, right = ctx.saved_tensors
        of_left, of_right = ctx.needs_input_grad
        return (
            matmul(gradient, right.mT, True) if of_left else None,
            matmul(left.mT, gradient, True) if of_right else None,
        )


def _onednn_matmul(left: Tensor, right: Tensor) -> Tensor:
    """The product of one head."""
    if left.stride(3) != 1:  # slow on the left side, but not on the right
        if left.numel() > right.numel():
            return _onednn_matmul(right.mT, left.mT).mT
        left = left.contiguous()
    column = _dense_strides(right)[0, 0].mT
    return torch.ops.mkldnn._linear_pointwise.default(_dense_strides(left), column, None, "none", [], "")


def _suits_onednn(left: Tensor, right: Tensor) -> bool:
    batch, heads, rows, inner = left.shape
    # Several heads would be multiplied one by one and concatenated, which costs what was gained.
    if not (batch == heads == 1 and inner <= MAX_INNER):
        return False
    return rows * inner * right.shape[3] >= MIN_MULTIPLY_ADDS and _prefers_onednn(left, right)


def _prefers_onednn(left: Tensor, right: Tensor) -> bool:
    """Whether oneDNN takes these two tensors and is faster than MKL."""
    if left.dtype != torch.float32 or right.dtype != torch.float32 or left.device.type != "cpu":
        return False
    if torch.compiler.is_compiling() or forward_ad._current_level >= 0 or not is_onednn_faster():  # pyright: ignore[reportPrivateUsage]
        return False
    return all(type(each) in (Tensor, Parameter) and not _is_wrapped(each) for each in (left, right))


def _dense_strides(side: Tensor) -> Tensor:
    """The same with adjacent rows or columns; with gaps between them oneDNN takes a thousand times as long."""
    row_major = side.stride(3) == 1 and side.stride(2) == side.shape[3]
    column_major = side.stride(2) == 1 and side.stride(3) == side.shape[2]
    return side if row_major or column_major else side.contiguous()


@lru_cache(maxsize=1)
def is_onednn_faster() -> bool:
    """Whether this is a CPU on which MKL falls behind: not Intel's, with AVX-512."""
    return (
        torch.backends.mkldnn.is_available()
        and torch.backends.mkl.is_available()
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and _is_amd()
    )


def _is_amd() -> bool:
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text()[:1000]
    except OSError:
        return "AuthenticAMD" in platform.processor()


_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage]
