"""A linear layer with faster inference on CPUs.

A few rows, as in a step of generation, are multiplied at the speed of memory by the native library. For more, torch
multiplies float32 with MKL, which does not use the widest instructions of other vendors' processors. oneDNN, which
torch has for convolutions and bfloat16, does.
"""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.utils._python_dispatch import (
    _get_current_dispatch_mode,  # pyright: ignore[reportPrivateUsage]
)

from regard.native.library import DTYPES, Library, LinearCall, library

MIN_WEIGHTS = 2**18
"""With fewer weights, a call of another library takes longer than what it saves."""
MAX_ROWS = {torch.float32: 8, torch.bfloat16: 4}
"""With more rows, torch's products are as fast. In float16, even its product of one row is."""


class Linear(nn.Linear):
    """y = x Wᵀ + b: ``torch.nn.Linear`` with faster products on a CPU when no gradient is needed.

    Examples:
        >>> import torch
        >>> Linear(4, 3)(torch.ones(2, 5, 4)).shape
        torch.Size([2, 5, 3])
    """

    bias: nn.Parameter | None  # pyright: ignore[reportIncompatibleVariableOverride] - torch leaves out None

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride] - torch's argument is called input
        self, x: Float[Tensor, "*axes in_features"]
    ) -> Float[Tensor, "*axes out_features"]:
        """Map (..., in_features) to (..., out_features)."""
        return linear(x, self.weight, self.bias)

    def forward_rows(self, x: Float[Tensor, "*axes in_features"], rows: slice) -> Float[Tensor, "*axes rows"]:
        """Map (..., in_features) to some of the output features."""
        return linear(x, self.weight[rows], None if self.bias is None else self.bias[rows])


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`torch.nn.functional.linear`, on a CPU by the fastest library where no gradients are needed, as in generation."""
    if not _is_transformed() and weight.numel() >= MIN_WEIGHTS:
        with torch._C.DisableTorchFunction():  # pyright: ignore[reportPrivateUsage] - or a mode sees each step
            if _is_plain(x, weight, bias):
                y = linear_of_few_rows(x, weight, bias)
                if y is not None:
                    return y
                if x.dtype == torch.float32 and is_onednn_faster():
                    return torch.ops.mkldnn._linear_pointwise.default(x.contiguous(), weight, bias, "none", [], "")
    return functional.linear(x, weight, bias)


def _is_transformed() -> bool:
    """Whether torch needs to see the operation: to differentiate it, to record it or to change its dtype."""
    return torch.is_grad_enabled() or is_recorded() or torch.is_autocast_enabled("cpu")


def is_recorded() -> bool:
    """Whether torch records operations, changes what they do, or differentiates them forwards."""
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
        or forward_ad._current_level >= 0  # pyright: ignore[reportPrivateUsage]
        or _get_current_dispatch_mode() is not None
    )


def _is_plain(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether these are ordinary CPU tensors of one dtype whose shapes match."""
    tensors = (x, weight) if bias is None else (x, weight, bias)
    return (
        all(map(is_ordinary, tensors))
        and all(tensor.dtype == x.dtype for tensor in tensors)
        and x.shape[-1:] == weight.shape[1:]
        and weight.is_contiguous()
        and (bias is None or (bias.shape == weight.shape[:1] and bias.is_contiguous()))
    )


def is_ordinary(tensor: Tensor) -> bool:
    """Whether a tensor is one of torch's own classes, on a CPU, with its elements in memory."""
    is_own = type(tensor) in (Tensor, nn.Parameter) and _keys_of(tensor) in _plain_keys()
    return is_own and tensor.untyped_storage().nbytes() > 0


def _keys_of(tensor: Tensor) -> int:
    """What torch's dispatcher knows of a tensor: its device and layout, and whether it is wrapped, negated or zero."""
    return torch._C._dispatch_keys(tensor).raw_repr()  # pyright: ignore[reportPrivateUsage]


@cache
def _plain_keys() -> frozenset[int]:
    """What the dispatcher knows of tensors that are neither."""
    keys: list[int] = []
    for is_inference in (False, True):  # whatever the caller's mode
        with torch.inference_mode(is_inference):
            keys.append(_keys_of(torch.empty(0, device="cpu")))
    return frozenset(keys)


@cache
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
