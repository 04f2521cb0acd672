"""Gradients of biases, which are sums of the gradient of the scores that neither a row nor a column has.

`backward_bias` has a tile of a bias (batch or 1, heads or 1, queries, keys) in a program, which adds up the matrices
that share it; `backward_distances` some distances of a matrix, each of which is a diagonal. Both evaluate the mask
everywhere.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.ops.kernels.triton.jit.backward import SIZES, gradient_tile
from regard.ops.kernels.triton.jit.sweeps import load_lse
from regard.ops.kernels.triton.jit.tiles import head_base, load_rows, row_hash


@triton.jit
def score_gradients(
    query, key, value, d_output, lse, term, b, h, index, columns, queries, keys, heads, key_group, value_group,
    q_strides, k_strides, v_strides, o_strides, log_scale, mask_args, score_args, measure_args, direct, dropout,
    MASK: tl.constexpr, SCORE: tl.constexpr, MEASURES: tl.constexpr, DIRECT: tl.constexpr, DROPOUT: tl.constexpr,
    CAPPED: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, V: tl.constexpr, V_PAD: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """DS of the cells of some queries and keys, 0 where there are none; before the soft-cap if CAPPED."""
    is_row, is_key = (index >= 0) & (index < queries), (columns >= 0) & (columns < keys)
    row = tl.minimum(tl.maximum(index, 0), queries - 1)
    k = tl.minimum(tl.maximum(columns, 0), keys - 1)
    query_tile = load_rows(head_base(query, q_strides, b, h), row, queries, q_strides[2], D, D_PAD, True)
    key_tile = load_rows(head_base(key, k_strides, b, h // key_group), k, keys, k_strides[2], D, D_PAD, True)
    x = tl.dot(query_tile, key_tile.T, input_precision=PRECISION)
    a = tl.zeros_like(x)
    if V > 0:
        value_tile = load_rows(head_base(value, v_strides, b, h // value_group), k, keys, v_strides[2], V, V_PAD, True)
        d_output_tile = load_rows(head_base(d_output, o_strides, b, h), row, queries, o_strides[2], V, V_PAD, True)
        a = tl.dot(d_output_tile, value_tile.T, input_precision=PRECISION)
    offset = (b * heads + h).to(tl.int64) * queries
    row_lse = load_lse(lse + offset, row, queries)
    row_term = tl.load(term + offset + row)
    low, high = row, row
    if DROPOUT:
        low, high = row_hash(dropout[0], offset + row[:, None])
    inside = is_row[:, None] & is_key[None, :]
    at = b, h, row[:, None], row[:, None], k[None, :], inside
    _, ds, slope = gradient_tile(
        x, a, row_lse[:, None], row_term[:, None], log_scale, at, at, mask_args, score_args, measure_args, direct, low,
        high, dropout, MASK, SCORE, MEASURES, DIRECT, DROPOUT, True,
    )  # fmt: skip
    if CAPPED:
        ds = ds * slope
    return tl.where(inside, ds, 0.0)


@triton.jit(do_not_specialize=(*SIZES, "batch", "bias_batch", "bias_heads"))
def backward_bias(
    query, key, value, d_output, lse, term, result, batch, bias_batch, bias_heads, queries, keys, heads, key_group,
    value_group, q_strides, k_strides, v_strides, o_strides, log_scale, mask_args, score_args, measure_args, direct,
    dropout,
    MASK: tl.constexpr, SCORE: tl.constexpr, MEASURES: tl.constexpr, DIRECT: tl.constexpr, DROPOUT: tl.constexpr,
    CAPPED: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, V: tl.constexpr, V_PAD: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of the gradient of a bias."""
    row_blocks, key_blocks = tl.cdiv(queries, QUERIES), tl.cdiv(keys, KEYS)
    matrix = tl.program_id(0) // (row_blocks * key_blocks)
    block = tl.program_id(0) % (row_blocks * key_blocks)
    index = block // key_blocks * QUERIES + tl.arange(0, QUERIES)
    columns = block % key_blocks * KEYS + tl.arange(0, KEYS)
    first_b, first_h = matrix // bias_heads, matrix % bias_heads
    total = tl.zeros([QUERIES, KEYS], tl.float32)
    for i in range((batch // bias_batch) * (heads // bias_heads)):
        b = first_b + i // (heads // bias_heads)
        h = first_h + i % (heads // bias_heads)
        total += score_gradients(
            query, key, value, d_output, lse, term, b, h, index, columns, queries, keys, heads, key_group, value_group,
            q_strides, k_strides, v_strides, o_strides, log_scale, mask_args, score_args, measure_args, direct, dropout,
            MASK, SCORE, MEASURES, DIRECT, DROPOUT, CAPPED, D, D_PAD, V, V_PAD, PRECISION,
        )  # fmt: skip
    pointers = result + (matrix.to(tl.int64) * queries + index[:, None]) * keys + columns[None, :]
    tl.store(pointers, total, mask=(index < queries)[:, None] & (columns < keys)[None, :])


@triton.jit(do_not_specialize=SIZES)
def backward_distances(
    query, key, value, d_output, lse, term, result, queries, keys, heads, key_group, value_group, q_strides, k_strides,
    v_strides, o_strides, log_scale, mask_args, score_args, measure_args, direct, dropout,
    MASK: tl.constexpr, SCORE: tl.constexpr, MEASURES: tl.constexpr, DIRECT: tl.constexpr, DROPOUT: tl.constexpr,
    CAPPED: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, V: tl.constexpr, V_PAD: tl.constexpr,
    QUERIES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sums of dS over the diagonals from ``first`` on, where the first one of all ends in the last row's first key."""
    blocks = tl.cdiv(queries + keys - 1, QUERIES)
    matrix = tl.program_id(0) // blocks
    first = tl.program_id(0) % blocks * QUERIES
    b, h = matrix // heads, matrix % heads
    lane = tl.arange(0, QUERIES)
    total = tl.zeros([QUERIES], tl.float32)
    # The key of a row is row + diagonal - (queries - 1).
    start = tl.maximum(queries - 1 - first - (QUERIES - 1), 0) // QUERIES * QUERIES
    stop = tl.minimum(queries, keys + queries - 1 - first)
    for first_row in range(start, stop, QUERIES):
        columns = first_row + first - (queries - 1) + tl.arange(0, 2 * QUERIES)
        ds = score_gradients(
            query, key, value, d_output, lse, term, b, h, first_row + lane, columns, queries, keys, heads, key_group,
            value_group, q_strides, k_strides, v_strides, o_strides, log_scale, mask_args, score_args, measure_args,
            direct, dropout, MASK, SCORE, MEASURES, DIRECT, DROPOUT, CAPPED, D, D_PAD, V, V_PAD, PRECISION,
        )  # fmt: skip
        total += tl.sum(tl.gather(ds, lane[:, None] + lane[None, :], 1), 0)
    place = matrix.to(tl.int64) * (queries + keys - 1) + first + lane
    tl.store(result + place, total, mask=first + lane < queries + keys - 1)
