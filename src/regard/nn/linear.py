"""A linear layer with faster inference on CPUs, and the check of the input of a layer.

A few rows, as in a step of generation, are multiplied at the speed of memory by `regard.native.linear`. For more, torch
multiplies float32 with MKL, which does not use the widest instructions of other vendors' processors. oneDNN, which
torch has for convolutions and bfloat16, does.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.utils._python_dispatch import (
    _get_current_dispatch_mode,  # pyright: ignore[reportPrivateUsage]
)

from regard.checks import Checks
from regard.native.linear import linear_of_few_rows

MIN_WEIGHTS = 2**18
"""With fewer weights, a call of another library takes longer than what it saves."""


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
    return (
        torch.is_grad_enabled()
        or torch.compiler.is_compiling()
        or torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
        or forward_ad._current_level >= 0  # pyright: ignore[reportPrivateUsage]
        or _get_current_dispatch_mode() is not None
        or torch.is_autocast_enabled("cpu")
    )


def _is_plain(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether these are ordinary CPU tensors of one dtype whose shapes match."""
    tensors = (x, weight) if bias is None else (x, weight, bias)
    return (
        all(type(tensor) in (Tensor, nn.Parameter) and _keys_of(tensor) in _PLAIN for tensor in tensors)
        and all(tensor.dtype == x.dtype and tensor.untyped_storage().nbytes() > 0 for tensor in tensors)
        and x.shape[-1:] == weight.shape[1:]
        and weight.is_contiguous()
        and (bias is None or (bias.shape == weight.shape[:1] and bias.is_contiguous()))
    )


def _keys_of(tensor: Tensor) -> int:
    """What torch's dispatcher knows of a tensor: its device and layout, and whether it is wrapped, negated or zero."""
    return torch._C._dispatch_keys(tensor).raw_repr()  # pyright: ignore[reportPrivateUsage]


def _plain_keys() -> set[int]:
    with torch.inference_mode():
        inference = torch.empty(0, device="cpu")
    return {_keys_of(torch.empty(0, device="cpu")), _keys_of(inference)}


_PLAIN = _plain_keys()


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


def check_input(
    checks: Checks, name: str, x: Any, sizes: Mapping[str, int | None], weight: Tensor | None = None
) -> bool:
    """Check the shape of a tensor, where None allows any size, and its dtype, unless autocast converts it."""
    if not checks.tensor(name, x):
        return False
    valid = x.ndim == len(sizes) and all(
        size is None or size == own for size, own in zip(sizes.values(), x.shape, strict=True)
    )
    if not valid:
        axes = ", ".join(axis if size is None else f"{axis}={size}" for axis, size in sizes.items())
        checks.fail(f"{name}: expected shape ({axes}), got {tuple(x.shape)}")
    if weight is not None and x.dtype != weight.dtype and not torch.is_autocast_enabled(weight.device.type):
        return checks.fail(f"{name}: expected the weights' dtype {weight.dtype}, got {x.dtype}; convert it with .to()")
    return valid
