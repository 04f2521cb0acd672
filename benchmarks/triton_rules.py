"""Masks, score terms and measures as rules for the Triton kernels of `triton_passes.py`: a few lines of each.

A tile holds the scores of some queries and keys. Its query indices ``q`` and key indices ``k`` broadcast to the tile,
(queries, 1) and (1, keys), or (1, queries) and (keys, 1) where a kernel works on the transposed tile. Scores are in
units of log 2, so that a weight is ``exp2(score - lse)``.

- A mask is ``(allowed, keys_of, queries_of)``: which keys a query sees; the keys of a block of queries, and the queries
  of a block of keys, as ``(start, full start, full stop, stop)``: between the full bounds all pairs are allowed.
- A score is ``add(x, args, b, h, q, k)``.
- A measure of rows is ``(rescale, add, finish)`` and starts from zero. In a sweep ``p`` is the weight and ``log_p`` its
  base-2 logarithm. While the forward pass runs, both are relative to the row's current maximum; ``rescale`` serves
  when that moves, by ``shift``, and ``finish`` gets ``norm``, the factor that makes the sum of ``p`` one, and its
  logarithm.
- A measure of columns is ``add(state, p, args, b, h, q)``.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

Rule = Any  # a triton.JITFunction, or a tuple of them
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def everything(args, b, h, q, k):
    return q == q


@triton.jit
def all_of(args, first, last, queries, keys, n):
    """All n keys of a block of queries, or all n queries of a block of keys."""
    return 0, 0, n, n


@triton.jit
def causal(args, b, h, q, k):
    """Query i sees the keys up to i + offset."""
    return k <= q + args[0]


@triton.jit
def causal_keys(args, first, last, queries, keys, n):
    """Keys of the queries from ``first`` to ``last``."""
    return 0, 0, tl.minimum(tl.maximum(first + args[0] + 1, 0), n), tl.minimum(tl.maximum(last + args[0] + 1, 0), n)


@triton.jit
def causal_queries(args, first, last, queries, keys, n):
    """Queries of the keys from ``first`` to ``last``."""
    return tl.minimum(tl.maximum(first - args[0], 0), n), tl.minimum(tl.maximum(last - args[0], 0), n), n, n


@triton.jit
def plain(x, args, b, h, q, k):
    """The dot product alone."""
    return x


@triton.jit
def alibi(x, args, b, h, q, k):
    """The head's slope, divided by log 2, times the distance."""
    return x - tl.load(args[0] + h) * tl.abs(q.to(tl.float32) + args[1] - k.to(tl.float32))


@triton.jit
def rescale_entropy(state, shift, factor, total):
    return factor * (state + shift * total)


@triton.jit
def add_entropy(state, p, log_p, args, b, h, q, k):
    """Σ p log₂ p."""
    return state + tl.sum(p * log_p, 1)


@triton.jit
def finish_entropy(state, norm, log_norm):
    """In nats; a row without keys has norm 0."""
    return tl.where(norm > 0, -(state * norm + log_norm) * LN2, 0.0)


@triton.jit
def rescale_sum(state, shift, factor, total):
    return factor * state


@triton.jit
def add_distance(state, p, log_p, args, b, h, q, k):
    """Σ p |position of the query − key|."""
    return state + tl.sum(p * tl.abs(q.to(tl.float32) + args[0] - k.to(tl.float32)), 1)


@triton.jit
def add_mass(state, p, log_p, args, b, h, q, k):
    """Σ p times a number for each key, (batch, heads, keys)."""
    pointers = args[0] + (b * args[2] + h) * args[1] + k
    return state + tl.sum(p * tl.load(pointers, mask=k < args[1], other=0.0), 1)


@triton.jit
def finish_sum(state, norm, log_norm):
    return state * norm


@triton.jit
def keep(state, shift, factor, total):
    return state


@triton.jit
def add_max(state, p, log_p, args, b, h, q, k):
    """The largest weight, in a sweep."""
    return tl.maximum(state, tl.max(p, 1))


@triton.jit
def add_nothing(state, p, log_p, args, b, h, q, k):
    return state


@triton.jit
def finish_fused_max(state, norm, log_norm):
    """In the forward pass the largest ``p`` of a row is one."""
    return norm


@triton.jit
def add_received(state, p, args, b, h, q):
    """Σ p over queries; a program holds the transposed tile."""
    return state + tl.sum(p, 1)


ALL: Rule = (everything, all_of, all_of)
CAUSAL: Rule = (causal, causal_keys, causal_queries)
ENTROPY: Rule = (rescale_entropy, add_entropy, finish_entropy)
MEAN_DISTANCE: Rule = (rescale_sum, add_distance, finish_sum)
MASS: Rule = (rescale_sum, add_mass, finish_sum)
MAX: Rule = (keep, add_max, finish_sum)
FUSED_MAX: Rule = (keep, add_nothing, finish_fused_max)
