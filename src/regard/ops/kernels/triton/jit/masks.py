"""Masks: a few lines for each kind of step, and the ranges of keys and queries that simple masks allow.

A step is ``f(args, left, right, at)``, which cells are allowed; ``left`` and ``right`` are what earlier steps gave,
as far as it combines them. `allowed` evaluates a mask, a tuple of ``(step, number of left, number of right)``.

A range is ``f(args, head, first, last, others, block)``: of the rows from ``first`` to ``last`` the keys, or of such
keys the rows, of which there are ``others``; ``(start, full start, full stop, stop)``: nothing outside is allowed,
and between the full bounds everything is. ``head`` are batch entry, head, and the batch entry that the rules were
made for. `ranges` intersects the ranges of several steps.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.ops.kernels.triton.jit.tiles import clip, of_cell, of_key, of_row

MAX_INT = tl.constexpr(2**31 - 1)


@triton.jit
def allowed(MASK: tl.constexpr, args, at):
    found = (at[4] >= 0,)
    for i in tl.static_range(len(MASK)):
        found = found + (MASK[i][0](args[i], found[MASK[i][1]], found[MASK[i][2]], at),)
    return found[len(MASK)]


@triton.jit
def window(args, left, right, at):
    """Keys from place + args[0] to place + args[1]."""
    return (at[4] >= at[3] + args[0]) & (at[4] <= at[3] + args[1])


@triton.jit
def before(args, left, right, at):
    """Keys before a number of each row."""
    return at[4] < clip(of_row(args[0], at), 0, MAX_INT).to(tl.int32)


@triton.jit
def between(args, left, right, at):
    return (at[4] >= clip(of_row(args[1], at), 0, MAX_INT).to(tl.int32)) & before(args, left, right, at)


@triton.jit
def same_document(args, left, right, at):
    return of_row(args[0], at) == of_key(args[1], at)


@triton.jit
def dense(args, left, right, at):
    return of_cell(args[0], at) != 0


@triton.jit
def dense_of_rows(args, left, right, at):
    """The same for all keys."""
    return (of_row(args[0], at) != 0) & (at[4] >= 0)


@triton.jit
def dense_of_keys(args, left, right, at):
    """The same for all rows."""
    return of_key(args[0], at) != 0


@triton.jit
def both(args, left, right, at):
    return left & right


@triton.jit
def either(args, left, right, at):
    return left | right


@triton.jit
def neither(args, left, right, at):
    return left == 0


@triton.jit
def ranges(RANGES: tl.constexpr, args, head, first, last, others, block):
    """The intersection of ranges; that of a table is alone."""
    start, full_start, full_stop, stop = 0, 0, others, others
    for i in tl.static_range(len(RANGES)):
        low, full_low, full_high, high = RANGES[i](args[i], head, first, last, others, block)
        start, full_start = tl.maximum(start, low), tl.maximum(full_start, full_low)
        full_stop, stop = tl.minimum(full_stop, full_high), tl.minimum(stop, high)
    return start, full_start, full_stop, tl.maximum(stop, start)


@triton.jit
def in_blocks(start, full_start, full_stop, end, SIZE: tl.constexpr):
    """Bounds at multiples of a block's size; full blocks may also stop at ``end``. Without any, both are ``start``."""
    start = start // SIZE * SIZE
    full_start = tl.cdiv(full_start, SIZE) * SIZE
    full_stop = tl.where(full_stop == end, end, full_stop // SIZE * SIZE)
    nothing_full = full_start >= full_stop
    return start, tl.where(nothing_full, start, full_start), tl.where(nothing_full, start, full_stop)


@triton.jit
def keys_in_window(args, head, first, last, keys, block):
    return (
        clip(first + args[0], 0, keys),
        clip(last + args[0], 0, keys),
        clip(first + args[1] + 1, 0, keys),
        clip(last + args[1] + 1, 0, keys),
    )


@triton.jit
def rows_in_window(args, head, first, last, rows, block):
    return (
        clip(first - args[1], 0, rows),
        clip(last - args[1], 0, rows),
        clip(first - args[0] + 1, 0, rows),
        clip(last - args[0] + 1, 0, rows),
    )


@triton.jit
def keys_before(args, head, first, last, keys, block):
    """Of a number for each batch entry."""
    length = clip(tl.load(args[0][0] + head[2].to(tl.int64) * args[0][1][0]), 0, keys).to(tl.int32)
    return 0, 0, length, length


@triton.jit
def rows_before(args, head, first, last, rows, block):
    length = clip(tl.load(args[0][0] + head[2].to(tl.int64) * args[0][1][0]), 0, MAX_INT).to(tl.int32)
    return tl.where(first < length, 0, rows), tl.where(last < length, 0, rows), rows, rows


@triton.jit
def in_table(args, head, first, last, others, block):
    """From a table (batch, heads, blocks, 4) of int32, strides 0 where it is broadcast."""
    entry = args[0] + head[0].to(tl.int64) * args[1][0] + head[1].to(tl.int64) * args[1][1] + block * 4
    return tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)


STEPS = {
    "window": window,
    "before": before,
    "between": between,
    "same_document": same_document,
    "dense": dense,
    "dense_of_rows": dense_of_rows,
    "dense_of_keys": dense_of_keys,
    "and": both,
    "or": either,
    "not": neither,
}
KEY_RANGES = {"window": keys_in_window, "before": keys_before, "table": in_table}
ROW_RANGES = {"window": rows_in_window, "before": rows_before, "table": in_table}
