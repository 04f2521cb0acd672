"""Dropout: of activations with random numbers that are cheap on a CPU, of weights by a hash of their indices."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.checks import Checks
from regard.errors import InvalidArgument
from regard.ops.autograd import AutogradFunction, is_traced
from regard.ops.tile import Index, Shape


def dropout(x: Float[Tensor, "*axes"], p: float, training: bool = True) -> Float[Tensor, "*axes"]:
    """Set each element to 0 with probability p and divide the others by 1 − p.

    On a CPU, torch draws a Mersenne Twister number per element, which takes a quarter of a small model's training step.
    Here an element takes 16 bits of a stream of 64-bit numbers (NumPy's SFC64), seeded from torch's default generator,
    so `torch.manual_seed` makes it reproducible. p is rounded to a multiple of 2⁻¹⁶, and the kept elements are divided
    by the rounded probability of being kept. On other devices, and in traced code, which must draw other numbers in
    each run, this is `torch.nn.functional.dropout`.

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
    if x.device.type != "cpu" or is_traced():
        return torch.nn.functional.dropout(x, p)
    seed = int(draw_seed())
    kept, scale = _draw_lanes(x.shape, p, seed)
    if x.element_size() == 2:
        return _KeepBits.apply(x, kept.neg_(), scale)
    return x * kept.to(torch.float32).mul_(scale).to(x.dtype)


def draw_seed(device: str | torch.device = "cpu") -> Int[Tensor, ""]:
    """A seed below 2⁶² from torch's generator for a device, or for the CPU where that is not CUDA.

    A CUDA graph that draws it on the GPU drops other weights in each run.

    Raises:
        InvalidArgument: Under `torch.vmap` with ``randomness="different"``.
    """
    own = torch.device(device)
    seed = torch.randint(2**62, (), device=own if own.type in ("cuda", "meta") else "cpu")
    if torch._C._functorch.is_batchedtensor(seed):  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage]
        raise InvalidArgument("dropout: expected torch.vmap with randomness='same', got 'different'")
    return seed


def dropped_weights(
    p: float,
    seed: Int[Tensor, ""],
    shape: Shape,
    batch: slice,
    heads: slice,
    rows: Index,
    keys: Int[Tensor, "*rows keys"],
) -> tuple[Bool[Tensor, "batch heads rows keys"], float]:
    """Which weights dropout sets to 0, and the factor of the others, 1 / (1 − p).

    A weight is dropped if a hash of the seed and of its indices in the matrix, a number of 32 bits, is below p · 2³².
    So every kernel drops the same weights, forward and backward, however it cuts the matrix. csrc/dropout.h has the
    same hash: SplitMix64's output function (Steele, Lea, Flood 2014) for a row, Wellons' lowbias32 (2018) for a key.

    Args:
        p: Probability of dropping a weight, rounded down to a multiple of 2⁻³².
        seed: Of `draw_seed`.
        shape: (batch, heads, queries, keys) of the matrix.
        batch: Batch entries.
        heads: Heads.
        rows: Queries.
        keys: (keys,) The keys of all rows; (rows, keys) where each row has its own.
    """
    device = keys.device
    b, h = (torch.arange(part.start, part.stop, device=device) for part in (batch, heads))
    i = torch.arange(rows.start, rows.stop, device=device) if isinstance(rows, slice) else rows
    number = (b[:, None, None] * shape[1] + h[:, None]) * shape[2] + i
    key = _mix(seed + (number + 1) * _signed(0x9E3779B97F4A7C15, 64))
    low, high = key.to(torch.int32)[..., None], (key >> 32).to(torch.int32)[..., None]
    x = keys.to(torch.int32) * _signed(0x9E3779B9, 32) + low  # sums and products wrap around, as those of csrc do
    x ^= (x >> 16) & 0xFFFF  # a shift that fills with zeros
    x *= _signed(0x7FEB352D, 32)
    x ^= high ^ ((x >> 15) & 0x1FFFF)
    x *= _signed(0x846CA68B, 32)
    x ^= (x >> 16) & 0xFFFF
    threshold = dropout_threshold(p)
    return (x ^ -(2**31)) < threshold - 2**31, 2**32 / (2**32 - threshold)  # comparing as numbers without a sign


def dropout_threshold(p: float) -> int:
    """Of 2³² hashes, those below this one drop a weight."""
    return int(p * 2**32)


def _mix(x: Int[Tensor, "*axes"]) -> Int[Tensor, "*axes"]:
    x = (x ^ (x >> 30) & (2**34 - 1)) * _signed(0xBF58476D1CE4E5B9, 64)
    x = (x ^ (x >> 27) & (2**37 - 1)) * _signed(0x94D049BB133111EB, 64)
    return x ^ (x >> 31) & (2**33 - 1)


def _signed(number: int, bits: int) -> int:
    """The number that has the same bits in two's complement."""
    return number - 2**bits if number >> (bits - 1) else number


def _draw_lanes(shape: torch.Size, p: float, seed: int) -> tuple[Tensor, float]:
    """Int16: 0 with probability p, else 1; and 1 / (1 − p) with the rounded p."""
    count = shape.numel()
    bits = np.random.Generator(np.random.SFC64(seed)).integers(0, 2**64, -(-count // 4), dtype=np.uint64)
    lanes = torch.from_numpy(bits).view(torch.int16)[:count].view(shape)
    dropped = min(round(p * 2**16), 2**16 - 1)
    # Comparing in place stays in int16 and is several times faster than making a bool tensor.
    return lanes.ge_(dropped - 2**15), 2**16 / (2**16 - dropped)


class _KeepBits(AutogradFunction):
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
