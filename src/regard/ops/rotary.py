"""Rotary positions: queries and keys are turned by their positions before they are compared."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import InvalidArgument, InvalidType, raise_problems


def rotary(
    x: Float[Tensor, "batch heads tokens head_dim"],
    positions: Int[Tensor, " tokens"] | Int[Tensor, "batch tokens"] | None = None,
    *,
    base: float = 10000.0,
    dims: int | None = None,
    interleaved: bool = False,
) -> Float[Tensor, "batch heads tokens head_dim"]:
    """Turn pairs of entries by angles that grow with the position: the pair m by position · base^(−2m / dims).

    The product of a query and a key that were both turned depends on their distance alone.

    Args:
        x: (batch, heads, tokens, head_dim), queries or keys.
        positions: (tokens,) or (batch, tokens) integers; None is 0, 1, 2, ... With a cache, where the queries are the
            last tokens, give ``torch.arange(start, stop)``.
        base: The period of the slowest pair is nearly 2π · base.
        dims: How many of the first entries are turned, an even number; None is all.
        interleaved: Pairs are neighbours, (0, 1), (2, 3), ..., as in the paper and GPT-J; else halves, (0, dims / 2),
            (1, dims / 2 + 1), ..., as in GPT-NeoX and Llama.

    Returns:
        The shape and dtype of x; the angles are in float32 (float64 for float64).

    Raises:
        InvalidArgument: If dims is no even number from 2 to head_dim, base is not above 0, or positions do not fit.
        InvalidType: If x is no floating-point tensor, or positions are no integers.

    Reference: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", equations 15 and 34.

    Example:
        >>> import regard, torch
        >>> query, key = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64).unbind()
        >>> at = torch.tensor([[0], [3], [5], [8]])
        >>> one = regard.rotary(query, at[0]) @ regard.rotary(key, at[1]).mT
        >>> other = regard.rotary(query, at[2]) @ regard.rotary(key, at[3]).mT
        >>> torch.allclose(one, other)
        True
    """
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise InvalidType(f"x: expected a floating-point tensor, got {x.dtype if isinstance(x, Tensor) else type(x)}")
    if positions is not None and (
        not isinstance(positions, Tensor) or positions.is_floating_point() or positions.dtype == torch.bool
    ):
        came = positions.dtype if isinstance(positions, Tensor) else type(positions).__name__
        raise InvalidType(f"positions: expected a tensor of integers, got {came}")
    raise_problems(_objections(x, positions, base, dims), InvalidArgument)
    dims = x.shape[-1] if dims is None else dims
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    if positions is None:
        positions = torch.arange(x.shape[2], device=x.device)
    speeds = base ** (-torch.arange(0, dims, 2, dtype=dtype, device=x.device) / dims)
    angles = (positions[..., None] * speeds).unsqueeze(-3)  # (batch or none, 1, tokens, dims / 2)
    return turned(x, angles.cos(), angles.sin(), interleaved=interleaved)


def turned(
    x: Float[Tensor, "batch heads tokens head_dim"],
    cos: Float[Tensor, "*axes tokens pairs"],
    sin: Float[Tensor, "*axes tokens pairs"],
    *,
    interleaved: bool = False,
) -> Float[Tensor, "batch heads tokens head_dim"]:
    """Turn the first 2 · pairs entries of x by angles of which cosine and sine are given; see `rotary`."""
    dims = 2 * cos.shape[-1]
    moved, rest = x[..., :dims].to(cos.dtype), x[..., dims:]
    if interleaved:
        one, other = moved[..., 0::2], moved[..., 1::2]
    else:
        one, other = moved.chunk(2, -1)
    pairs = one * cos - other * sin, one * sin + other * cos
    found = (torch.stack(pairs, -1).flatten(-2) if interleaved else torch.cat(pairs, -1)).to(x.dtype)
    return torch.cat((found, rest), -1) if rest.shape[-1] else found


def _objections(x: Tensor, positions: Tensor | None, base: float, dims: int | None) -> list[str]:
    if x.ndim != 4:
        return [f"x: expected four axes (batch, heads, tokens, head_dim), got {tuple(x.shape)}"]
    batch, _, tokens, head_dim = x.shape
    found = []
    turned = head_dim if dims is None else dims
    if isinstance(turned, bool) or not isinstance(turned, int) or not 2 <= turned <= head_dim or turned % 2:
        found.append(f"dims: expected an even number from 2 to head_dim = {head_dim}, got {turned!r}")
    if isinstance(base, bool) or not isinstance(base, (int, float)) or not 0 < base < float("inf"):
        found.append(f"base: expected a number above 0, got {base!r}")
    if positions is not None and tuple(positions.shape) not in ((tokens,), (1, tokens), (batch, tokens)):
        found.append(
            f"positions: expected (tokens,) = ({tokens},) or (batch, tokens) = ({batch}, {tokens}), "
            f"got {tuple(positions.shape)}"
        )
    return found
