"""The forward pass: output, log-sum-exp, and measures of rows while the softmax runs.

A program has a block of queries. Blocks of keys that the mask forbids are skipped; it is evaluated only in those that
it allows in part. Where there are few queries, several programs share the keys, and `merge` combines what they leave.

Without steps, the dot product is scaled after the maximum is subtracted, in the same instruction.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.ops.kernels.triton.jit.masks import allowed, in_blocks, ranges
from regard.ops.kernels.triton.jit.scores import scores_of
from regard.ops.kernels.triton.jit.tiles import (
    LOG2E,
    LOWEST_LOG,
    head_base,
    in_rules,
    is_kept,
    load_rows,
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


@triton.jit
def forward_range(
    states, query, key, value, keys, k_stride, v_stride, log_scale, own, rules, start, stop, mask_args, score_args,
    measure_args, low, high, threshold,
    MASK: tl.constexpr, SCORE: tl.constexpr, MEASURES: tl.constexpr, DROPOUT: tl.constexpr, D: tl.constexpr,
    D_PAD: tl.constexpr, V: tl.constexpr, V_PAD: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
    PARTIAL: tl.constexpr,
):  # fmt: skip
    """Goes through the keys from ``start`` to ``stop``."""
    maximum, total, output, measures = states
    for first in range(start, stop, KEYS):
        columns = first + tl.arange(0, KEYS)
        k = tl.minimum(columns, keys - 1)[None, :]
        at = own + (k, columns[None, :] < stop)
        key_tile = load_rows(key, columns, keys, k_stride, D, D_PAD, PARTIAL)
        x = tl.dot(query, key_tile.T, input_precision=PRECISION)
        x, _ = scores_of(x, log_scale, SCORE, score_args, rules + (k, at[5]), at)
        if PARTIAL:
            x = tl.where(allowed(MASK, mask_args, rules + (k, at[5])) & at[5], x, float("-inf"))
        highest = tl.maximum(maximum, tl.max(x, 1))
        new_maximum = tl.where(highest == float("-inf"), 0.0, highest)
        if len(SCORE) == 0:
            shift = (maximum - new_maximum) * log_scale
            log_p = x * log_scale - (new_maximum * log_scale)[:, None]
        else:
            shift = maximum - new_maximum
            log_p = x - new_maximum[:, None]
        shift = tl.maximum(shift, LOWEST_LOG)
        factor = tl.exp2(shift)
        p = tl.exp2(log_p)
        new_measures = ()
        for i in tl.static_range(len(MEASURES)):
            state = MEASURES[i][1](measures[i], shift, factor, total)
            new_measures = new_measures + (MEASURES[i][2](state, p, log_p, measure_args[i], MEASURES[i][4], at),)
        measures = new_measures
        total = total * factor + tl.sum(p, 1)
        maximum = highest
        if V > 0:
            if DROPOUT:
                p = tl.where(is_kept(low, high, k, threshold), p, 0.0)
            value_tile = load_rows(value, columns, keys, v_stride, V, V_PAD, PARTIAL)
            output = output * factor[:, None]
            output = tl.dot(p.to(value_tile.dtype), value_tile, output, input_precision=PRECISION)
    return maximum, total, output, measures


@triton.jit
def finish(
    states, sink, output, lse, results, row, queries, matrix, kept, measure_args,
    MEASURES: tl.constexpr, HAS_SINKS: tl.constexpr, V: tl.constexpr, V_PAD: tl.constexpr,
):  # fmt: skip
    """Stores what a block of rows has, from its states, whose maximum is in units of log 2."""
    maximum, total, product, measures = states
    inside = row < queries
    place = matrix.to(tl.int64) * queries + row
    maximum = tl.where(total == 0, 0.0, maximum)
    whole = total
    if HAS_SINKS:
        whole = total + tl.exp2(sink - maximum)
    norm = tl.where(whole == 0, 0.0, 1 / whole)
    row_lse = tl.where(whole == 0, float("-inf"), maximum + tl.log2(whole))
    if HAS_SINKS:  # far above all scores, it is the log-sum-exp
        row_lse = tl.where(total == 0, sink, tl.where(whole == float("inf"), sink, row_lse))
    stats = maximum, total, norm, row_lse - maximum, row_lse
    tl.store(lse + place, row_lse, mask=inside)
    if V > 0:
        store_rows(output + matrix.to(tl.int64) * queries * V, row, queries, product * (norm * kept)[:, None], V, V_PAD)
    for i in tl.static_range(len(MEASURES)):
        MEASURES[i][3](measures[i], stats, measure_args[i], MEASURES[i][4], results[i], place, inside)


@triton.jit(do_not_specialize=SIZES)
def forward(
    query, key, value, output, lse, results, parts, queries, keys, heads, key_group, value_group, q_strides, k_strides,
    v_strides, log_scale, selection, range_args, mask_args, score_args, sinks, measure_args, dropout,
    RANGES: tl.constexpr, HAS_START: tl.constexpr, SELECTED: tl.constexpr, MASK: tl.constexpr, SCORE: tl.constexpr,
    HAS_SINKS: tl.constexpr, MEASURES: tl.constexpr, DROPOUT: tl.constexpr, SPLITS: tl.constexpr, D: tl.constexpr,
    D_PAD: tl.constexpr, V: tl.constexpr, V_PAD: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A block of queries, or the part of its keys that is one of SPLITS."""
    blocks = tl.cdiv(queries, QUERIES)
    split = tl.program_id(0) % SPLITS
    block = tl.program_id(0) // SPLITS
    matrix = block // blocks
    block = blocks - 1 - block % blocks  # causal: the longest rows first
    first = block * QUERIES
    b, h = matrix // heads, matrix % heads
    index = first + tl.arange(0, QUERIES)
    row = tl.minimum(index, queries - 1)
    rule_b, rule_h, place = in_rules(selection, SELECTED, b, h, row)
    query_tile = load_rows(head_base(query, q_strides, b, h), index, queries, q_strides[2], D, D_PAD, True)
    key = head_base(key, k_strides, b, h // key_group)
    if V > 0:
        value = head_base(value, v_strides, b, h // value_group)
    low, high = row, row
    if DROPOUT:
        low, high = row_hash(dropout[0], matrix.to(tl.int64) * queries + row[:, None])
    last = tl.minimum(first + QUERIES, queries) - 1
    start, full_start, full_stop, stop = ranges(RANGES, range_args, (b, h, rule_b), first, last, keys, block)
    if SPLITS > 1:
        width = tl.cdiv(tl.cdiv(keys, SPLITS), KEYS) * KEYS
        start, stop = tl.maximum(start, split * width), tl.minimum(stop, (split + 1) * width)
        full_start, full_stop = tl.maximum(full_start, start), tl.minimum(full_stop, stop)
    start, full_start, full_stop = in_blocks(start, full_start, full_stop, -1, KEYS)
    own = b, h, row[:, None], place[:, None]
    rules = rule_b, rule_h, place[:, None], place[:, None]
    zeros = tl.zeros([QUERIES], tl.float32)
    measures = ()
    for i in tl.static_range(len(MEASURES)):
        measures = measures + (MEASURES[i][0](MEASURES[i][4], QUERIES),)
    product = zeros
    if V > 0:
        product = tl.zeros([QUERIES, V_PAD], tl.float32)
    states = (zeros + float("-inf"), zeros, product, measures)
    if HAS_START:
        states = forward_range(
            states, query_tile, key, value, keys, k_strides[2], v_strides[2], log_scale, own, rules, start, full_start,
            mask_args, score_args, measure_args, low, high, dropout[1], MASK, SCORE, MEASURES, DROPOUT, D, D_PAD, V,
            V_PAD, KEYS, PRECISION, True,
        )  # fmt: skip
    states = forward_range(
        states, query_tile, key, value, keys, k_strides[2], v_strides[2], log_scale, own, rules, full_start, full_stop,
        mask_args, score_args, measure_args, low, high, dropout[1], MASK, SCORE, MEASURES, DROPOUT, D, D_PAD, V, V_PAD,
        KEYS, PRECISION, False,
    )  # fmt: skip
    states = forward_range(
        states, query_tile, key, value, keys, k_strides[2], v_strides[2], log_scale, own, rules, full_stop, stop,
        mask_args, score_args, measure_args, low, high, dropout[1], MASK, SCORE, MEASURES, DROPOUT, D, D_PAD, V, V_PAD,
        KEYS, PRECISION, True,
    )  # fmt: skip
    maximum, total, product, measures = states
    if len(SCORE) == 0:
        maximum = maximum * log_scale
    if SPLITS > 1:
        part = (matrix * SPLITS + split).to(tl.int64) * queries + row
        tl.store(parts[0] + part, maximum, mask=index < queries)
        tl.store(parts[1] + part, total, mask=index < queries)
        if V > 0:
            base = parts[2] + (matrix * SPLITS + split).to(tl.int64) * queries * V
            store_rows(base, index, queries, product, V, V_PAD)
        for i in tl.static_range(len(MEASURES)):
            tl.store(parts[3][i] + part, measures[i], mask=index < queries)
    else:
        sink = zeros
        if HAS_SINKS:
            sink = zeros + tl.load(sinks + rule_h).to(tl.float32) * LOG2E
        finish(
            (maximum, total, product, measures), sink, output, lse, results, index, queries, matrix, dropout[2],
            measure_args, MEASURES, HAS_SINKS, V, V_PAD,
        )  # fmt: skip


@triton.jit(do_not_specialize=SIZES)
def merge(
    lse, output, results, parts, queries, heads, selection, sinks, measure_args, kept,
    SELECTED: tl.constexpr, HAS_SINKS: tl.constexpr, MEASURES: tl.constexpr, SPLITS: tl.constexpr, V: tl.constexpr,
    V_PAD: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """All rows of a head, from the parts that `forward` left."""
    matrix = tl.program_id(0)
    index = tl.arange(0, QUERIES)
    _, rule_h, _ = in_rules(selection, SELECTED, matrix // heads, matrix % heads, tl.minimum(index, queries - 1))
    inside = index < queries
    maximum = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    measures = ()
    for _ in tl.static_range(len(MEASURES)):
        measures = measures + (tl.zeros([QUERIES], tl.float32),)
    product = total
    if V > 0:
        product = tl.zeros([QUERIES, V_PAD], tl.float32)
    for split in range(SPLITS):
        part = (matrix * SPLITS + split).to(tl.int64) * queries + index
        next_maximum = tl.load(parts[0] + part, mask=inside, other=float("-inf"))
        next_total = tl.load(parts[1] + part, mask=inside, other=0.0)
        highest = tl.maximum(maximum, next_maximum)
        reference = tl.where(highest == float("-inf"), 0.0, highest)
        shift = tl.maximum(maximum - reference, LOWEST_LOG)
        next_shift = tl.maximum(next_maximum - reference, LOWEST_LOG)
        factor, next_factor = tl.exp2(shift), tl.exp2(next_shift)
        new_measures = ()
        for i in tl.static_range(len(MEASURES)):
            state = MEASURES[i][1](measures[i], shift, factor, total)
            more = tl.load(parts[3][i] + part, mask=inside, other=0.0)
            new_measures = new_measures + (state + MEASURES[i][1](more, next_shift, next_factor, next_total),)
        measures = new_measures
        if V > 0:
            base = parts[2] + (matrix * SPLITS + split).to(tl.int64) * queries * V
            product = product * factor[:, None]
            product += load_rows(base, index, queries, V, V, V_PAD, True) * next_factor[:, None]
        total = total * factor + next_total * next_factor
        maximum = highest
    sink = tl.zeros([QUERIES], tl.float32)
    if HAS_SINKS:
        sink += tl.load(sinks + rule_h).to(tl.float32) * LOG2E
    finish(
        (maximum, total, product, measures), sink, output, lse, results, index, queries, matrix, kept, measure_args,
        MEASURES, HAS_SINKS, V, V_PAD,
    )  # fmt: skip
