"""The backward pass, from the log-sum-exp of each row: by blocks of queries, and by blocks of keys.

With A the gradient that reaches the weights P from the output, dO Vᵀ, and from measures, and cᵢ = Σⱼ Pᵢⱼ Aᵢⱼ, the
gradient of the scores is dS = P ∘ (A − c). What is the same for all keys of a row, c and the gradient of the log-sum-
exp, is in ``term``. No two programs write to the same place, so results are the same to the bit each time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.ops.kernels.triton.jit.masks import in_blocks, ranges
from regard.ops.kernels.triton.jit.sweeps import load_lse, log_weights
from regard.ops.kernels.triton.jit.tiles import (
    head_base,
    in_rules,
    is_kept,
    load_rows,
    of_row,
    row_hash,
    store_rows,
)

SIZES = (
    "queries",
    "keys",
    "heads",
    "key_group",
    "value_group",
    "range_args",
    "mask_args",
    "score_args",
    "measure_args",
)
SIZES += ("sum_args",)


@triton.jit
def row_terms(
    output,
    d_output,
    term,
    queries,
    heads,
    strides,
    d_strides,
    V: tl.constexpr,
    V_PAD: tl.constexpr,
    QUERIES: tl.constexpr,
):
    """Adds dO · O to the term of each row."""
    blocks = tl.cdiv(queries, QUERIES)
    matrix = tl.program_id(0) // blocks
    index = tl.program_id(0) % blocks * QUERIES + tl.arange(0, QUERIES)
    b, h = matrix // heads, matrix % heads
    o = load_rows(head_base(output, strides, b, h), index, queries, strides[2], V, V_PAD, True)
    d = load_rows(head_base(d_output, d_strides, b, h), index, queries, d_strides[2], V, V_PAD, True)
    place = matrix.to(tl.int64) * queries + index
    sums = tl.sum(o.to(tl.float32) * d.to(tl.float32), 1)
    tl.store(term + place, tl.load(term + place, mask=index < queries) + sums, mask=index < queries)


@triton.jit
def gradient_tile(
    product, d_weights, lse, term, log_scale, at, own, mask_args, score_args, measure_args, direct, low, high, dropout,
    MASK: tl.constexpr, SCORE: tl.constexpr, MEASURES: tl.constexpr, DIRECT: tl.constexpr, DROPOUT: tl.constexpr,
    PARTIAL: tl.constexpr,
):  # fmt: skip
    """The weights that make the output, the gradient of the scores, and the slope of the score."""
    log_p, slope = log_weights(product, log_scale, lse, at, own, mask_args, score_args, MASK, SCORE, PARTIAL)
    p = tl.exp2(log_p)
    a = d_weights
    used = p
    if DROPOUT:
        kept = is_kept(low, high, own[4], dropout[1])
        a = tl.where(kept, a * dropout[2], 0.0)
        used = tl.where(kept, p * dropout[2], 0.0)
    for i in tl.static_range(len(MEASURES)):
        a = MEASURES[i][0](a, p, log_p, measure_args[i], MEASURES[i][1], own)
    ds = p * (a - term)
    if DIRECT:  # that of the highest score
        ds += tl.where((own[4] == of_row(direct[0], own).to(tl.int32)) & own[5], of_row(direct[1], own), 0.0)
    return used, ds, slope


@triton.jit
def queries_range(
    states, query, d_output, lse, term, key, value, keys, k_stride, v_stride, log_scale, own, rules, start, stop,
    mask_args, score_args, measure_args, direct, low, high, dropout, sum_args,
    MASK: tl.constexpr, SCORE: tl.constexpr, MEASURES: tl.constexpr, DIRECT: tl.constexpr, DROPOUT: tl.constexpr,
    SUMS: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, V: tl.constexpr, V_PAD: tl.constexpr,
    KEYS: tl.constexpr, PRECISION: tl.constexpr, PARTIAL: tl.constexpr,
):  # fmt: skip
    """Goes through the keys from ``start`` to ``stop``."""
    d_query, sums = states
    for first in range(start, stop, KEYS):
        columns = first + tl.arange(0, KEYS)
        k = tl.minimum(columns, keys - 1)[None, :]
        inside = columns[None, :] < stop
        key_tile = load_rows(key, columns, keys, k_stride, D, D_PAD, PARTIAL)
        x = tl.dot(query, key_tile.T, input_precision=PRECISION)
        a = tl.zeros_like(x)
        if V > 0:
            value_tile = load_rows(value, columns, keys, v_stride, V, V_PAD, PARTIAL)
            a = tl.dot(d_output, value_tile.T, input_precision=PRECISION)
        at, in_matrix = rules + (k, inside), (own[0], own[1], own[2], own[3], k, own[4] & inside)
        _, ds, slope = gradient_tile(
            x, a, lse[:, None], term[:, None], log_scale, at, in_matrix, mask_args, score_args, measure_args, direct,
            low, high, dropout, MASK, SCORE, MEASURES, DIRECT, DROPOUT, PARTIAL,
        )  # fmt: skip
        new_sums = ()
        for i in tl.static_range(len(SUMS)):
            part = ds * slope if SUMS[i][5] else ds
            new_sums = new_sums + (SUMS[i][2](sums[i], part, part, sum_args[i], SUMS[i][4], in_matrix),)
        sums = new_sums
        d_query = tl.dot((ds * slope).to(key_tile.dtype), key_tile, d_query, input_precision=PRECISION)
    return d_query, sums


@triton.jit(do_not_specialize=SIZES)
def backward_queries(
    query, key, value, d_output, lse, term, d_query, results, queries, keys, heads, key_group, value_group, q_strides,
    k_strides, v_strides, o_strides, log_scale, scale, selection, range_args, mask_args, score_args, measure_args,
    direct, dropout, sum_args,
    RANGES: tl.constexpr, HAS_START: tl.constexpr, SELECTED: tl.constexpr, MASK: tl.constexpr, SCORE: tl.constexpr,
    MEASURES: tl.constexpr, DIRECT: tl.constexpr, DROPOUT: tl.constexpr, SUMS: tl.constexpr, D: tl.constexpr,
    D_PAD: tl.constexpr, V: tl.constexpr, V_PAD: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A block of queries: their gradient, and sums of dS over rows."""
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
    d_output_tile = query_tile
    if V > 0:
        d_output_tile = load_rows(head_base(d_output, o_strides, b, h), index, queries, o_strides[2], V, V_PAD, True)
        value = head_base(value, v_strides, b, h // value_group)
    offset = matrix.to(tl.int64) * queries
    row_lse = load_lse(lse + offset, index, queries)
    row_term = tl.load(term + offset + index, mask=index < queries, other=0.0)
    low, high = row, row
    if DROPOUT:
        low, high = row_hash(dropout[0], offset + row[:, None])
    last = tl.minimum(first + QUERIES, queries) - 1
    start, full_start, full_stop, stop = ranges(RANGES, range_args, (b, h, rule_b), first, last, keys, block)
    start, full_start, full_stop = in_blocks(start, full_start, full_stop, -1, KEYS)
    own = b, h, row[:, None], place[:, None], (index < queries)[:, None]
    rules = rule_b, rule_h, place[:, None], place[:, None]
    sums = ()
    for i in tl.static_range(len(SUMS)):
        sums = sums + (SUMS[i][0](SUMS[i][4], QUERIES),)
    states = tl.zeros([QUERIES, D_PAD], tl.float32), sums
    if HAS_START:
        states = queries_range(
            states, query_tile, d_output_tile, row_lse, row_term, key, value, keys, k_strides[2], v_strides[2],
            log_scale, own, rules, start, full_start, mask_args, score_args, measure_args, direct, low, high, dropout,
            sum_args, MASK, SCORE, MEASURES, DIRECT, DROPOUT, SUMS, D, D_PAD, V, V_PAD, KEYS, PRECISION, True,
        )  # fmt: skip
    states = queries_range(
        states, query_tile, d_output_tile, row_lse, row_term, key, value, keys, k_strides[2], v_strides[2], log_scale,
        own, rules, full_start, full_stop, mask_args, score_args, measure_args, direct, low, high, dropout, sum_args,
        MASK, SCORE, MEASURES, DIRECT, DROPOUT, SUMS, D, D_PAD, V, V_PAD, KEYS, PRECISION, False,
    )  # fmt: skip
    states = queries_range(
        states, query_tile, d_output_tile, row_lse, row_term, key, value, keys, k_strides[2], v_strides[2], log_scale,
        own, rules, full_stop, stop, mask_args, score_args, measure_args, direct, low, high, dropout, sum_args,
        MASK, SCORE, MEASURES, DIRECT, DROPOUT, SUMS, D, D_PAD, V, V_PAD, KEYS, PRECISION, True,
    )  # fmt: skip
    store_rows(d_query + offset * D, index, queries, states[0] * scale, D, D_PAD)
    for i in tl.static_range(len(SUMS)):
        SUMS[i][3](
            states[1][i], row_lse, sum_args[i], SUMS[i][4], results[i], offset + index, index < queries
        )  # fmt: skip


@triton.jit
def keys_range(
    states, key, value, query, d_output, lse, term, queries, q_stride, o_stride, log_scale, head, rule_head, selection,
    k, inside, start, stop, mask_args, score_args, measure_args, direct, dropout, sum_args,
    SELECTED: tl.constexpr, MASK: tl.constexpr, SCORE: tl.constexpr, MEASURES: tl.constexpr, DIRECT: tl.constexpr,
    DROPOUT: tl.constexpr, SUMS: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, V: tl.constexpr,
    V_PAD: tl.constexpr, QUERIES: tl.constexpr, PRECISION: tl.constexpr, PARTIAL: tl.constexpr,
):  # fmt: skip
    """Goes through the queries from ``start`` to ``stop``; tiles are transposed."""
    d_key, d_value, sums = states
    for first in range(start, stop, QUERIES):
        index = first + tl.arange(0, QUERIES)
        row = tl.minimum(index, queries - 1)
        _, _, place = in_rules(selection, SELECTED, head[0], head[1], row)
        query_tile = load_rows(query, index, queries, q_stride, D, D_PAD, True)
        x = tl.dot(key, query_tile.T, input_precision=PRECISION)
        a = tl.zeros_like(x)
        if V > 0:
            d_output_tile = load_rows(d_output, index, queries, o_stride, V, V_PAD, True)
            a = tl.dot(value, d_output_tile.T, input_precision=PRECISION)
        row_lse = load_lse(lse, index, queries)
        row_term = tl.load(term + index, mask=index < queries, other=0.0)
        low, high = row, row
        if DROPOUT:
            low, high = row_hash(dropout[0], head[2] + row[None, :])
        at = rule_head + (place[None, :], place[None, :], k, inside)
        own = (head[0], head[1], row[None, :], place[None, :], k, inside & (index < queries)[None, :])
        used, ds, slope = gradient_tile(
            x, a, row_lse[None, :], row_term[None, :], log_scale, at, own, mask_args, score_args, measure_args, direct,
            low, high, dropout, MASK, SCORE, MEASURES, DIRECT, DROPOUT, PARTIAL,
        )  # fmt: skip
        if V > 0:
            d_value = tl.dot(used.to(d_output_tile.dtype), d_output_tile, d_value, input_precision=PRECISION)
        new_sums = ()
        for i in tl.static_range(len(SUMS)):
            part = ds * slope if SUMS[i][4] else ds
            new_sums = new_sums + (SUMS[i][1](sums[i], part, sum_args[i], SUMS[i][3], own),)
        sums = new_sums
        d_key = tl.dot((ds * slope).to(query_tile.dtype), query_tile, d_key, input_precision=PRECISION)
    return d_key, d_value, sums


@triton.jit(do_not_specialize=SIZES)
def backward_keys(
    query, key, value, d_output, lse, term, d_key, d_value, results, queries, keys, heads, key_group, value_group,
    q_strides, k_strides, v_strides, o_strides, log_scale, scale, selection, range_args, mask_args, score_args,
    measure_args, direct, dropout, sum_args,
    RANGES: tl.constexpr, HAS_START: tl.constexpr, SELECTED: tl.constexpr, MASK: tl.constexpr, SCORE: tl.constexpr,
    MEASURES: tl.constexpr, DIRECT: tl.constexpr, DROPOUT: tl.constexpr, SUMS: tl.constexpr, D: tl.constexpr,
    D_PAD: tl.constexpr, V: tl.constexpr, V_PAD: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A block of keys, for a head of queries: gradients of key and value, and sums of dS over columns."""
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
    value_tile, dv = key_tile, tl.zeros([KEYS], tl.float32)
    if V > 0:
        value = head_base(value, v_strides, b, h // value_group)
        value_tile = load_rows(value, columns, keys, v_strides[2], V, V_PAD, True)
        d_output = head_base(d_output, o_strides, b, h)
        dv = tl.zeros([KEYS, V_PAD], tl.float32)
    offset = matrix.to(tl.int64) * queries
    lse, term = lse + offset, term + offset
    last = tl.minimum(first + KEYS, keys) - 1
    start, full_start, full_stop, stop = ranges(RANGES, range_args, (b, h, rule_b), first, last, queries, block)
    start, full_start, full_stop = in_blocks(start, full_start, full_stop, queries, QUERIES)
    head, rule_head = (b, h, offset), (rule_b, rule_h)
    sums = ()
    for i in tl.static_range(len(SUMS)):
        sums = sums + (SUMS[i][0](SUMS[i][3], KEYS),)
    states = tl.zeros([KEYS, D_PAD], tl.float32), dv, sums
    states = keys_range(
        states, key_tile, value_tile, query, d_output, lse, term, queries, q_strides[2], o_strides[2], log_scale, head,
        rule_head, selection, k, inside, start, full_start, mask_args, score_args, measure_args, direct, dropout,
        sum_args, SELECTED, MASK, SCORE, MEASURES, DIRECT, DROPOUT, SUMS, D, D_PAD, V, V_PAD, QUERIES, PRECISION, True,
    )  # fmt: skip
    states = keys_range(
        states, key_tile, value_tile, query, d_output, lse, term, queries, q_strides[2], o_strides[2], log_scale, head,
        rule_head, selection, k, inside, full_start, full_stop, mask_args, score_args, measure_args, direct, dropout,
        sum_args, SELECTED, MASK, SCORE, MEASURES, DIRECT, DROPOUT, SUMS, D, D_PAD, V, V_PAD, QUERIES, PRECISION, False,
    )  # fmt: skip
    states = keys_range(
        states, key_tile, value_tile, query, d_output, lse, term, queries, q_strides[2], o_strides[2], log_scale, head,
        rule_head, selection, k, inside, full_stop, stop, mask_args, score_args, measure_args, direct, dropout,
        sum_args, SELECTED, MASK, SCORE, MEASURES, DIRECT, DROPOUT, SUMS, D, D_PAD, V, V_PAD, QUERIES, PRECISION, True,
    )  # fmt: skip
    base = matrix.to(tl.int64) * keys
    store_rows(d_key + base * D, columns, keys, states[0] * scale, D, D_PAD)
    if V > 0:
        store_rows(d_value + base * V, columns, keys, states[1], V, V_PAD)
    for i in tl.static_range(len(SUMS)):
        SUMS[i][2](states[2][i], sum_args[i], SUMS[i][3], results[i], base + columns, columns < keys)
