"""Attention in Triton: a pass by rows, over blocks of queries, and a pass by columns, over blocks of keys.

`rows` computes the output, and measures of rows while the softmax runs. `columns` computes sums over rows: it starts
from the maximum and the norm of each row, which `rows` leaves, so a weight is ``exp(score − maximum) * norm`` at once.
The maximum is subtracted before the scale is applied, so that large scores lose no digits.

Blocks that the mask forbids are skipped; it is evaluated only in those that it allows in part.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.ops.kernels.triton.rules import LOWEST_LOG, factor_of_row

LOG2E = tl.constexpr(1.4426950408889634)
SIZES = ("queries", "keys", "heads", "key_group", "value_group", "mask_args", "measure_args", "row_factors")


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
def head_base(tensor, strides, b, h):
    """Where the matrix of a head starts."""
    return tensor + b.to(tl.int64) * strides[0] + h.to(tl.int64) * strides[1]


@triton.jit
def rows_range(
    states, query, key, value, keys, k_stride, v_stride, log_scale, b, q, start, stop, mask_args, measure_args,
    MASK: tl.constexpr, MEASURES: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, V: tl.constexpr,
    V_PAD: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr, PARTIAL: tl.constexpr,
):  # fmt: skip
    """Goes through the keys from ``start`` to ``stop``."""
    maximum, total, output, measures = states
    for first in range(start, stop, KEYS):
        columns = first + tl.arange(0, KEYS)
        k = columns[None, :]
        key_tile = load_rows(key, columns, keys, k_stride, D, D_PAD, PARTIAL)
        x = tl.dot(query, key_tile.T, input_precision=PRECISION)
        if PARTIAL:
            x = tl.where(MASK[0](mask_args, b, q, k) & (k < stop), x, float("-inf"))
        highest = tl.maximum(maximum, tl.max(x, 1))
        new_maximum = tl.where(highest == float("-inf"), 0.0, highest)
        shift = tl.maximum((maximum - new_maximum) * log_scale, LOWEST_LOG)
        factor = tl.exp2(shift)
        log_p = (x - new_maximum[:, None]) * log_scale
        p = tl.exp2(log_p)
        new_measures = ()
        for i in tl.static_range(len(MEASURES)):
            rescaled = MEASURES[i][0](measures[i], shift, factor, total)
            new_measures = new_measures + (MEASURES[i][1](rescaled, p, log_p, measure_args[i], q, k, first),)
        measures = new_measures
        total = total * factor + tl.sum(p, 1)
        maximum = highest
        if V > 0:
            value_tile = load_rows(value, columns, keys, v_stride, V, V_PAD, PARTIAL)
            output = output * factor[:, None]
            output = tl.dot(p.to(value_tile.dtype), value_tile, output, input_precision=PRECISION)
    return maximum, total, output, measures


@triton.jit(do_not_specialize=SIZES)
def rows(
    query, key, value, output, results, queries, keys, heads, key_group, value_group, q_strides, k_strides, v_strides,
    scale, mask_args, measure_args,
    MASK: tl.constexpr, HAS_START: tl.constexpr, MEASURES: tl.constexpr, NEGATE: tl.constexpr, D: tl.constexpr,
    D_PAD: tl.constexpr, V: tl.constexpr, V_PAD: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A block of queries: output, if there is a value (V > 0), and measures of rows."""
    blocks = tl.cdiv(queries, QUERIES)
    matrix = tl.program_id(0) // blocks
    first = (blocks - 1 - tl.program_id(0) % blocks) * QUERIES  # causal: the longest rows first
    b, h = matrix // heads, matrix % heads
    at = first + tl.arange(0, QUERIES)
    q = at[:, None]
    query_tile = load_rows(head_base(query, q_strides, b, h), at, queries, q_strides[2], D, D_PAD, True)
    if NEGATE:
        query_tile = -query_tile
    key = head_base(key, k_strides, b, h // key_group)
    if V > 0:
        value = head_base(value, v_strides, b, h // value_group)
    last = tl.minimum(first + QUERIES, queries) - 1
    start, full_start, full_stop, stop = MASK[1](mask_args, b, first, last, keys, queries)
    start = start // KEYS * KEYS
    full_start = tl.cdiv(full_start, KEYS) * KEYS
    full_stop = full_stop // KEYS * KEYS
    nothing_full = full_start >= full_stop
    full_start = tl.where(nothing_full, start, full_start)
    full_stop = tl.where(nothing_full, start, full_stop)
    zeros = tl.zeros([QUERIES], tl.float32)
    measures = ()
    for _ in tl.static_range(len(MEASURES)):
        measures = measures + (zeros,)
    product = zeros
    if V > 0:
        product = tl.zeros([QUERIES, V_PAD], tl.float32)
    log_scale = scale * LOG2E
    states = (zeros + float("-inf"), zeros, product, measures)
    if HAS_START:
        states = rows_range(
            states, query_tile, key, value, keys, k_strides[2], v_strides[2], log_scale, b, q, start, full_start,
            mask_args, measure_args, MASK, MEASURES, D, D_PAD, V, V_PAD, KEYS, PRECISION, True,
        )  # fmt: skip
    states = rows_range(
        states, query_tile, key, value, keys, k_strides[2], v_strides[2], log_scale, b, q, full_start, full_stop,
        mask_args, measure_args, MASK, MEASURES, D, D_PAD, V, V_PAD, KEYS, PRECISION, False,
    )  # fmt: skip
    states = rows_range(
        states, query_tile, key, value, keys, k_strides[2], v_strides[2], log_scale, b, q, full_stop, stop,
        mask_args, measure_args, MASK, MEASURES, D, D_PAD, V, V_PAD, KEYS, PRECISION, True,
    )  # fmt: skip
    maximum, total, product, measures = states
    maximum = tl.where(total == 0, 0.0, maximum)
    norm = tl.where(total == 0, 0.0, 1 / total)
    inside = at < queries
    place = matrix.to(tl.int64) * queries + at
    if V > 0:
        wide = tl.arange(0, V_PAD)[None, :]
        pointers = output + place[:, None] * V + wide
        tl.store(pointers, (product * norm[:, None]).to(output.dtype.element_ty), mask=inside[:, None] & (wide < V))
    for i in tl.static_range(len(MEASURES)):
        tl.store(results[i] + place, MEASURES[i][2](measures[i], maximum, scale, total, norm), mask=inside)


@triton.jit
def columns_range(
    sums, key, query, maximum, norm, queries, q_stride, log_scale, b, h, k, start, stop, mask_args, row_factors,
    MASK: tl.constexpr, SUMS: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, QUERIES: tl.constexpr,
    PRECISION: tl.constexpr, PARTIAL: tl.constexpr,
):  # fmt: skip
    """Goes through the queries from ``start`` to ``stop``. Those past the end have weights of 0."""
    for first in range(start, stop, QUERIES):
        rows = first + tl.arange(0, QUERIES)
        inside = rows < queries
        query_tile = load_rows(query, rows, queries, q_stride, D, D_PAD, True)
        x = tl.dot(key, query_tile.T, input_precision=PRECISION)
        highest = tl.load(maximum + rows, mask=inside, other=0.0)
        p = tl.exp2((x - highest[None, :]) * log_scale) * tl.load(norm + rows, mask=inside, other=0.0)[None, :]
        if PARTIAL:
            p = tl.where(MASK[0](mask_args, b, rows[None, :], k) & inside[None, :], p, 0.0)
        new_sums = ()
        for i in tl.static_range(SUMS):
            if len(row_factors[i]) == 0:
                new_sums = new_sums + (sums[i] + tl.sum(p, 1),)
            else:
                factor = factor_of_row(row_factors[i], b, h, rows, inside)
                new_sums = new_sums + (sums[i] + tl.sum(p * factor[None, :], 1),)
        sums = new_sums
    return sums


@triton.jit(do_not_specialize=SIZES)
def columns(
    query, key, maximum, norm, results, queries, keys, heads, key_group, q_strides, k_strides, scale, mask_args,
    row_factors,
    MASK: tl.constexpr, SUMS: tl.constexpr, NEGATE: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A block of keys: sums over rows. Works on the transposed tile, so that a sum is within a warp."""
    blocks = tl.cdiv(keys, KEYS)
    matrix = tl.program_id(0) // blocks
    first = tl.program_id(0) % blocks * KEYS
    b, h = matrix // heads, matrix % heads
    at = first + tl.arange(0, KEYS)
    k = at[:, None]
    key_tile = load_rows(head_base(key, k_strides, b, h // key_group), at, keys, k_strides[2], D, D_PAD, True)
    if NEGATE:
        key_tile = -key_tile
    query = head_base(query, q_strides, b, h)
    maximum += matrix.to(tl.int64) * queries
    norm += matrix.to(tl.int64) * queries
    last = tl.minimum(first + KEYS, keys) - 1
    start, full_start, full_stop, stop = MASK[2](mask_args, b, first, last, queries, keys)
    start = start // QUERIES * QUERIES
    full_start = tl.cdiv(full_start, QUERIES) * QUERIES
    full_stop = tl.where(full_stop == queries, queries, full_stop // QUERIES * QUERIES)
    nothing_full = full_start >= full_stop
    full_start = tl.where(nothing_full, start, full_start)
    full_stop = tl.where(nothing_full, start, full_stop)
    log_scale = scale * LOG2E
    sums = ()
    for _ in tl.static_range(SUMS):
        sums = sums + (tl.zeros([KEYS], tl.float32),)
    sums = columns_range(
        sums, key_tile, query, maximum, norm, queries, q_strides[2], log_scale, b, h, k, start, full_start, mask_args,
        row_factors, MASK, SUMS, D, D_PAD, QUERIES, PRECISION, True,
    )  # fmt: skip
    sums = columns_range(
        sums, key_tile, query, maximum, norm, queries, q_strides[2], log_scale, b, h, k, full_start, full_stop,
        mask_args, row_factors, MASK, SUMS, D, D_PAD, QUERIES, PRECISION, False,
    )  # fmt: skip
    sums = columns_range(
        sums, key_tile, query, maximum, norm, queries, q_strides[2], log_scale, b, h, k, full_stop, stop, mask_args,
        row_factors, MASK, SUMS, D, D_PAD, QUERIES, PRECISION, True,
    )  # fmt: skip
    place = matrix.to(tl.int64) * keys + at
    for i in tl.static_range(SUMS):
        tl.store(results[i] + place, sums[i], mask=at < keys)
