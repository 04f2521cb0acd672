"""Dropout whose random numbers are cheap on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import InvalidArgument


def dropout(x: Float[Tensor, "*axes"], p: float, training: bool = True) -> Float[Tensor, "*axes"]:
    """Set each element to 0 with probability p and divide the others by 1 − p.

    On a CPU, torch draws a Mersenne-twister number for every element, which takes a quarter of a small model's training
    step; here each element takes one 16-bit lane of a counter-free 64-bit stream (SFC64), seeded from torch's default
    generator, so `torch.manual_seed` governs it. p is rounded to a multiple of 2⁻¹⁶; the kept elements are divided by
    the probability that was really used. On other devices this is `torch.nn.functional.dropout`.

    Args:
        x: Any shape and floating dtype.
        p: Probability to drop, 0 ≤ p < 1.
        training: False returns x itself.

    Returns:
        The shape and dtype of x.

    Raises:
        InvalidArgument: If p is no probability below 1.

    Example:
        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> kept = dropout(torch.ones(1000, 100), 0.25)
        >>> sorted(set(kept.flatten().tolist()))
        [0.0, 1.3333333730697632]
        >>> round(kept.mean().item(), 1)
        1.0
    """
    if not 0 <= p < 1:
        raise InvalidArgument(f"p: expected a probability from 0 to below 1, got {p}")
    if not training or p == 0.0:
        return x
    if x.device.type != "cpu":
        return torch.nn.functional.dropout(x, p)
    seed = int(torch.randint(2**62, ()))
    if x.element_size() == 2:
        kept, scale = _kept(x.shape, p, seed)
        return _KeepBits.apply(x, kept.neg_(), scale)  # pyright: ignore[reportReturnType]
    return x * keep_mask(x.shape, p, seed, x.device).to(x.dtype)


def keep_mask(shape: torch.Size, p: float, seed: int, device: torch.device) -> Tensor:
    """What to multiply with: 0 with probability p, else 1 / (1 − p); float32, the same for the same seed and device."""
    if device.type != "cpu":
        generator = torch.Generator(device).manual_seed(seed)
        return (torch.rand(shape, device=device, generator=generator) >= p) / (1 - p)
    kept, scale = _kept(shape, p, seed)
    return kept.to(torch.float32).mul_(scale)


INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}
"""As wide as each dtype."""


def keep_cells(
    shape: torch.Size, p: float, seed: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, float]:
    """What :func:`keep` takes to drop elements with probability p, and 1 / (1 − p), which is left to the caller.

    On a CPU these are integers as wide as the dtype, with no bit set where an element is dropped, else all.
    """
    if device.type != "cpu":
        generator = torch.Generator(device).manual_seed(seed)
        return torch.rand(shape, device=device, generator=generator) >= p, 1 / (1 - p)
    kept, scale = _kept(shape, p, seed)
    return kept.neg_().to(INTEGERS[dtype]), scale


def keep(x: Tensor, cells: Tensor) -> Tensor:
    """The elements of x at these cells, and 0 elsewhere; no gradient flows."""
    return x * cells if cells.dtype == torch.bool else (x.view(cells.dtype) & cells).view(x.dtype)


def _kept(shape: torch.Size, p: float, seed: int) -> tuple[Tensor, float]:
    """Int16: 0 with probability p, else 1; and 1 / (1 − p), with the p that was really used."""
    count = shape.numel()
    bits = np.random.Generator(np.random.SFC64(seed)).integers(0, 2**64, -(-count // 4), dtype=np.uint64)
    lanes = torch.from_numpy(bits).view(torch.int16)[:count].view(shape)
    dropped = min(round(p * 2**16), 2**16 - 1)
    if torch.compiler.is_compiling():  # which loses track of what is compared in place in a view
        return (lanes >= dropped - 2**15).to(torch.int16), 2**16 / (2**16 - dropped)
    # Comparing in place stays within int16 and is several times faster than making a bool tensor.
    return lanes.ge_(dropped - 2**15), 2**16 / (2**16 - dropped)


class _KeepBits(torch.autograd.Function):
    """Dropout of a 16-bit dtype by its bits: no mask in floating point, and only the bits are kept for backward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, bits: Tensor, scale: float) -> Tensor:
        """Keep the elements of x where all bits are set, and scale them."""
        return (x.view(torch.int16) & bits).view(x.dtype).mul_(scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
        """Keep the bits for the backward pass."""
        _, bits, ctx.scale = inputs
        ctx.save_for_backward(bits)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """The same for the gradient; differentiable in its turn."""
        (bits,) = ctx.saved_tensors
        return _KeepBits.apply(gradient, bits, ctx.scale), None, None  # pyright: ignore[reportReturnType]
