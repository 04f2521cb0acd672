"""Loads and stores of tiles, and where the matrix of a head starts."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
LOWEST_LOG = tl.constexpr(-1e4)  # a weight is 0 there; 0 · log of it must not be NaN


@triton.jit
def load_rows(base, rows, n, stride, D: tl.constexpr, D_PAD: tl.constexpr, CHECK: tl.constexpr):
    """Rows of a matrix, (rows, D_PAD), zero outside of it."""
    columns = tl.arange(0, D_PAD)
    pointers = base + rows.to(tl.int64)[:, None] * stride + columns[None, :]
    if CHECK and D != D_PAD:
        return tl.load(pointers, mask=(rows[:, None] < n) & (columns[None, :] < D), other=0.0)
    if CHECK:
        return tl.load(pointers, mask=rows[:, None] < n, other=0.0)
    if D != D_PAD:
        return tl.load(pointers, mask=columns[None, :] < D, other=0.0)
    return tl.load(pointers)


@triton.jit
def store_rows(base, rows, n, tile, D: tl.constexpr, D_PAD: tl.constexpr):
    """The rows of a tile into a contiguous matrix of n rows."""
    columns = tl.arange(0, D_PAD)
    pointers = base + rows.to(tl.int64)[:, None] * D + columns[None, :]
    tl.store(pointers, tile.to(base.dtype.element_ty), mask=(rows[:, None] < n) & (columns[None, :] < D))


@triton.jit
def head_base(tensor, strides, b, h):
    """Where the matrix of a head starts."""
    return tensor + b.to(tl.int64) * strides[0] + h.to(tl.int64) * strides[1]


@triton.jit
def head_pointer(tensor, at):
    """Where a head starts in ``tensor = (pointer, strides)``."""
    return tensor[0] + at[0].to(tl.int64) * tensor[1][0] + at[1].to(tl.int64) * tensor[1][1]


@triton.jit
def of_row(tensor, at):
    """The numbers of the rows in a tensor (batch, heads, queries, 1); strides are 0 where it is broadcast."""
    return tl.load(head_pointer(tensor, at) + at[2].to(tl.int64) * tensor[1][2])


@triton.jit
def of_key(tensor, at):
    """The numbers of the keys in a tensor (batch, heads, 1, keys), adjacent ones next to each other."""
    return tl.load(head_pointer(tensor, at) + at[4])


@triton.jit
def of_cell(tensor, at):
    """The numbers of the cells in a tensor (batch, heads, queries, keys), adjacent keys next to each other."""
    return tl.load(head_pointer(tensor, at) + at[2].to(tl.int64) * tensor[1][2] + at[4])


@triton.jit
def of_column(tensor, column, at):
    """A number of each row, in the column of a tensor (batch, heads, queries, columns) that is adjacent."""
    return tl.load(head_pointer(tensor, at) + at[2].to(tl.int64) * tensor[1][2] + column)


@triton.jit
def of_key_column(tensor, column, at):
    """The same for keys, in a tensor (batch, heads, keys, columns)."""
    return tl.load(head_pointer(tensor, at) + at[4].to(tl.int64) * tensor[1][2] + column)


@triton.jit
def clip(index, low, high):
    return tl.minimum(tl.maximum(index, low), high)


@triton.jit
def in_rules(selection, SELECTED: tl.constexpr, b, h, rows):
    """The batch entry and head that rules were made for, and the places of rows."""
    if SELECTED:
        b, h = tl.load(selection[0] + b).to(tl.int32), tl.load(selection[1] + h).to(tl.int32)
        rows = tl.load(selection[2] + rows).to(tl.int32)
    return b, h, rows


@triton.jit
def row_hash(seed, number):
    """Of dropout, two numbers of 32 bits for each row, from its number in (batch, heads, queries)."""
    x = tl.load(seed).to(tl.uint64) + (number.to(tl.uint64) + 1) * 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    x = x ^ (x >> 31)
    return (x & 0xFFFFFFFF).to(tl.uint32), (x >> 32).to(tl.uint32)


@triton.jit
def is_kept(low, high, k, threshold):
    """Which weights dropout keeps: the hash of `regard.ops.dropout.dropped_weights`."""
    x = k.to(tl.uint32) * 0x9E3779B9 + low
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ high ^ (x >> 15)) * 0x846CA68B
    return (x ^ (x >> 16)) >= tl.cast(threshold, tl.uint32)  # which the compiler knows where it is 1
