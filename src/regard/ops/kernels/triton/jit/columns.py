"""Measures of columns: a few lines for each kind of step.

A measure is ``(start, add, finish)`` and starts from the log-sum-exp of each row. Tiles are transposed, (keys,
queries), and a program has all queries of its keys. ``finish(state, EXTRA, results, place, keys)`` stores the
results; ``place`` is the index of the keys in (batch, heads, keys). A gradient adds to ``a`` what the measure sends
to each weight.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.ops.kernels.triton.jit.tiles import head_pointer, of_key, of_row


@triton.jit
def start_received(EXTRA: tl.constexpr, KEYS: tl.constexpr):
    return tl.zeros([KEYS], tl.float32)


@triton.jit
def add_received(state, p, args, EXTRA: tl.constexpr, at):
    return state + tl.sum(p, 1)


@triton.jit
def add_weighted(state, p, args, EXTRA: tl.constexpr, at):
    """Σ p times the weight of each row, args[0]."""
    return state + tl.sum(p * of_row(args[0], at).to(tl.float32), 1)


@triton.jit
def finish_received(state, args, EXTRA: tl.constexpr, results, place, inside):
    tl.store(results[0] + place, state, mask=inside)


@triton.jit
def start_product(EXTRA: tl.constexpr, KEYS: tl.constexpr):
    """EXTRA: columns from one on, how many, the next power of two of that, precision."""
    return tl.zeros([KEYS, EXTRA[2]], tl.float32)


@triton.jit
def add_product(state, p, args, EXTRA: tl.constexpr, at):
    columns = tl.arange(0, EXTRA[2])[None, :]
    rows = tl.trans(at[2]).to(tl.int64)
    pointers = head_pointer(args[0], at) + rows * args[0][1][2] + EXTRA[0] + columns
    y = tl.load(pointers, mask=columns < EXTRA[1], other=0.0)
    return tl.dot(p.to(y.dtype), y, state, input_precision=EXTRA[3])


@triton.jit
def finish_product(state, args, EXTRA: tl.constexpr, results, place, inside):
    """args[1]: all columns."""
    columns = tl.arange(0, EXTRA[2])[None, :]
    pointers = results[0] + place[:, None] * args[1] + EXTRA[0] + columns
    tl.store(pointers, state, mask=inside[:, None] & (columns < EXTRA[1]))


@triton.jit
def start_histogram(EXTRA: tl.constexpr, KEYS: tl.constexpr):
    return tl.zeros([KEYS], tl.float32), tl.zeros([KEYS], tl.float32)


@triton.jit
def add_histogram(state, p, args, EXTRA: tl.constexpr, at):
    """Into args[0], the cells at distances below args[2]; args[1] is subtracted from key − place."""
    distance, reach = at[4] - at[3] - args[1], args[2]
    pointers = head_pointer(args[0], at) + at[4].to(tl.int64) * args[0][1][2] + distance + reach
    tl.store(pointers, p, mask=at[5] & (distance > -reach) & (distance < reach))
    is_before = (distance <= -reach) & (reach > 0)  # with a reach of 0, all cells are in one bin
    is_after = (distance >= reach) | (reach == 0)
    return state[0] + tl.sum(tl.where(is_before, p, 0.0), 1), state[1] + tl.sum(tl.where(is_after, p, 0.0), 1)


@triton.jit
def finish_histogram(state, args, EXTRA: tl.constexpr, results, place, inside):
    first = results[0] + place.to(tl.int64) * (2 * args[2] + 1)
    tl.store(first, state[0], mask=inside & (args[2] > 0))
    tl.store(first + 2 * args[2], state[1], mask=inside)


@triton.jit
def received_gradient(a, p, log_p, args, EXTRA: tl.constexpr, at):
    return a + of_key(args[0], at)


@triton.jit
def weighted_gradient(a, p, log_p, args, EXTRA: tl.constexpr, at):
    return a + of_row(args[1], at).to(tl.float32) * of_key(args[0], at)


@triton.jit
def pooled_gradient(a, p, log_p, args, EXTRA: tl.constexpr, at):
    """A number for the groups of row and key, args[1] and args[2], which are negative for none."""
    row_group, key_group = of_row(args[1], at), of_key(args[2], at)
    inside = (row_group >= 0) & (key_group >= 0)
    pointers = head_pointer(args[0], at) + row_group * args[0][1][2] + key_group
    return a + tl.load(pointers, mask=inside, other=0.0)


KINDS = {
    "received": (start_received, add_received, finish_received),
    "weighted": (start_received, add_weighted, finish_received),
    "histogram": (start_histogram, add_histogram, finish_histogram),
    "transposed": (start_product, add_product, finish_product),
}
GRADIENTS = {
    "received": received_gradient,
    "weighted": weighted_gradient,
    "pooled": pooled_gradient,
}
