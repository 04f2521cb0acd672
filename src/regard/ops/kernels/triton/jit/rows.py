"""Measures of rows: a few lines for each kind of step.

A measure is ``(start, rescale, add, finish)``. `start` makes its state. ``add(state, p, log_p, args, EXTRA, at)``
goes on to a tile; ``at[5]`` says which of its cells there are, and the weights of others are 0. ``finish(state,
stats, args, EXTRA, results, place, inside)`` stores the results of the rows; ``place`` is their index in (batch,
heads, queries).

Those of `FUSED` are computed while the softmax runs: ``p`` is exp2(score − maximum of the row so far), ``log_p`` its
logarithm, and ``rescale(state, shift, factor, total)`` serves when the maximum moves: ``shift`` is the logarithm of
``factor``, by which each ``p`` changes, and ``total`` their sum. ``stats`` are maximum, total, the factor that makes
``p`` a weight, its logarithm with the other sign, and the log-sum-exp. A row without keys has total 0, one with a NaN
or +∞ among its scores has NaN.

Those of `SWEPT` need the log-sum-exp first: ``p`` is the weight, and ``stats`` the log-sum-exp. They may store
results while they go.

A gradient is ``f(a, p, log_p, args, EXTRA, at)``: it adds to ``a`` what the measure sends to each weight; ``args``
are those of the measure after the gradients of its results, tensors (batch, heads, queries, 1 or more).
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.ops.kernels.triton.jit.masks import allowed
from regard.ops.kernels.triton.jit.sweeps import log_weights
from regard.ops.kernels.triton.jit.tiles import (
    LN2,
    LOWEST_LOG,
    clip,
    head_base,
    head_pointer,
    in_rules,
    load_rows,
    of_column,
    of_key,
    of_row,
)

NO_KEY = tl.constexpr(-(2**31))


@triton.jit
def zero(EXTRA: tl.constexpr, ROWS: tl.constexpr):
    return tl.zeros([ROWS], tl.float32)


@triton.jit
def keep(state, shift, factor, total):
    return state


@triton.jit
def add_nothing(state, p, log_p, args, EXTRA: tl.constexpr, at):
    return state


@triton.jit
def rescale_sum(state, shift, factor, total):
    return factor * state


@triton.jit
def finish_sum(state, stats, args, EXTRA: tl.constexpr, results, place, inside):
    tl.store(results[0] + place, state * stats[2], mask=inside)


@triton.jit
def rescale_entropy(state, shift, factor, total):
    return factor * (state + shift * total)


@triton.jit
def add_entropy(state, p, log_p, args, EXTRA: tl.constexpr, at):
    """Σ p log₂ p."""
    return state + tl.sum(p * tl.maximum(log_p, LOWEST_LOG), 1)


@triton.jit
def finish_entropy(state, stats, args, EXTRA: tl.constexpr, results, place, inside):
    """In nats; the absolute value turns −0 and what rounding leaves below it."""
    entropy = tl.abs(stats[3] * stats[1] - state) * stats[2] * LN2
    tl.store(results[0] + place, tl.where(stats[1] == 0, 0.0, entropy), mask=inside)


@triton.jit
def distances(offset, at):
    """|position − key|, from the difference to the first key of the tile: float32 would round large indices."""
    first = tl.min(tl.min(at[4], 1), 0)
    position = (at[3].to(tl.int64) + offset - first).to(tl.float32)
    return tl.abs(position - (at[4] - first).to(tl.float32))


@triton.jit
def add_distance(state, p, log_p, args, EXTRA: tl.constexpr, at):
    return state + tl.sum(p * distances(args[0], at), 1)


@triton.jit
def add_mass(state, p, log_p, args, EXTRA: tl.constexpr, at):
    return state + tl.sum(tl.where(allowed(EXTRA, args, at), p, 0.0), 1)


@triton.jit
def finish_lse(state, stats, args, EXTRA: tl.constexpr, results, place, inside):
    tl.store(results[0] + place, stats[4] * LN2, mask=inside)


@triton.jit
def finish_max(state, stats, args, EXTRA: tl.constexpr, results, place, inside):
    """The largest weight, whose ``p`` is one, and the highest score."""
    score = tl.where(stats[1] == 0, float("-inf"), tl.where(stats[1] == stats[1], stats[0] * LN2, float("nan")))
    tl.store(results[0] + place, tl.where(stats[1] == 0, 0.0, stats[2]), mask=inside)
    tl.store(results[1] + place, score, mask=inside)


@triton.jit
def finish_nothing(state, stats, args, EXTRA: tl.constexpr, results, place, inside):
    pass


@triton.jit
def add_diagonal(state, p, log_p, args, EXTRA: tl.constexpr, at):
    """The weight of the key at place + args[0]."""
    return state + tl.sum(tl.where(at[4] == at[3] + args[0], p, 0.0), 1)


@triton.jit
def add_selected(state, p, log_p, args, EXTRA: tl.constexpr, at):
    """The weights of the keys from args[1] on, into args[0]."""
    column = at[4] - args[1]
    pointers = head_pointer(args[0], at) + at[2].to(tl.int64) * args[0][1][2] + column
    tl.store(pointers, p, mask=at[5] & (column >= 0) & (column < args[2]))
    return state


@triton.jit
def start_histogram(EXTRA: tl.constexpr, ROWS: tl.constexpr):
    return tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)


@triton.jit
def add_histogram(state, p, log_p, args, EXTRA: tl.constexpr, at):
    """Into args[0], the weights at distances below args[2]; args[1] is subtracted from key − place."""
    distance, reach = at[4] - at[3] - args[1], args[2]
    pointers = head_pointer(args[0], at) + at[2].to(tl.int64) * args[0][1][2] + distance + reach
    tl.store(pointers, p, mask=at[5] & (distance > -reach) & (distance < reach))
    is_before = (distance <= -reach) & (reach > 0)  # with a reach of 0, all weights are in one bin
    is_after = (distance >= reach) | (reach == 0)
    return state[0] + tl.sum(tl.where(is_before, p, 0.0), 1), state[1] + tl.sum(tl.where(is_after, p, 0.0), 1)


@triton.jit
def finish_histogram(state, stats, args, EXTRA: tl.constexpr, results, place, inside):
    first = results[0] + place * (2 * args[2] + 1)
    tl.store(first, state[0], mask=inside & (args[2] > 0))
    tl.store(first + 2 * args[2], state[1], mask=inside)


@triton.jit
def start_topk(EXTRA: tl.constexpr, ROWS: tl.constexpr):
    """Logarithms of weights, and their keys, which differ where there is none, too."""
    slot = tl.arange(0, EXTRA[1])[None, :]
    return tl.full([ROWS, EXTRA[1]], float("-inf"), tl.float32), tl.zeros([ROWS, EXTRA[1]], tl.int32) - 1 - slot


@triton.jit
def add_topk(state, p, log_p, args, EXTRA: tl.constexpr, at):
    """Replaces the smallest, of equal ones the last key, while a row of the tile has a larger one."""
    values, keys = state
    slot = tl.arange(0, EXTRA[1])[None, :]
    first = tl.min(tl.min(at[4], 1), 0)
    rest = tl.where(at[5], log_p, float("-inf"))
    column = tl.arange(0, rest.shape[1])
    best = tl.max(rest, 1)
    smallest = tl.min(tl.where(slot < EXTRA[0], values, float("inf")), 1)
    while tl.max((best > smallest).to(tl.int32), 0) > 0:
        at_best = tl.min(tl.where(rest == best[:, None], column[None, :], rest.shape[1]), 1)
        last = tl.max(tl.where((values == smallest[:, None]) & (slot < EXTRA[0]), keys, NO_KEY), 1)
        is_new = (keys == last[:, None]) & (best > smallest)[:, None]
        values = tl.where(is_new, best[:, None], values)
        keys = tl.where(is_new, (first + at_best)[:, None], keys)
        rest = tl.where(column[None, :] == at_best[:, None], float("-inf"), rest)
        best = tl.max(rest, 1)
        smallest = tl.min(tl.where(slot < EXTRA[0], values, float("inf")), 1)
    return values, keys


@triton.jit
def finish_topk(state, stats, args, EXTRA: tl.constexpr, results, place, inside):
    """In descending order, of equal ones the first key."""
    values, keys = state
    slot = tl.arange(0, EXTRA[1])[None, :]
    values = tl.where(slot < EXTRA[0], values, float("-inf"))
    is_nan = stats != stats
    for c in tl.static_range(EXTRA[0]):
        best = tl.max(values, 1)
        key = tl.min(tl.where((values == best[:, None]) & (keys >= 0), keys, 2**31 - 1), 1)
        is_found = (best > float("-inf")) & (is_nan == 0)
        weight = tl.where(is_found, tl.exp2(best), 0.0)
        tl.store(results[0] + place * EXTRA[0] + c, tl.where(is_nan, float("nan"), weight), mask=inside)
        tl.store(results[1] + place * EXTRA[0] + c, tl.where(is_found, key, -1).to(tl.int64), mask=inside)
        values = tl.where(keys == key[:, None], float("-inf"), values)


@triton.jit
def log_ratio(p, log_p, args, EXTRA: tl.constexpr, at):
    """log₂ P − log₂ Q of a tile, 0 where P is 0; args and EXTRA are those of the other matrix."""
    query, key, lse, log_scale, selection, mask_args, score_args, sizes = args
    b, h, place = in_rules(selection, EXTRA[0], at[0], at[1], at[2])
    query = head_base(query[0], query[1], at[0], at[1])
    key = head_base(key[0], key[1], at[0], at[1] // sizes[2])
    if at[4].shape[0] == 1:  # by rows
        rows, keys = tl.max(at[2], 1), tl.max(at[4], 0)
    else:
        rows, keys = tl.max(at[2], 0), tl.max(at[4], 1)
    query_tile = load_rows(query, rows, sizes[0], args[0][1][2], EXTRA[3], EXTRA[4], True)
    key_tile = load_rows(key, keys, sizes[1], args[1][1][2], EXTRA[3], EXTRA[4], True)
    if at[4].shape[0] == 1:
        x = tl.dot(query_tile, key_tile.T, input_precision=EXTRA[5])
    else:
        x = tl.dot(key_tile, query_tile.T, input_precision=EXTRA[5])
    row_lse = of_row(lse, at)
    row_lse = tl.where(row_lse == float("-inf"), float("inf"), row_lse)  # of a row without keys
    rules = b, h, place, place, at[4], at[5]
    log_q, _ = log_weights(x, log_scale, row_lse, rules, at, mask_args, score_args, EXTRA[1], EXTRA[2], True)
    return tl.where(p > 0, log_p - log_q, 0.0)


@triton.jit
def add_divergence(state, p, log_p, args, EXTRA: tl.constexpr, at):
    return state + tl.sum(p * log_ratio(p, log_p, args, EXTRA, at), 1)


@triton.jit
def finish_divergence(state, stats, args, EXTRA: tl.constexpr, results, place, inside):
    tl.store(results[0] + place, state * LN2, mask=inside)


@triton.jit
def add_products(state, p, log_p, args, EXTRA: tl.constexpr, at):
    """Σ p times a number of each key."""
    return state + tl.sum(p * of_key(args[0], at), 1)


@triton.jit
def add_terms(state, p, log_p, args, EXTRA: tl.constexpr, at):
    """Σ p times what measures send to it."""
    a = tl.zeros_like(p)
    for i in tl.static_range(len(EXTRA)):
        a = EXTRA[i][0](a, p, log_p, args[i], EXTRA[i][1], at)
    return state + tl.sum(p * a, 1)


@triton.jit
def add_total(state, p, log_p, args, EXTRA: tl.constexpr, at):
    return state + tl.sum(p, 1)


@triton.jit
def store_sum(state, stats, args, EXTRA: tl.constexpr, results, place, inside):
    tl.store(results[0] + place, state, mask=inside)


@triton.jit
def entropy_gradient(a, p, log_p, args, EXTRA: tl.constexpr, at):
    """Without what is the same for all keys of a row."""
    return a - of_row(args[0], at) * tl.maximum(log_p, LOWEST_LOG) * LN2


@triton.jit
def divergence_gradient(a, p, log_p, args, EXTRA: tl.constexpr, at):
    """Without what is the same for all keys of a row. A row that is left out may have infinite terms."""
    gradient = of_row(args[0], at)
    return a + tl.where(gradient == 0, 0.0, gradient * LN2 * log_ratio(p, log_p, args[1], EXTRA, at))


@triton.jit
def no_gradient(a, p, log_p, args, EXTRA: tl.constexpr, at):
    """That of lse is the same for all keys of a row."""
    return a


@triton.jit
def distance_gradient(a, p, log_p, args, EXTRA: tl.constexpr, at):
    return a + of_row(args[0], at) * distances(args[1], at)


@triton.jit
def mass_gradient(a, p, log_p, args, EXTRA: tl.constexpr, at):
    return a + tl.where(allowed(EXTRA, args[1], at), of_row(args[0], at), 0.0)


@triton.jit
def diagonal_gradient(a, p, log_p, args, EXTRA: tl.constexpr, at):
    return a + tl.where(at[4] == at[3] + args[1], of_row(args[0], at), 0.0)


@triton.jit
def selected_gradient(a, p, log_p, args, EXTRA: tl.constexpr, at):
    column = at[4] - args[1]
    return a + tl.where((column >= 0) & (column < args[2]), of_column(args[0], clip(column, 0, args[2] - 1), at), 0.0)


@triton.jit
def histogram_gradient(a, p, log_p, args, EXTRA: tl.constexpr, at):
    return a + of_column(args[0], clip(at[4] - at[3] - args[1], -args[2], args[2]) + args[2], at)


@triton.jit
def chosen_gradient(a, p, log_p, args, EXTRA: tl.constexpr, at):
    """To the keys of each row that args[1] has."""
    for c in tl.static_range(EXTRA[0]):
        a += tl.where(at[4] == of_column(args[1], c, at).to(tl.int32), of_column(args[0], c, at), 0.0)
    return a


FUSED = {
    "entropy": (zero, rescale_entropy, add_entropy, finish_entropy),
    "lse": (zero, keep, add_nothing, finish_lse),
    "max": (zero, keep, add_nothing, finish_max),
    "mean_distance": (zero, rescale_sum, add_distance, finish_sum),
    "mass": (zero, rescale_sum, add_mass, finish_sum),
    "diagonal": (zero, rescale_sum, add_diagonal, finish_sum),
}
SWEPT = {
    "select": (zero, keep, add_selected, finish_nothing),
    "histogram": (start_histogram, keep, add_histogram, finish_histogram),
    "topk": (start_topk, keep, add_topk, finish_topk),
    "divergence": (zero, keep, add_divergence, finish_divergence),
    "products": (zero, keep, add_products, store_sum),
    "terms": (zero, keep, add_terms, store_sum),
    "total": (zero, keep, add_total, store_sum),
}
GRADIENTS = {
    "entropy": entropy_gradient,
    "lse": no_gradient,
    "max": chosen_gradient,
    "mean_distance": distance_gradient,
    "mass": mass_gradient,
    "diagonal": diagonal_gradient,
    "select": selected_gradient,
    "histogram": histogram_gradient,
    "topk": chosen_gradient,
    "divergence": divergence_gradient,
}
