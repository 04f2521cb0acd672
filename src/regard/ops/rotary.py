"""Rotary position embeddings: queries and keys are rotated by their positions before they are compared."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.checks import Checks


def rotary(
    x: Float[Tensor, "batch heads tokens head_dim"],
    positions: Int[Tensor, " tokens"] | Int[Tensor, "batch tokens"] | None = None,
    *,
    base: float = 10000.0,
    rotary_dim: int | None = None,
    interleaved: bool = False,
) -> Float[Tensor, "batch heads tokens head_dim"]:
    """Rotate pairs of entries by angles that grow with the position: pair m by position * base^(−2m / rotary_dim).

    The product of a rotated query and a rotated key depends on their distance only.

    Args:
        x: (batch, heads, tokens, head_dim), queries or keys.
        positions: (tokens,) or (batch, tokens) integers. Default: 0, 1, 2, ... With a cache, where the queries are the
            last tokens, pass ``torch.arange(start, stop)``.
        base: The slowest pair has a period of nearly 2π * base.
        rotary_dim: Number of entries that are rotated, from the first, even. Default: all.
        interleaved: Whether pairs are neighbors, (0, 1), (2, 3), ..., as in the paper and GPT-J. Default: halves, (0,
            rotary_dim / 2), (1, rotary_dim / 2 + 1), ..., as in GPT-NeoX and Llama.

    Returns:
        The shape and dtype of x; angles are computed in float32 (float64 for float64).

    Raises:
        InvalidArgument: If rotary_dim is not an even number from 2 to head_dim, base is not above 0, or the shape of
            positions does not fit.
        InvalidType: If x is not a floating-point tensor, positions are not integers, or base is not a number.

    Reference:
        Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", equations 15 and 34.

    Examples:
        >>> import regard, torch
        >>> query, key = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64).unbind()
        >>> at = torch.tensor([[0], [3], [5], [8]])
        >>> one = regard.rotary(query, at[0]) @ regard.rotary(key, at[1]).mT
        >>> other = regard.rotary(query, at[2]) @ regard.rotary(key, at[3]).mT
        >>> torch.allclose(one, other)
        True
    """
    _check(x, positions, base, rotary_dim)
    rotary_dim = x.shape[-1] if rotary_dim is None else rotary_dim
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    if positions is None:
        positions = torch.arange(x.shape[2], device=x.device)
    frequencies = float(base) ** (-torch.arange(0, rotary_dim, 2, dtype=dtype, device=x.device) / rotary_dim)
    angles = (positions[..., None] * frequencies).unsqueeze(-3)  # (batch or none, 1, tokens, rotary_dim / 2)
    return rotate(x, angles.cos(), angles.sin(), interleaved=interleaved)


def rotate(
    x: Float[Tensor, "batch heads tokens head_dim"],
    cos: Float[Tensor, "*axes tokens pairs"],
    sin: Float[Tensor, "*axes tokens pairs"],
    *,
    interleaved: bool = False,
) -> Float[Tensor, "batch heads tokens head_dim"]:
    """Rotate the first 2 * pairs entries of x by angles with these cosines and sines; see `rotary`."""
    rotary_dim = 2 * cos.shape[-1]
    rotated, rest = x[..., :rotary_dim].to(cos.dtype), x[..., rotary_dim:]
    if interleaved:
        first, second = rotated[..., 0::2], rotated[..., 1::2]
    else:
        first, second = rotated.chunk(2, -1)
    pairs = first * cos - second * sin, first * sin + second * cos
    rotated = (torch.stack(pairs, -1).flatten(-2) if interleaved else torch.cat(pairs, -1)).to(x.dtype)
    return torch.cat((rotated, rest), -1) if rest.shape[-1] else rotated


def _check(x: Tensor, positions: Tensor | None, base: float, rotary_dim: int | None) -> None:
    checks = Checks()
    if checks.tensor("x", x, "floating-point"):
        if x.ndim != 4:
            checks.fail(f"x: expected shape (batch, heads, tokens, head_dim), got {tuple(x.shape)}")
        else:
            batch, _, tokens, head_dim = x.shape
            if checks.integer("rotary_dim", rotary_dim, low=2, below=head_dim + 1, optional=True):
                number = head_dim if rotary_dim is None else rotary_dim
                checks.that(number % 2 == 0, f"rotary_dim: expected an even number, got {number}")
            if positions is not None:
                shapes = {"(tokens,)": (tokens,), "(batch, tokens)": (batch, tokens), "(1, tokens)": (1, tokens)}
                checks.tensor("positions", positions, "integer", shapes=shapes)
    checks.number("base", base, above=0)
    checks.raise_problems()
