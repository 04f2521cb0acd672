"""Dropout with random numbers that are cheap on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.checks import Checks
from regard.errors import InvalidArgument
from regard.ops.autograd import Function


def dropout(x: Float[Tensor, "*axes"], p: float, training: bool = True) -> Float[Tensor, "*axes"]:
    """Set each element to 0 with probability p and divide the others by 1 − p.

    On a CPU, torch draws a Mersenne Twister number per element, which takes a quarter of a small model's training step.
    Here an element takes 16 bits of a stream of 64-bit numbers (NumPy's SFC64), seeded from torch's default generator,
    so `torch.manual_seed` makes it reproducible. p is rounded to a multiple of 2⁻¹⁶, and the kept elements are divided
    by the rounded probability of being kept. On other devices this is `torch.nn.functional.dropout`.

    Args:
        x: Any shape and floating dtype.
        p: Probability of dropping an element, 0 ≤ p < 1.
        training: Whether to drop anything; False returns x itself.

    Returns:
        The shape and dtype of x.

    Raises:
        InvalidArgument: If p is not in this range.
        InvalidType: If p is not a number.

    Examples:
        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> kept = dropout(torch.ones(1000, 100), 0.25)
        >>> sorted(set(kept.flatten().tolist()))
        [0.0, 1.3333333730697632]
        >>> round(kept.mean().item(), 1)
        1.0
    """
    if type(p) is not float or not 0 <= p < 1:
        checks = Checks()
        checks.number("p", p, low=0, below=1)
        checks.raise_problems()
        p = float(p)  # a number of NumPy would compute in its own precision
    if not training or p == 0.0:
        return x
    if x.device.type != "cpu":
        return torch.nn.functional.dropout(x, p)
    seed = draw_seed()
    if x.element_size() == 2:
        kept, scale = _draw_lanes(x.shape, p, seed)
        return _KeepBits.apply(x, kept.neg_(), scale)
    return x * keep_mask(x.shape, p, seed, x.device).to(x.dtype)


def draw_seed() -> int:
    """A seed from torch's generator on the CPU.

    Raises:
        InvalidArgument: Under `torch.vmap` with ``randomness="different"``.
    """
    seed = torch.randint(2**62, (), device="cpu")
    if torch._C._functorch.is_batchedtensor(seed):  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage]
        raise InvalidArgument("dropout: expected torch.vmap with randomness='same', got 'different'")
    return int(seed)


def keep_mask(shape: torch.Size, p: float, seed: int, device: torch.device) -> Tensor:
    """Factors: 0 with probability p, else 1 / (1 − p), in float32; the same for the same seed and device."""
    if device.type != "cpu":
        generator = torch.Generator(device).manual_seed(seed)
        return (torch.rand(shape, device=device, generator=generator) >= p) / (1 - p)
    kept, scale = _draw_lanes(shape, p, seed)
    return kept.to(torch.float32).mul_(scale)


INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}
"""The integer dtype of the same width."""


def keep_cells(
    shape: torch.Size, p: float, seed: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, float]:
    """The cells for `keep` that drop elements with probability p, and the factor 1 / (1 − p), left to the caller.

    On a CPU these are integers as wide as the dtype, with no bit set where an element is dropped, else every bit.
    """
    if device.type != "cpu":
        generator = torch.Generator(device).manual_seed(seed)
        return torch.rand(shape, device=device, generator=generator) >= p, 1 / (1 - p)
    kept, scale = _draw_lanes(shape, p, seed)
    return kept.neg_().to(INTEGERS[dtype]), scale


def keep(x: Tensor, cells: Tensor) -> Tensor:
    """The elements of x at these cells, and 0 elsewhere; without gradient."""
    return x * cells if cells.dtype == torch.bool else (x.view(cells.dtype) & cells).view(x.dtype)


def _draw_lanes(shape: torch.Size, p: float, seed: int) -> tuple[Tensor, float]:
    """Int16: 0 with probability p, else 1; and 1 / (1 − p) with the rounded p."""
    count = shape.numel()
    bits = np.random.Generator(np.random.SFC64(seed)).integers(0, 2**64, -(-count // 4), dtype=np.uint64)
    lanes = torch.from_numpy(bits).view(torch.int16)[:count].view(shape)
    dropped = min(round(p * 2**16), 2**16 - 1)
    if torch.compiler.is_compiling():  # a compiler loses track of an in-place comparison in a view
        return (lanes >= dropped - 2**15).to(torch.int16), 2**16 / (2**16 - dropped)
    # Comparing in place stays in int16 and is several times faster than making a bool tensor.
    return lanes.ge_(dropped - 2**15), 2**16 / (2**16 - dropped)


class _KeepBits(Function):
    """Dropout of a 16-bit dtype by its bits: no floating-point mask, and only the bits are saved for backward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, bits: Tensor, scale: float) -> Tensor:
        """Keep the elements where all bits are set, and scale them."""
        return (x.view(torch.int16) & bits).view(x.dtype).mul_(scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
        """Save the bits for the backward pass."""
        _, bits, ctx.scale = inputs
        ctx.save_for_backward(bits)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """The same for the gradient, which is differentiable again."""
        (bits,) = ctx.saved_tensors
        return _KeepBits.apply(gradient, bits, ctx.scale), None, None
