"""Sweeps: measures from the log-sum-exp of each row. There is neither a running maximum nor a rescaling.

`sweep_rows` has a block of queries in a program, `sweep_columns` a block of keys. A row without keys has the log-sum-
exp −∞, which becomes ∞, so that all its weights are 0.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.ops.kernels.triton.jit.masks import allowed, in_blocks, ranges
from regard.ops.kernels.triton.jit.scores import scores_of
from regard.ops.kernels.triton.jit.tiles import head_base, in_rules, load_rows

SIZES = ("queries", "keys", "heads", "key_group", "range_args", "mask_args", "score_args", "measure_args")


@triton.jit
def load_lse(pointer, rows, n):
    lse = tl.load(pointer + rows, mask=rows < n, other=float("-inf"))
    return tl.where(lse == float("-inf"), float("inf"), lse)


@triton.jit
def log_weights(
    product, log_scale, lse, at, own, mask_args, score_args, MASK: tl.constexpr, SCORE: tl.constexpr,
    PARTIAL: tl.constexpr,
):  # fmt: skip
    """The logarithms of the weights of a tile, and the slope of the score."""
    x, slope = scores_of(product, log_scale, SCORE, score_args, at, own)
    if len(SCORE) == 0:
        x = x * log_scale
    log_p = x - lse
    if PARTIAL:
        log_p = tl.where(allowed(MASK, mask_args, at) & at[5], log_p, float("-inf"))
    return log_p, slope


@triton.jit
def rows_range(
    states, query, lse, key, keys, k_stride, log_scale, own, rules, start, stop, mask_args, score_args, measure_args,
    MASK: tl.constexpr, SCORE: tl.constexpr, MEASURES: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr,
    KEYS: tl.constexpr, PRECISION: tl.constexpr, PARTIAL: tl.constexpr,
):  # fmt: skip
    """Goes through the keys from ``start`` to ``stop``."""
    for first in range(start, stop, KEYS):
        columns = first + tl.arange(0, KEYS)
        k = tl.minimum(columns, keys - 1)[None, :]
        inside = columns[None, :] < stop
        key_tile = load_rows(key, columns, keys, k_stride, D, D_PAD, PARTIAL)
        x = tl.dot(query, key_tile.T, input_precision=PRECISION)
        at, in_matrix = rules + (k, inside), (own[0], own[1], own[2], own[3], k, own[4] & inside)
        log_p, _ = log_weights(x, log_scale, lse[:, None], at, in_matrix, mask_args, score_args, MASK, SCORE, PARTIAL)
        p = tl.exp2(log_p)
        new_states = ()
        for i in tl.static_range(len(MEASURES)):
            state = MEASURES[i][2](states[i], p, log_p, measure_args[i], MEASURES[i][4], in_matrix)
            new_states = new_states + (state,)
        states = new_states
    return states


@triton.jit(do_not_specialize=SIZES)
def sweep_rows(
    query, key, lse, results, queries, keys, heads, key_group, q_strides, k_strides, log_scale, selection, range_args,
    mask_args, score_args, measure_args,
    RANGES: tl.constexpr, HAS_START: tl.constexpr, SELECTED: tl.constexpr, MASK: tl.constexpr, SCORE: tl.constexpr,
    MEASURES: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A block of queries."""
    blocks = tl.cdiv(queries, QUERIES)
    matrix = tl.program_id(0) // blocks
    block = blocks - 1 - tl.program_id(0) % blocks
    first = block * QUERIES
    b, h = matrix // heads, matrix % heads
    index = first + tl.arange(0, QUERIES)
    row = tl.minimum(index, queries - 1)
    rule_b, rule_h, place = in_rules(selection, SELECTED, b, h, row)
    query_tile = load_rows(head_base(query, q_strides, b, h), index, queries, q_strides[2], D, D_PAD, True)
    key = head_base(key, k_strides, b, h // key_group)
    offset = matrix.to(tl.int64) * queries
    row_lse = load_lse(lse + offset, index, queries)
    last = tl.minimum(first + QUERIES, queries) - 1
    start, full_start, full_stop, stop = ranges(RANGES, range_args, (b, h, rule_b), first, last, keys, block)
    start, full_start, full_stop = in_blocks(start, full_start, full_stop, -1, KEYS)
    own = b, h, row[:, None], place[:, None], (index < queries)[:, None]
    rules = rule_b, rule_h, place[:, None], place[:, None]
    states = ()
    for i in tl.static_range(len(MEASURES)):
        states = states + (MEASURES[i][0](MEASURES[i][4], QUERIES),)
    if HAS_START:
        states = rows_range(
            states, query_tile, row_lse, key, keys, k_strides[2], log_scale, own, rules, start, full_start, mask_args,
            score_args, measure_args, MASK, SCORE, MEASURES, D, D_PAD, KEYS, PRECISION, True,
        )  # fmt: skip
    states = rows_range(
        states, query_tile, row_lse, key, keys, k_strides[2], log_scale, own, rules, full_start, full_stop, mask_args,
        score_args, measure_args, MASK, SCORE, MEASURES, D, D_PAD, KEYS, PRECISION, False,
    )  # fmt: skip
    states = rows_range(
        states, query_tile, row_lse, key, keys, k_strides[2], log_scale, own, rules, full_stop, stop, mask_args,
        score_args, measure_args, MASK, SCORE, MEASURES, D, D_PAD, KEYS, PRECISION, True,
    )  # fmt: skip
    for i in tl.static_range(len(MEASURES)):
        MEASURES[i][3](
            states[i], row_lse, measure_args[i], MEASURES[i][4], results[i], offset + index, index < queries
        )  # fmt: skip


@triton.jit
def columns_range(
    states, key, query, lse, queries, q_stride, log_scale, head, rule_head, selection, k, inside, start, stop,
    mask_args, score_args, measure_args,
    SELECTED: tl.constexpr, MASK: tl.constexpr, SCORE: tl.constexpr, MEASURES: tl.constexpr, D: tl.constexpr,
    D_PAD: tl.constexpr, QUERIES: tl.constexpr, PRECISION: tl.constexpr, PARTIAL: tl.constexpr,
):  # fmt: skip
    """Goes through the queries from ``start`` to ``stop``. Those past the end have weights of 0."""
    for first in range(start, stop, QUERIES):
        index = first + tl.arange(0, QUERIES)
        row = tl.minimum(index, queries - 1)
        _, _, place = in_rules(selection, SELECTED, head[0], head[1], row)
        query_tile = load_rows(query, index, queries, q_stride, D, D_PAD, True)
        x = tl.dot(key, query_tile.T, input_precision=PRECISION)
        row_lse = load_lse(lse, index, queries)
        at = rule_head + (place[None, :], place[None, :], k, inside)
        own = head + (row[None, :], place[None, :], k, inside)
        log_p, _ = log_weights(x, log_scale, row_lse[None, :], at, own, mask_args, score_args, MASK, SCORE, PARTIAL)
        p = tl.exp2(log_p)
        new_states = ()
        for i in tl.static_range(len(MEASURES)):
            new_states = new_states + (MEASURES[i][1](states[i], p, measure_args[i], MEASURES[i][3], own),)
        states = new_states
    return states


@triton.jit(do_not_specialize=SIZES)
def sweep_columns(
    query, key, lse, results, queries, keys, heads, key_group, q_strides, k_strides, log_scale, selection, range_args,
    mask_args, score_args, measure_args,
    RANGES: tl.constexpr, HAS_START: tl.constexpr, SELECTED: tl.constexpr, MASK: tl.constexpr, SCORE: tl.constexpr,
    MEASURES: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A block of keys. Works on the transposed tile, so that a sum is within a warp."""
    blocks = tl.cdiv(keys, KEYS)
    matrix = tl.program_id(0) // blocks
    block = tl.program_id(0) % blocks
    first = block * KEYS
    b, h = matrix // heads, matrix % heads
    columns = first + tl.arange(0, KEYS)
    k, inside = tl.minimum(columns, keys - 1)[:, None], (columns < keys)[:, None]
    rule_b, rule_h, _ = in_rules(selection, SELECTED, b, h, 0)
    key_tile = load_rows(head_base(key, k_strides, b, h // key_group), columns, keys, k_strides[2], D, D_PAD, True)
    query = head_base(query, q_strides, b, h)
    lse += matrix.to(tl.int64) * queries
    last = tl.minimum(first + KEYS, keys) - 1
    start, full_start, full_stop, stop = ranges(RANGES, range_args, (b, h, rule_b), first, last, queries, block)
    start, full_start, full_stop = in_blocks(start, full_start, full_stop, queries, QUERIES)
    states = ()
    for i in tl.static_range(len(MEASURES)):
        states = states + (MEASURES[i][0](MEASURES[i][3], KEYS),)
    states = columns_range(
        states, key_tile, query, lse, queries, q_strides[2], log_scale, (b, h), (rule_b, rule_h), selection, k, inside,
        start, full_start, mask_args, score_args, measure_args, SELECTED, MASK, SCORE, MEASURES, D, D_PAD, QUERIES,
        PRECISION, True,
    )  # fmt: skip
    states = columns_range(
        states, key_tile, query, lse, queries, q_strides[2], log_scale, (b, h), (rule_b, rule_h), selection, k, inside,
        full_start, full_stop, mask_args, score_args, measure_args, SELECTED, MASK, SCORE, MEASURES, D, D_PAD, QUERIES,
        PRECISION, False,
    )  # fmt: skip
    states = columns_range(
        states, key_tile, query, lse, queries, q_strides[2], log_scale, (b, h), (rule_b, rule_h), selection, k, inside,
        full_stop, stop, mask_args, score_args, measure_args, SELECTED, MASK, SCORE, MEASURES, D, D_PAD, QUERIES,
        PRECISION, True,
    )  # fmt: skip
    place = matrix.to(tl.int64) * keys + columns
    for i in tl.static_range(len(MEASURES)):
        MEASURES[i][2](states[i], measure_args[i], MEASURES[i][3], results[i], place, columns < keys)
