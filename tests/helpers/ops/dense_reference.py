"""Attention as the papers define it, in plain torch: the oracle for the library, with which it shares no code.

Everything arrives as plain tensors and numbers. The formulas are dense and run in the dtype of their arguments: in
float64 they are the reference, and in a kernel's own dtype they are what the kernel's errors are compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, log
from typing import Any, NamedTuple

import torch
from torch import Tensor

ADDED_ONE_BY_ONE = {"received of some": 3, "group_pool": 4}
"""So many times as far off as dense torch may these be, which adds pairwise, in sums of some hundred terms."""


class Grid(NamedTuple):
    """The indices of all cells of a matrix; they broadcast to (batch, heads, queries, keys)."""

    batch: Tensor
    head: Tensor
    query: Tensor
    position: Tensor
    """Query i stands at position i + offset among the keys."""
    key: Tensor


def grid(batch: int, heads: int, queries: int, keys: int, offset: int) -> Grid:
    """The indices of a matrix of this shape."""
    batch_index, head, query, key = (torch.arange(size) for size in (batch, heads, queries, keys))
    query = query[:, None]
    return Grid(batch_index[:, None, None, None], head[:, None, None], query, query + offset, key)


# Masks: which cells are visible.


def causal(at: Grid) -> Tensor:
    return at.key <= at.position


def window(at: Grid, left: int | None, right: int | None) -> Tensor:
    from_left = at.key >= (at.position - left if left is not None else 0)
    return from_left if right is None else from_left & (at.key <= at.position + right)


def shorter(at: Grid, lengths: Tensor) -> Tensor:
    """The first keys of each sequence; lengths (batch,)."""
    return at.key < lengths[:, None, None, None]


def same_document(of_query: Tensor, of_key: Tensor) -> Tensor:
    """Query and key belong to the same document, (batch or 1, tokens); a negative number is not a document."""
    of_query, of_key = of_query[:, None, :, None], of_key[:, None, None, :]
    return (of_query == of_key) & (of_key >= 0)


def at_position(at: Grid, ids: Tensor) -> Tensor:
    """The document of the key at each query's position, −1 where there is no such key, (1, queries); ids (keys,)."""
    known = ids.tolist()
    return torch.tensor([[known[p] if 0 <= p < len(known) else -1 for p in at.position.flatten().tolist()]])


def linked(at: Grid, edges: Tensor) -> Tensor:
    """Cells with an edge, in any order and however often it is given; edges (2, edges)."""
    is_edge = torch.zeros(len(at.query), len(at.key), dtype=torch.bool)
    for query, key in edges.T.tolist():
        is_edge[query, key] = True
    return is_edge


def in_ranges(at: Grid, starts: Tensor, stops: Tensor) -> Tensor:
    """Keys within one of a query's ranges, (batch or 1, heads or 1, queries, ranges)."""
    starts, stops = starts[:, :, :, None], stops[:, :, :, None]
    return ((at.key[:, None] >= starts) & (at.key[:, None] < stops)).any(-1)


# Scores: one number for each cell. query and key are (batch, heads, tokens, head_dim), distance = key − position.


def dot(query: Tensor, key: Tensor, scale: float) -> Tensor:
    return torch.einsum("bhqd,bhkd->bhqk", query, key) * scale


def bilinear(query: Tensor, key: Tensor, weight: Tensor, scale: float) -> Tensor:
    """The weight is (head_dim, head_dim), of each head if it has three axes."""
    weight = weight.expand(query.shape[1], -1, -1)
    return torch.einsum("bhqd,hde,bhke->bhqk", query, weight, key) * scale


def additive(query: Tensor, key: Tensor, vector: Tensor, scale: float, function: Callable[[Tensor], Tensor]) -> Tensor:
    """The vector is (head_dim,), of each head if it has two axes."""
    hidden = function(query[:, :, :, None] + key[:, :, None])
    return (hidden @ vector if vector.ndim == 1 else torch.einsum("bhqkd,hd->bhqk", hidden, vector)) * scale


def soft_cap(scores: Tensor, cap: float) -> Tensor:
    return cap * (scores / cap).tanh()


def alibi(slopes: Tensor, distance: Tensor) -> Tensor:
    return -slopes[:, None, None] * distance.abs()


def t5_bucket(distance: int, count: int, farthest: int, bidirectional: bool) -> int:
    """The number of a distance's bucket in T5."""
    first = 0
    if bidirectional:
        count //= 2
        first = count if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    exact = count // 2
    if distance < exact:
        return first + distance
    return first + min(exact + int(log(distance / exact) / log(farthest / exact) * (count - exact)), count - 1)


def t5_bias(table: Tensor, distance: Tensor, farthest: int, bidirectional: bool) -> Tensor:
    """The table is (buckets, heads)."""
    lowest, highest = int(distance.min()), int(distance.max())
    numbers = [t5_bucket(d, len(table), farthest, bidirectional) for d in range(lowest, highest + 1)]
    return table[torch.tensor(numbers)[distance - lowest]].permute(2, 0, 1)


def relative(query: Tensor, table: Tensor, distance: Tensor, scale: float) -> Tensor:
    """The table is (2k + 1, head_dim), of each head if it has three axes."""
    reach = table.shape[-2] // 2
    vectors = table[..., distance.clamp(-reach, reach) + reach, :]
    return torch.einsum("bhqd,hqkd->bhqk", query, vectors.expand(query.shape[1], -1, -1, -1)) * scale


def cosine(query: Tensor, key: Tensor, temperature: Tensor) -> Tensor:
    """Of vectors whose length is bounded from below; the temperature is (heads,)."""
    query, key = (x / (x.square().sum(-1, keepdim=True) + 1e-3).sqrt() for x in (query, key))
    return dot(query, key, 1.0) * temperature[:, None, None]


# Weights, and what is measured of them.


def softmax(scores: Tensor, cells: Tensor, sinks: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The softmax over the visible keys of each row and its log-sum-exp; a row without keys has weights 0.

    A sink, one for each head, is one more term of the denominator.
    """
    scores = scores.masked_fill(~cells, -inf)
    sink = scores.new_full((), -inf) if sinks is None else sinks[:, None].expand(scores.shape[:3])
    highest = torch.maximum(scores.detach().amax(-1), sink.detach())
    highest = highest.where(highest > -inf, 0.0)
    numerator = (scores - highest[..., None]).exp()
    denominator = numerator.sum(-1) + (sink - highest).exp()
    positive = denominator.where(denominator > 0, 1.0)
    return numerator / positive[..., None], torch.where(denominator > 0, positive.log() + highest, -inf)


def numbers_of_measures(queries: int, keys: int) -> dict[str, Any]:
    """By name: the parameters of those measures that have some."""
    size = max(1, keys // 64)  # of words, so that what is quadratic by nature stays small
    of_query, of_key = torch.arange(queries) // 3 // size, torch.arange(keys) // 4 // size
    of_query = of_query - (of_query == 2).int() * 3  # one word is dropped, and so is the first word of the keys
    return {
        "received of some": (torch.arange(queries) % 9 / 4 - 1).double(),
        "topk": min(3, keys),
        "mass": (2, 1),
        "block_mean": 5 * size,
        "diagonal": -1,
        "group_pool": (of_query, of_key - 1 if keys > 4 else of_key),
        "distance_histogram": 3,
        "squares": torch.linspace(-1, 1, keys, dtype=torch.float64),
    }


def grouped(weights: Tensor, of_query: Tensor, of_key: Tensor) -> Tensor:
    """Sums over the keys of a group, and means over the queries of one; a group of −1 is dropped."""
    sums = torch.stack([weights[..., of_key == group].sum(-1) for group in range(int(of_key.max()) + 1)], -1)
    members = [sums[..., of_query == group, :] for group in range(int(of_query.max()) + 1)]
    return torch.stack([part.sum(-2) / max(1, part.shape[-2]) for part in members], -2)


def block_mean(weights: Tensor, size: int) -> Tensor:
    rows = [row.split(size, -1) for row in weights.split(size, -2)]
    return torch.stack([torch.stack([square.mean((-1, -2)) for square in row], -1) for row in rows], -2)


def measured(
    weights: Tensor, lse: Tensor, scores: Tensor, distance: Tensor, numbers: Mapping[str, Any]
) -> dict[str, tuple[Tensor, ...]]:
    """All measures by name; the scores of hidden cells are −∞."""
    logs = weights.where(weights > 0, 1.0).log()
    of_query, of_key = (numbers[name].to(weights.dtype) for name in ("received of some", "squares"))
    left, right = numbers["mass"]
    reach = numbers["distance_histogram"]
    measures: dict[str, Tensor | tuple[Tensor, ...]] = {
        "entropy": -(weights * logs).sum(-1),
        "lse": lse,
        "received": weights.sum(-2),
        "received of some": (weights * of_query[:, None]).sum(-2),
        "topk": weights.sort(-1, descending=True).values[..., : numbers["topk"]],
        "max": (weights.amax(-1), scores.amax(-1)),
        "mean_distance": (weights * distance.abs()).sum(-1),
        "mass": (weights * ((distance < -left) | (distance > right))).sum(-1),
        "block_mean": block_mean(weights, numbers["block_mean"]),
        "diagonal": (weights * (distance == numbers["diagonal"])).sum(-1),
        "group_pool": grouped(weights, *numbers["group_pool"]),
        "distance_histogram": torch.stack(
            [(weights * (distance.clamp(-reach, reach) == d)).sum(-1) for d in range(-reach, reach + 1)], -1
        ),
        "squares": (weights**2 * of_key).sum(-1),
        "total": (weights * scores.where(scores > -inf, 0.0)).sum((-1, -2)),
    }
    return {name: measure if isinstance(measure, tuple) else (measure,) for name, measure in measures.items()}


def definition(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cells: Tensor,
    offset: int,
    score: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, dict[str, tuple[Tensor, ...]]]:
    """Output, weights, scores and all measures, dense, in the dtype of the arguments.

    Args:
        query: (batch, heads, queries, head_dim).
        key: (batch, kv_heads, keys, head_dim).
        value: (batch, kv_heads, keys, value_dim).
        cells: (batch, heads, queries, keys) Which cells are visible.
        offset: Query i stands at position i + offset.
        score: A function of query, key (as many heads) and key − position; None is the scaled dot product.
        sinks: (heads,) Logits that lead to no key.
    """
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    at = grid(*cells.shape, offset)
    distance = at.key - at.position
    scores = dot(query, key, query.shape[-1] ** -0.5) if score is None else score(query, key, distance)
    cells = cells & (scores > -inf)  # a score of −∞ hides its cell too
    scores = scores.masked_fill(~cells, -inf)
    weights, lse = softmax(scores, cells, sinks)
    numbers = numbers_of_measures(*cells.shape[2:])
    return weights @ value, weights, scores, measured(weights, lse, scores, distance, numbers)
