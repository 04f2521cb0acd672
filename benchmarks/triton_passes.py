"""Attention in Triton, divided into passes that are timed apart by `gpu_passes.py`.

- `forward`: output and log-sum-exp (lse), optionally with measures of rows.
- `sweep_rows` and `sweep_columns`: measures of rows and of columns from a known lse, without values. A weight is
  ``exp2(score - lse)``, so there is neither a running maximum nor a rescaling.
- `backward_keys` and `backward_queries`: gradients of key and value, and of query, from the gradients of output,
  entropy and received. With A = dO Vᵀ + dr and c = Σⱼ Pᵢⱼ Aᵢⱼ: dS = P ∘ (A − c − dH (log P + H)).

Blocks of keys that the mask excludes are skipped; it is evaluated only for those that it allows in part.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.ops.kernels.triton.passes import head_base, load_rows

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
MASKED = tl.constexpr(-1e30)  # a masked score: finite, so that 0 · score is 0
NO_WEIGHT = tl.constexpr(1e30)  # lse that makes all weights 0, and 0 · log p is 0
START = tl.constexpr(-1e29)  # the maximum of a row before its first key: above MASKED, so that masked weights are 0


@triton.jit
def store_rows(base, rows, n, stride, tile, D: tl.constexpr, D_PAD: tl.constexpr):
    """The counterpart of `load_rows`."""
    columns = tl.arange(0, D_PAD)
    pointers = base + rows.to(tl.int64)[:, None] * stride + columns[None, :]
    tl.store(pointers, tile.to(base.dtype.element_ty), mask=(rows[:, None] < n) & (columns[None, :] < D))


@triton.jit
def load_lse(pointer, rows, n):
    """In units of log 2; `NO_WEIGHT` outside the matrix and for rows without keys."""
    lse = tl.load(pointer + rows, mask=rows < n, other=float("-inf"))
    return tl.where(lse == float("-inf"), NO_WEIGHT, lse * LOG2E)


@triton.jit
def scores_of(product, scale, ADD: tl.constexpr, score_args, b, h, q, k):
    """Scores from dot products."""
    return ADD(product * (scale * LOG2E), score_args, b, h, q, k)


@triton.jit
def forward_range(
    states, query, key, value, sizes, strides, scale, b, h, q, start, stop, mask_args, score_args, measure_args,
    MASK: tl.constexpr, SCORE: tl.constexpr, MEASURES: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr,
    V: tl.constexpr, V_PAD: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr, PARTIAL: tl.constexpr,
):  # fmt: skip
    """Goes through the keys from ``start`` to ``stop``."""
    maximum, total, output, measures = states
    for first in range(start, stop, KEYS):
        keys = first + tl.arange(0, KEYS)
        k = keys[None, :]
        key_tile = load_rows(key, keys, sizes[1], strides[1][2], D, D_PAD, PARTIAL)
        x = tl.dot(query, key_tile.T, input_precision=PRECISION)
        x = scores_of(x, scale, SCORE, score_args, b, h, q, k)
        if PARTIAL:
            x = tl.where(MASK[0](mask_args, b, h, q, k) & (k < stop), x, MASKED)
        new_maximum = tl.maximum(maximum, tl.max(x, 1))
        shift = maximum - new_maximum
        factor = tl.exp2(shift)
        log_p = x - new_maximum[:, None]
        p = tl.exp2(log_p)
        new_measures = ()
        for i in tl.static_range(len(MEASURES)):
            rescaled = MEASURES[i][0](measures[i], shift, factor, total)
            new_measures = new_measures + (MEASURES[i][1](rescaled, p, log_p, measure_args[i], b, h, q, k),)
        measures = new_measures
        total = total * factor + tl.sum(p, 1)
        maximum = new_maximum
        value_tile = load_rows(value, keys, sizes[1], strides[2][2], V, V_PAD, PARTIAL)
        output = output * factor[:, None]
        output = tl.dot(p.to(value_tile.dtype), value_tile, output, input_precision=PRECISION)
    return maximum, total, output, measures


@triton.jit
def forward(
    query, key, value, output, lse, results, sizes, strides, scale, mask_args, score_args, measure_args,
    MASK: tl.constexpr, SCORE: tl.constexpr, MEASURES: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr,
    V: tl.constexpr, V_PAD: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A block of queries: output, lse and measures of rows."""
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * QUERIES  # causal: the longest rows first
    b, h = tl.program_id(1) // sizes[2], tl.program_id(1) % sizes[2]
    rows = first + tl.arange(0, QUERIES)
    q = rows[:, None]
    query_tile = load_rows(head_base(query, strides[0], b, h), rows, sizes[0], strides[0][2], D, D_PAD, True)
    key, value = head_base(key, strides[1], b, h), head_base(value, strides[2], b, h)
    last = tl.minimum(first + QUERIES, sizes[0]) - 1
    _, _, full, stop = MASK[1](mask_args, first, last, sizes[0], sizes[1], sizes[1])
    full = full // KEYS * KEYS
    zeros = tl.zeros([QUERIES], tl.float32)
    measures = ()
    for _ in tl.static_range(len(MEASURES)):
        measures = measures + (zeros,)
    states = (zeros + START, zeros, tl.zeros([QUERIES, V_PAD], tl.float32), measures)
    states = forward_range(
        states, query_tile, key, value, sizes, strides, scale, b, h, q, 0, full, mask_args, score_args, measure_args,
        MASK, SCORE, MEASURES, D, D_PAD, V, V_PAD, KEYS, PRECISION, False,
    )  # fmt: skip
    states = forward_range(
        states, query_tile, key, value, sizes, strides, scale, b, h, q, full, stop, mask_args, score_args, measure_args,
        MASK, SCORE, MEASURES, D, D_PAD, V, V_PAD, KEYS, PRECISION, True,
    )  # fmt: skip
    maximum, total, product, measures = states
    norm = tl.where(total > 0, 1 / total, 0.0)
    log_total = tl.log2(tl.where(total > 0, total, 1.0))
    place = tl.program_id(1).to(tl.int64) * sizes[0] + rows
    inside = rows < sizes[0]
    tl.store(lse + place, tl.where(total > 0, (maximum + log_total) * LN2, float("-inf")), mask=inside)
    store_rows(head_base(output, strides[3], b, h), rows, sizes[0], strides[3][2], product * norm[:, None], V, V_PAD)
    for i in tl.static_range(len(MEASURES)):
        tl.store(results[i] + place, MEASURES[i][2](measures[i], norm, -log_total), mask=inside)


@triton.jit
def rows_range(
    states, query, lse, key, sizes, strides, scale, b, h, q, start, stop, mask_args, score_args, measure_args,
    MASK: tl.constexpr, SCORE: tl.constexpr, MEASURES: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr,
    KEYS: tl.constexpr, PRECISION: tl.constexpr, PARTIAL: tl.constexpr,
):  # fmt: skip
    """Goes through the keys from ``start`` to ``stop``."""
    for first in range(start, stop, KEYS):
        keys = first + tl.arange(0, KEYS)
        k = keys[None, :]
        key_tile = load_rows(key, keys, sizes[1], strides[1][2], D, D_PAD, PARTIAL)
        x = tl.dot(query, key_tile.T, input_precision=PRECISION)
        log_p = scores_of(x, scale, SCORE, score_args, b, h, q, k) - lse[:, None]
        if PARTIAL:
            log_p = tl.where(MASK[0](mask_args, b, h, q, k) & (k < stop), log_p, MASKED)
        p = tl.exp2(log_p)
        new_states = ()
        for i in tl.static_range(len(MEASURES)):
            new_states = new_states + (MEASURES[i][1](states[i], p, log_p, measure_args[i], b, h, q, k),)
        states = new_states
    return states


@triton.jit
def sweep_rows(
    query, key, lse, results, sizes, strides, scale, mask_args, score_args, measure_args,
    MASK: tl.constexpr, SCORE: tl.constexpr, MEASURES: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A block of queries: measures of rows from lse."""
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * QUERIES
    b, h = tl.program_id(1) // sizes[2], tl.program_id(1) % sizes[2]
    rows = first + tl.arange(0, QUERIES)
    q = rows[:, None]
    place = tl.program_id(1).to(tl.int64) * sizes[0]
    row_lse = load_lse(lse + place, rows, sizes[0])
    query_tile = load_rows(head_base(query, strides[0], b, h), rows, sizes[0], strides[0][2], D, D_PAD, True)
    key = head_base(key, strides[1], b, h)
    last = tl.minimum(first + QUERIES, sizes[0]) - 1
    _, _, full, stop = MASK[1](mask_args, first, last, sizes[0], sizes[1], sizes[1])
    full = full // KEYS * KEYS
    zeros = tl.zeros([QUERIES], tl.float32)
    states = ()
    for _ in tl.static_range(len(MEASURES)):
        states = states + (zeros,)
    states = rows_range(
        states, query_tile, row_lse, key, sizes, strides, scale, b, h, q, 0, full, mask_args, score_args, measure_args,
        MASK, SCORE, MEASURES, D, D_PAD, KEYS, PRECISION, False,
    )  # fmt: skip
    states = rows_range(
        states, query_tile, row_lse, key, sizes, strides, scale, b, h, q, full, stop, mask_args, score_args,
        measure_args, MASK, SCORE, MEASURES, D, D_PAD, KEYS, PRECISION, True,
    )  # fmt: skip
    for i in tl.static_range(len(MEASURES)):
        finished = MEASURES[i][2](states[i], tl.where(row_lse < NO_WEIGHT, zeros + 1, zeros), zeros)
        tl.store(results[i] + place + rows, finished, mask=rows < sizes[0])


@triton.jit
def columns_range(
    states, key, query, lse, sizes, strides, scale, b, h, k, start, stop, mask_args, score_args, measure_args,
    MASK: tl.constexpr, SCORE: tl.constexpr, MEASURES: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr,
    QUERIES: tl.constexpr, PRECISION: tl.constexpr, PARTIAL: tl.constexpr,
):  # fmt: skip
    """Goes through the queries from ``start`` to ``stop``. Queries past the end have weights of 0."""
    for first in range(start, stop, QUERIES):
        rows = first + tl.arange(0, QUERIES)
        q = rows[None, :]
        query_tile = load_rows(query, rows, sizes[0], strides[0][2], D, D_PAD, True)
        x = tl.dot(key, query_tile.T, input_precision=PRECISION)
        x = scores_of(x, scale, SCORE, score_args, b, h, q, k)
        log_p = x - load_lse(lse, rows, sizes[0])[None, :]
        if PARTIAL:
            log_p = tl.where(MASK[0](mask_args, b, h, q, k), log_p, MASKED)
        p = tl.exp2(log_p)
        new_states = ()
        for i in tl.static_range(len(MEASURES)):
            new_states = new_states + (MEASURES[i](states[i], p, measure_args[i], b, h, q),)
        states = new_states
    return states


@triton.jit
def sweep_columns(
    query, key, lse, results, sizes, strides, scale, mask_args, score_args, measure_args,
    MASK: tl.constexpr, SCORE: tl.constexpr, MEASURES: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A block of keys: measures of columns from lse. Works on the transposed tile, so that a sum is within a warp."""
    first = tl.program_id(0) * KEYS
    b, h = tl.program_id(1) // sizes[2], tl.program_id(1) % sizes[2]
    keys = first + tl.arange(0, KEYS)
    k = keys[:, None]
    key_tile = load_rows(head_base(key, strides[1], b, h), keys, sizes[1], strides[1][2], D, D_PAD, True)
    query = head_base(query, strides[0], b, h)
    lse = lse + tl.program_id(1).to(tl.int64) * sizes[0]
    last = tl.minimum(first + KEYS, sizes[1]) - 1
    start, full, _, _ = MASK[2](mask_args, first, last, sizes[0], sizes[1], sizes[0])
    start = start // QUERIES * QUERIES
    full = tl.cdiv(full, QUERIES) * QUERIES
    states = ()
    for _ in tl.static_range(len(MEASURES)):
        states = states + (tl.zeros([KEYS], tl.float32),)
    states = columns_range(
        states, key_tile, query, lse, sizes, strides, scale, b, h, k, start, full, mask_args, score_args,
        measure_args, MASK, SCORE, MEASURES, D, D_PAD, QUERIES, PRECISION, True,
    )  # fmt: skip
    states = columns_range(
        states, key_tile, query, lse, sizes, strides, scale, b, h, k, full, sizes[0], mask_args, score_args,
        measure_args, MASK, SCORE, MEASURES, D, D_PAD, QUERIES, PRECISION, False,
    )  # fmt: skip
    place = tl.program_id(1).to(tl.int64) * sizes[1] + keys
    for i in tl.static_range(len(MEASURES)):
        tl.store(results[i] + place, states[i], mask=keys < sizes[1])


@triton.jit
def row_terms(
    output, d_output, entropy, d_entropy, d_received_mean, result, sizes, strides,
    V: tl.constexpr, V_PAD: tl.constexpr, QUERIES: tl.constexpr, MEASURED: tl.constexpr,
):  # fmt: skip
    """What is subtracted in all cells of a row: dO·O + Σⱼ Pᵢⱼ drⱼ + dH H."""
    rows = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    b, h = tl.program_id(1) // sizes[2], tl.program_id(1) % sizes[2]
    o = load_rows(head_base(output, strides[3], b, h), rows, sizes[0], strides[3][2], V, V_PAD, True)
    do = load_rows(head_base(d_output, strides[4], b, h), rows, sizes[0], strides[4][2], V, V_PAD, True)
    term = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    place, inside = tl.program_id(1).to(tl.int64) * sizes[0] + rows, rows < sizes[0]
    if MEASURED:
        term += tl.load(d_entropy + place, inside, 0.0) * tl.load(entropy + place, inside, 0.0)
        term += tl.load(d_received_mean + place, inside, 0.0)
    tl.store(result + place, term, mask=inside)


@triton.jit
def backward_keys_range(
    d_key, d_value, key, value, received, query, d_output, lse, term, d_entropy, sizes, strides, scale, b, h, k,
    start, stop, mask_args, score_args,
    MASK: tl.constexpr, SCORE: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, V: tl.constexpr,
    V_PAD: tl.constexpr, QUERIES: tl.constexpr, PRECISION: tl.constexpr,
    MEASURED: tl.constexpr, PARTIAL: tl.constexpr,
):  # fmt: skip
    """Goes through the queries from ``start`` to ``stop``; tiles are transposed."""
    for first in range(start, stop, QUERIES):
        rows = first + tl.arange(0, QUERIES)
        q = rows[None, :]
        inside = rows < sizes[0]
        query_tile = load_rows(query, rows, sizes[0], strides[0][2], D, D_PAD, True)
        x = tl.dot(key, query_tile.T, input_precision=PRECISION)
        log_p = scores_of(x, scale, SCORE, score_args, b, h, q, k) - load_lse(lse, rows, sizes[0])[None, :]
        if PARTIAL:
            log_p = tl.where(MASK[0](mask_args, b, h, q, k), log_p, MASKED)
        p = tl.exp2(log_p)
        do = load_rows(d_output, rows, sizes[0], strides[4][2], V, V_PAD, True)
        d_value = tl.dot(p.to(do.dtype), do, d_value, input_precision=PRECISION)
        a = tl.dot(value, do.T, input_precision=PRECISION) - tl.load(term + rows, inside, 0.0)[None, :]
        if MEASURED:
            a += received[:, None]
            a -= log_p * (tl.load(d_entropy + rows, inside, 0.0) * LN2)[None, :]
        d_key = tl.dot((p * a).to(query_tile.dtype), query_tile, d_key, input_precision=PRECISION)
    return d_key, d_value


@triton.jit
def backward_keys(
    query, key, value, d_output, lse, term, d_entropy, d_received, d_key, d_value, sizes, strides, scale,
    mask_args, score_args,
    MASK: tl.constexpr, SCORE: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, V: tl.constexpr,
    V_PAD: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
    MEASURED: tl.constexpr,
):  # fmt: skip
    """A block of keys: gradients of key and value."""
    first = tl.program_id(0) * KEYS
    b, h = tl.program_id(1) // sizes[2], tl.program_id(1) % sizes[2]
    keys = first + tl.arange(0, KEYS)
    k = keys[:, None]
    key_tile = load_rows(head_base(key, strides[1], b, h), keys, sizes[1], strides[1][2], D, D_PAD, True)
    value_tile = load_rows(head_base(value, strides[2], b, h), keys, sizes[1], strides[2][2], V, V_PAD, True)
    query, d_output = head_base(query, strides[0], b, h), head_base(d_output, strides[4], b, h)
    place = tl.program_id(1).to(tl.int64) * sizes[0]
    lse, term = lse + place, term + place
    d_entropy += place
    received = tl.zeros([KEYS], tl.float32)
    if MEASURED:
        received = tl.load(d_received + tl.program_id(1).to(tl.int64) * sizes[1] + keys, keys < sizes[1], 0.0)
    last = tl.minimum(first + KEYS, sizes[1]) - 1
    start, full, _, _ = MASK[2](mask_args, first, last, sizes[0], sizes[1], sizes[0])
    start = start // QUERIES * QUERIES
    full = tl.cdiv(full, QUERIES) * QUERIES
    dk, dv = tl.zeros([KEYS, D_PAD], tl.float32), tl.zeros([KEYS, V_PAD], tl.float32)
    dk, dv = backward_keys_range(
        dk, dv, key_tile, value_tile, received, query, d_output, lse, term, d_entropy, sizes, strides, scale, b, h, k,
        start, full, mask_args, score_args, MASK, SCORE, D, D_PAD, V, V_PAD, QUERIES, PRECISION, MEASURED, True,
    )  # fmt: skip
    dk, dv = backward_keys_range(
        dk, dv, key_tile, value_tile, received, query, d_output, lse, term, d_entropy, sizes, strides, scale, b, h, k,
        full, sizes[0], mask_args, score_args, MASK, SCORE, D, D_PAD, V, V_PAD, QUERIES, PRECISION, MEASURED, False,
    )  # fmt: skip
    store_rows(head_base(d_key, strides[6], b, h), keys, sizes[1], strides[6][2], dk * scale, D, D_PAD)
    store_rows(head_base(d_value, strides[7], b, h), keys, sizes[1], strides[7][2], dv, V, V_PAD)


@triton.jit
def backward_queries_range(
    d_query, query, d_output, lse, term, d_entropy, key, value, d_received, sizes, strides, scale, b, h, q,
    start, stop, mask_args, score_args,
    MASK: tl.constexpr, SCORE: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, V: tl.constexpr,
    V_PAD: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
    MEASURED: tl.constexpr, PARTIAL: tl.constexpr,
):  # fmt: skip
    """Goes through the keys from ``start`` to ``stop``."""
    for first in range(start, stop, KEYS):
        keys = first + tl.arange(0, KEYS)
        k = keys[None, :]
        key_tile = load_rows(key, keys, sizes[1], strides[1][2], D, D_PAD, PARTIAL)
        value_tile = load_rows(value, keys, sizes[1], strides[2][2], V, V_PAD, PARTIAL)
        x = tl.dot(query, key_tile.T, input_precision=PRECISION)
        log_p = scores_of(x, scale, SCORE, score_args, b, h, q, k) - lse[:, None]
        if PARTIAL:
            log_p = tl.where(MASK[0](mask_args, b, h, q, k) & (k < stop), log_p, MASKED)
        p = tl.exp2(log_p)
        a = tl.dot(d_output, value_tile.T, input_precision=PRECISION) - term[:, None]
        if MEASURED:
            a += tl.load(d_received + keys, keys < sizes[1], 0.0)[None, :]
            a -= log_p * d_entropy[:, None]
        d_query = tl.dot((p * a).to(key_tile.dtype), key_tile, d_query, input_precision=PRECISION)
    return d_query


@triton.jit
def backward_queries(
    query, key, value, d_output, lse, term, d_entropy, d_received, d_query, sizes, strides, scale,
    mask_args, score_args,
    MASK: tl.constexpr, SCORE: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, V: tl.constexpr,
    V_PAD: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
    MEASURED: tl.constexpr,
):  # fmt: skip
    """A block of queries: gradient of query."""
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * QUERIES
    b, h = tl.program_id(1) // sizes[2], tl.program_id(1) % sizes[2]
    rows = first + tl.arange(0, QUERIES)
    q = rows[:, None]
    inside = rows < sizes[0]
    place = tl.program_id(1).to(tl.int64) * sizes[0] + rows
    row_lse = load_lse(lse + tl.program_id(1).to(tl.int64) * sizes[0], rows, sizes[0])
    row_term = tl.load(term + place, inside, 0.0)
    row_entropy = tl.zeros([QUERIES], tl.float32)
    if MEASURED:
        row_entropy = tl.load(d_entropy + place, inside, 0.0) * LN2
    d_received += tl.program_id(1).to(tl.int64) * sizes[1]
    query_tile = load_rows(head_base(query, strides[0], b, h), rows, sizes[0], strides[0][2], D, D_PAD, True)
    do = load_rows(head_base(d_output, strides[4], b, h), rows, sizes[0], strides[4][2], V, V_PAD, True)
    key, value = head_base(key, strides[1], b, h), head_base(value, strides[2], b, h)
    last = tl.minimum(first + QUERIES, sizes[0]) - 1
    _, _, full, stop = MASK[1](mask_args, first, last, sizes[0], sizes[1], sizes[1])
    full = full // KEYS * KEYS
    dq = tl.zeros([QUERIES, D_PAD], tl.float32)
    dq = backward_queries_range(
        dq, query_tile, do, row_lse, row_term, row_entropy, key, value, d_received, sizes, strides, scale, b, h, q,
        0, full, mask_args, score_args, MASK, SCORE, D, D_PAD, V, V_PAD, KEYS, PRECISION, MEASURED, False,
    )  # fmt: skip
    dq = backward_queries_range(
        dq, query_tile, do, row_lse, row_term, row_entropy, key, value, d_received, sizes, strides, scale, b, h, q,
        full, stop, mask_args, score_args, MASK, SCORE, D, D_PAD, V, V_PAD, KEYS, PRECISION, MEASURED, True,
    )  # fmt: skip
    store_rows(head_base(d_query, strides[5], b, h), rows, sizes[0], strides[5][2], dq * scale, D, D_PAD)
