"""Masks and measures as the passes evaluate them: a few lines of each.

A tile holds the scores of some queries and keys. Its query indices ``q`` and key indices ``k`` broadcast to it:
(queries, 1) and (1, keys), or (1, queries) and (keys, 1) in the pass by columns, which works on the transposed tile.

- A mask is ``(allowed, keys_of, queries_of)``: which keys a query sees; the keys of the queries from ``first`` to
  ``last``; and the queries of such keys. Both ranges are ``(start, full start, full stop, stop)``: nothing outside is
  allowed, and between the full bounds everything is.
- A measure of rows is ``(rescale, add, finish)`` and starts from zero. ``p`` is exp(score − maximum of the row so far),
  ``log_p`` its base-2 logarithm; ``rescale`` serves when the maximum moves: ``shift`` is the base-2 logarithm of
  ``factor``, by which each ``p`` changes, and ``total`` their sum. ``finish`` gets the largest product of query and key
  (0 in a row without keys) and the scale that makes it a score; ``total``, 0 in a row without keys and NaN where a
  score is NaN or +∞; and ``norm``, by which ``p`` is a weight, 0 in a row without keys.
"""

from __future__ import annotations

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)
LOWEST_LOG = tl.constexpr(-1e4)  # p is 0 there; 0 · log p must not be NaN


@triton.jit
def everything(args, b, q, k):
    return q == q


@triton.jit
def all_of(args, b, first, last, count, other):
    """All ``count`` keys of a block of queries, or queries of a block of keys."""
    return 0, 0, count, count


@triton.jit
def clip(index, count):
    return tl.minimum(tl.maximum(index, 0), count)


@triton.jit
def in_window(args, b, q, k):
    """Query i sees the keys from i + args[0] to i + args[1]."""
    return (k >= q + args[0]) & (k <= q + args[1])


@triton.jit
def keys_in_window(args, b, first, last, keys, queries):
    return (
        clip(first + args[0], keys),
        clip(last + args[0], keys),
        clip(first + args[1] + 1, keys),
        clip(last + args[1] + 1, keys),
    )


@triton.jit
def queries_in_window(args, b, first, last, queries, keys):
    return (
        clip(first - args[1], queries),
        clip(last - args[1], queries),
        clip(first - args[0] + 1, queries),
        clip(last - args[0] + 1, queries),
    )


@triton.jit
def length_of(args, b, keys):
    """The number of keys before the padding of a batch entry."""
    return clip(tl.load(args[0] + b), keys).to(tl.int32)


@triton.jit
def before_padding(args, b, q, k):
    return (q == q) & (k < tl.load(args[0] + b))


@triton.jit
def keys_before_padding(args, b, first, last, keys, queries):
    length = length_of(args, b, keys)
    return 0, 0, length, length


@triton.jit
def queries_before_padding(args, b, first, last, queries, keys):
    length = length_of(args, b, keys)
    start = tl.where(first < length, 0, queries)
    return start, tl.where(last < length, 0, queries), queries, queries


@triton.jit
def keep(state, shift, factor, total):
    return state


@triton.jit
def add_nothing(state, p, log_p, args, q, k, first):
    return state


@triton.jit
def rescale_sum(state, shift, factor, total):
    return factor * state


@triton.jit
def rescale_entropy(state, shift, factor, total):
    return factor * (state + shift * total)


@triton.jit
def add_entropy(state, p, log_p, args, q, k, first):
    """Σ p log₂ p."""
    return state + tl.sum(p * tl.maximum(log_p, LOWEST_LOG), 1)


@triton.jit
def finish_entropy(state, maximum, scale, total, norm):
    """In nats; the absolute value turns −0 and what rounding leaves below it."""
    return tl.where(total == 0, 0.0, tl.abs(tl.log2(total) - state * norm) * LN2)


@triton.jit
def add_distance(state, p, log_p, args, q, k, first):
    """Σ p |position − key|, counted from the tile's first key: float32 would round large indices."""
    position = (q.to(tl.int64) + args[0] - first).to(tl.float32)
    return state + tl.sum(p * tl.abs(position - (k - first).to(tl.float32)), 1)


@triton.jit
def finish_sum(state, maximum, scale, total, norm):
    return state * norm


@triton.jit
def finish_lse(state, maximum, scale, total, norm):
    return tl.where(total == 0, float("-inf"), maximum * scale + tl.log2(total) * LN2)


@triton.jit
def finish_norm(state, maximum, scale, total, norm):
    """The largest weight, too: its ``p`` is one."""
    return norm


@triton.jit
def finish_score(state, maximum, scale, total, norm):
    score = tl.where(total == total, maximum * scale, float("nan"))
    return tl.where(total == 0, float("-inf"), score)


@triton.jit
def finish_maximum(state, maximum, scale, total, norm):
    """The largest product of query and key, from which the pass by columns starts."""
    return maximum


@triton.jit
def factor_of_row(args, b, h, rows, inside):
    """What the row's weights are multiplied by in a sum over rows: args is a tensor with its strides."""
    pointers = args[0] + b.to(tl.int64) * args[1] + h.to(tl.int64) * args[2] + rows.to(tl.int64) * args[3]
    return tl.load(pointers, mask=inside, other=0.0)


ALL = everything, all_of, all_of
WINDOW = in_window, keys_in_window, queries_in_window
PADDING = before_padding, keys_before_padding, queries_before_padding
ENTROPY = rescale_entropy, add_entropy, finish_entropy
MEAN_DISTANCE = rescale_sum, add_distance, finish_sum
LOG_SUM_EXP = keep, add_nothing, finish_lse
LARGEST_WEIGHT = NORM = keep, add_nothing, finish_norm
HIGHEST_SCORE = keep, add_nothing, finish_score
MAXIMUM = keep, add_nothing, finish_maximum
