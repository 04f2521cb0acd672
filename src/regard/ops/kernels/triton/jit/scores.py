"""Scores: a few lines for each kind of step after the dot product.

A step is ``f(x, slope, args, at, own)``: it returns the score ``x``, in units of log 2, and by how much that changes
with the dot product, ``slope``. ``at`` are the indices that the step's tensors were made for, ``own`` those of the
matrix.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.ops.kernels.triton.jit.tiles import (
    LOG2E,
    clip,
    head_pointer,
    of_cell,
    of_column,
    of_key,
    of_key_column,
    of_row,
)


@triton.jit
def scores_of(product, log_scale, SCORE: tl.constexpr, args, at, own):
    """Scores and their slopes; without steps, the dot product is not scaled."""
    slope = 1.0
    if len(SCORE) > 0:
        product = product * log_scale
    for i in tl.static_range(len(SCORE)):
        product, slope = SCORE[i](product, slope, args[i], at, own)
    return product, slope


@triton.jit
def scale_only(x, slope, args, at, own):
    """For a scale that is not positive, which the softmax could not apply after the maximum."""
    return x, slope


@triton.jit
def add_bias(x, slope, args, at, own):
    return x + of_cell(args[0], at).to(tl.float32) * LOG2E, slope


@triton.jit
def add_bias_of_rows(x, slope, args, at, own):
    """The same for all keys."""
    return x + of_row(args[0], at).to(tl.float32) * LOG2E, slope


@triton.jit
def add_bias_of_keys(x, slope, args, at, own):
    """The same for all rows."""
    return x + of_key(args[0], at).to(tl.float32) * LOG2E, slope


@triton.jit
def add_distances(x, slope, args, at, own):
    """A number for each distance; args[1] is added to key − place."""
    return x + tl.load(head_pointer(args[0], at) + (at[4] - at[3] + args[1])) * LOG2E, slope


@triton.jit
def add_relative_key(x, slope, args, at, own):
    """A number for each row and distance, which is clipped to ± args[2]; args[1] is subtracted from key − place."""
    distance = clip(at[4] - at[3] - args[1], -args[2], args[2]) + args[2]
    return x + of_column(args[0], distance, own) * LOG2E, slope


@triton.jit
def add_relative_query(x, slope, args, at, own):
    """A number for each key and distance, as above."""
    distance = clip(at[4] - at[3] - args[1], -args[2], args[2]) + args[2]
    return x + of_key_column(args[0], distance, own) * LOG2E, slope


@triton.jit
def soft_cap(x, slope, args, at, own):
    """Cap · tanh(x / cap); of small numbers, by a polynomial that keeps their digits."""
    z = x * args[1]
    square = z * z
    small = z * (
        1.0 + square * (-0.3333333333 + square * (0.1333333333 + square * (-0.0539682540 + square * 0.0218694885)))
    )
    e = tl.exp2(tl.abs(z) * (-2.0 * LOG2E))
    large = (1.0 - e) / (1.0 + e)
    t = tl.where(square < 0.09, small, tl.where(z < 0, -large, large))
    t = tl.where(z == z, t, z)
    return t * args[0], 1.0 - t * t


STEPS = {
    "scale_only": scale_only,
    "add_bias": add_bias,
    "add_bias_of_rows": add_bias_of_rows,
    "add_bias_of_keys": add_bias_of_keys,
    "add_distances": add_distances,
    "add_relative_key": add_relative_key,
    "add_relative_query": add_relative_query,
    "soft_cap": soft_cap,
}
