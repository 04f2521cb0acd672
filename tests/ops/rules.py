"""Every registered mask, score and measure, and a user's own of each; masks and scores with the formula beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, log
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

from regard.ops import (
    Additive,
    Alibi,
    Bias,
    Bilinear,
    Block,
    BlockMean,
    Causal,
    Diagonal,
    DistanceHistogram,
    Documents,
    Entropy,
    GroupPool,
    LogSumExp,
    Mask,
    Mass,
    Max,
    MeanDistance,
    Measure,
    Neighbours,
    Padding,
    Prefix,
    Received,
    RelativeKey,
    ScaledDotProduct,
    Score,
    Sinks,
    SoftCap,
    T5RelativeBias,
    TopK,
    Window,
)
from regard.ops.masks import MaskOfHeads, Spans
from regard.ops.scores import ScoreOfHeads
from regard.ops.tile import Tile


class EveryThird(Mask):
    """A user's mask: an index rule and nothing else."""

    def allowed(self, cells: Tile) -> Tensor:
        return (cells.position + cells.key) % 3 == 0


def alternate(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """A user's mask as a function of indices."""
    return (batch + head + query + key) % 2 == 0


def _banded(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return (key >= query // 3) & (key < query // 3 + 20)


@dataclass(frozen=True, eq=False)
class Squares(Measure):
    """A user's measure: Σⱼ wⱼ Pᵢⱼ², with a tensor that gets a gradient."""

    weight_of_key: Tensor
    axis = "queries"

    def of(self, block: Block) -> Tensor:
        return (block.weights.square() * self.weight_of_key[block.key]).sum(-1)


class Total(Measure):
    """A user's measure that is summed over blocks: Σᵢⱼ Pᵢⱼ Sᵢⱼ of each head."""

    axis = None

    def of(self, block: Block) -> Tensor:
        return (block.weights * block.scores).sum((-1, -2))


@dataclass(frozen=True, eq=False)
class Cosine(Score):
    """A user's score, with a tensor that gets a gradient: the cosine times a temperature for each head."""

    temperature: Tensor

    def __call__(self, query: Tensor, key: Tensor, scale: float, cells: Tile) -> Tensor:
        query, key = (x / (x.square().sum(-1, keepdim=True) + 1e-3).sqrt() for x in (query, key))
        found = (query[..., None, :] @ key.mT)[..., 0, :] if key.ndim == 5 else query @ key.mT
        return found * self.temperature[cells.heads].to(query.dtype)[:, None, None]


def masks(batch: int, heads: int, queries: int, keys: int) -> dict[str, Any]:
    """By name: each kind of mask, for a matrix of this shape."""
    random = torch.Generator().manual_seed(5)
    lengths = torch.randint(0, keys + 1, (batch,), generator=random)
    lengths[0] = keys
    real = torch.rand(batch, keys, generator=random) < 0.7
    edges = torch.stack((_numbers(queries, 3 * queries, random), _numbers(keys, 3 * queries, random)))
    return {
        "none": None,
        "causal": Causal(),
        "window": Window(4, 2),
        "past": Window(None, -1),
        "future": Window(-1, None),
        "lengths": Padding(lengths),
        "padding": Padding(real),
        "prefix": Prefix(3),
        "prefixes": Prefix(lengths // 2),
        "documents": Documents(torch.arange(keys) // 7 - (torch.arange(keys) < 2).int()),
        "documents of each": Documents(
            _numbers(4, batch * keys, random).view(batch, keys) - 1,
            _numbers(4, batch * queries, random).view(batch, queries) - 1,
        ),
        "spans": Spans(*_numbers(keys + 1, 4 * batch * queries, random).view(2, batch, 1, queries, 2)),
        "spans of heads": Spans(*_numbers(keys + 1, 2 * heads * queries, random).view(2, 1, heads, queries, 1)),
        "neighbours": Neighbours(edges),
        "neighbours and": Causal() & Neighbours(edges) & Padding(lengths),
        "no edges": Neighbours(edges[:, :0]),
        "function": alternate,
        "and": Causal() & Padding(lengths) & Window(6, None),
        "or": Window(2, 0) | Padding(torch.full((batch,), min(3, keys))),
        "not": ~Window(3, 1),
        "not causal": ~Causal(),
        "not padding": ~(Padding(lengths) & Padding(lengths)),
        "own": EveryThird(),
        "nothing": torch.zeros(1, 1, dtype=torch.bool),
        "empty rows": torch.arange(queries)[:, None] % 4 != 1,
        "dense of keys": real[0],
        "of heads": MaskOfHeads(
            Causal() & (torch.rand(heads + 1, queries, 1, generator=random) < 0.8),
            torch.arange(heads, 0, -1),
            heads + 1,
        ),
        **_dense(batch, heads, queries, keys),
    }


def _dense(batch: int, heads: int, queries: int, keys: int) -> dict[str, Tensor]:
    """Masks that are of the size of the matrix while they are made; only where it is small."""
    if queries * keys > 2**20:
        return {}
    random = torch.Generator().manual_seed(6)
    return {
        "dense": torch.rand(batch, heads, queries, keys, generator=random) < 0.6,
        "block mask": create_block_mask(_banded, None, None, queries, keys, device="cpu", BLOCK_SIZE=16),
    }


def _numbers(below: int, count: int, random: torch.Generator) -> Tensor:
    return torch.randint(0, below, (count,), generator=random)


def allowed(name: str, batch: int, heads: int, queries: int, keys: int, offset: int) -> Tensor:
    """The same masks, cell by cell, (batch, heads, queries, keys)."""
    rules = masks(batch, heads, queries, keys)
    rule = rules[name]
    i = torch.arange(queries)[:, None] + offset
    j = torch.arange(keys)[None]
    lengths = rules["lengths"].keys.view(batch, 1, 1, 1)
    causal, linked = j <= i, torch.zeros(queries, keys, dtype=torch.bool)
    for query, key in rules["neighbours"].edges.T.tolist():
        linked[query, key] = True
    one = rules["documents"].ids.tolist()
    same = [[one[j] >= 0 and 0 <= i < keys and one[i] == one[j] for j in range(keys)] for i in i.flatten().tolist()]
    each = rules["documents of each"]
    of_query, of_key = each.query_ids[:, None, :, None], each.ids[:, None, None, :]
    at = torch.meshgrid(*(torch.arange(size) for size in (batch, heads, queries, keys)), indexing="ij")
    formulas = {
        "none": torch.ones(1, 1, dtype=torch.bool),
        "causal": causal,
        "window": (j >= i - 4) & (j <= i + 2),
        "past": j < i,
        "future": j > i,
        "lengths": j < lengths,
        "padding": rules["padding"].keys[:, None, None],
        "prefix": causal | (j < 3),
        "prefixes": causal | (j < lengths // 2),
        "documents": torch.tensor(same),
        "documents of each": (of_query == of_key) & (of_key >= 0),
        "neighbours": linked,
        "neighbours and": linked & causal & (j < lengths),
        "no edges": torch.zeros(1, 1, dtype=torch.bool),
        "function": sum(at) % 2 == 0,
        "block mask": (j >= at[2] // 3) & (j < at[2] // 3 + 20),
        "and": causal & (j < lengths) & (j >= i - 6),
        "or": ((j >= i - 2) & causal) | (j < 3),
        "not": ~((j >= i - 3) & (j <= i + 1)),
        **{name: _in_spans(rules[name], j) for name in ("spans", "spans of heads")},
        "not causal": j > i,
        "not padding": j >= lengths,
        "of heads": causal & rules["of heads"].rule.right.cells.flip(0)[:heads],
        "own": (i + j) % 3 == 0,
    }
    return formulas.get(name, rule).expand(batch, heads, queries, keys)


def _in_spans(rule: Spans, j: Tensor) -> Tensor:
    return ((j[..., None] >= rule.starts[:, :, :, None]) & (j[..., None] < rule.stops[:, :, :, None])).any(-1)


Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """A score, from tensors that it holds, and what it says of all cells: the scores before the mask."""

    rule: Callable[[Tensors], Score | None]
    dense: Callable[[Tensors, Tensor, Tensor, Tensor], Tensor]
    """From its tensors, query, key (a head for each query head) and the distances j − position, (queries, keys)."""
    tensors: Callable[[int, int, int, int], Tensors] = lambda heads, queries, keys, dim: {}
    """From heads, queries, keys and head_dim."""


def _random(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _dot(query: Tensor, key: Tensor) -> Tensor:
    return torch.einsum("bhqd,bhkd->bhqk", query, key) * query.shape[-1] ** -0.5


def _bucket(distance: int, count: int, farthest: int, both: bool) -> int:
    """T5's bucket of a distance, in plain numbers."""
    first = 0
    if both:
        count //= 2
        first = count if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    exact = count // 2
    if distance < exact:
        return first + distance
    return first + min(exact + int(log(distance / exact) / log(farthest / exact) * (count - exact)), count - 1)


def _buckets(table: Tensor, distance: Tensor, farthest: int, both: bool) -> Tensor:
    numbers = [[_bucket(d, len(table), farthest, both) for d in row] for row in distance.tolist()]
    return table[torch.tensor(numbers)].permute(2, 0, 1)


def _relative(table: Tensor, query: Tensor, distance: Tensor) -> Tensor:
    reach = table.shape[-2] // 2
    vectors = table[..., distance.clamp(-reach, reach) + reach, :]  # what the rule never makes
    return torch.einsum("bhqd,...qkd->bhqk" if table.ndim == 2 else "bhqd,hqkd->bhqk", query, vectors)


def _with_holes(heads: int, queries: int, keys: int) -> Tensor:
    return _random(heads, queries, keys).masked_fill(_random(heads, queries, keys, seed=4) > 0.7, -inf)


SCORES: dict[str, Case] = {
    "scaled_dot": Case(lambda t: None, lambda t, q, k, d: _dot(q, k)),
    "general": Case(
        lambda t: Bilinear(t["w"]),
        lambda t, q, k, d: torch.einsum("bhqd,de,bhke->bhqk", q, t["w"], k),
        lambda h, n, m, d: {"w": _random(d, d) / d},
    ),
    "general of heads": Case(
        lambda t: Bilinear(t["w"]),
        lambda t, q, k, d: torch.einsum("bhqd,hde,bhke->bhqk", q, t["w"], k),
        lambda h, n, m, d: {"w": _random(h, d, d) / d},
    ),
    "additive": Case(
        lambda t: Additive(t["v"]),
        lambda t, q, k, d: (q[:, :, :, None] + k[:, :, None]).tanh() @ t["v"],
        lambda h, n, m, d: {"v": _random(d)},
    ),
    "additive as in GAT": Case(
        lambda t: Additive(t["v"], "leaky_relu"),
        lambda t, q, k, d: torch.einsum(
            "bhqkd,hd->bhqk",
            torch.nn.functional.leaky_relu(q[:, :, :, None] + k[:, :, None], 0.2),
            t["v"],
        ),
        lambda h, n, m, d: {"v": _random(h, d)},
    ),
    "soft_cap": Case(lambda t: SoftCap(ScaledDotProduct(), 1.5), lambda t, q, k, d: 1.5 * (_dot(q, k) / 1.5).tanh()),
    "bias": Case(
        lambda t: ScaledDotProduct() + Bias(t["b"]),
        lambda t, q, k, d: _dot(q, k) + t["b"],
        lambda h, n, m, d: {"b": _random(h, n, m)},
    ),
    "bias that forbids": Case(
        lambda t: ScaledDotProduct() + Bias(t["b"]),
        lambda t, q, k, d: _dot(q, k) + t["b"],
        lambda h, n, m, d: {"b": _with_holes(1, n, m)},
    ),
    "bias of keys alone": Case(
        lambda t: Bias(t["b"]),
        lambda t, q, k, d: t["b"].expand(*q.shape[:3], -1),
        lambda h, n, m, d: {"b": _random(m)},
    ),
    "alibi": Case(
        lambda t: ScaledDotProduct() + Alibi(t["m"]),
        lambda t, q, k, d: _dot(q, k) - t["m"][:, None, None] * d.abs(),
        lambda h, n, m, d: {"m": _random(h).abs() / 8},
    ),
    "buckets": Case(
        lambda t: ScaledDotProduct() + T5RelativeBias(t["t"], max_distance=20),
        lambda t, q, k, d: _dot(q, k) + _buckets(t["t"], d, 20, True),
        lambda h, n, m, d: {"t": _random(8, h)},
    ),
    "buckets of the past": Case(
        lambda t: ScaledDotProduct() + T5RelativeBias(t["t"], bidirectional=False),
        lambda t, q, k, d: _dot(q, k) + _buckets(t["t"], d, 128, False),
        lambda h, n, m, d: {"t": _random(6, h)},
    ),
    "relative": Case(
        lambda t: ScaledDotProduct() + RelativeKey(t["a"]),
        lambda t, q, k, d: _dot(q, k) + _relative(t["a"], q, d) * q.shape[-1] ** -0.5,
        lambda h, n, m, d: {"a": _random(7, d)},
    ),
    "relative of heads": Case(
        lambda t: RelativeKey(t["a"]),
        lambda t, q, k, d: _relative(t["a"], q, d),
        lambda h, n, m, d: {"a": _random(h, 3, d) / 4},
    ),
    "sinks": Case(
        lambda t: Sinks(ScaledDotProduct(), t["sinks"]),
        lambda t, q, k, d: _dot(q, k),
        lambda h, n, m, d: {"sinks": _random(h)},
    ),
    "several": Case(
        lambda t: SoftCap(ScaledDotProduct(), 2.0) + Bias(t["b"]) + Sinks(Alibi(t["m"]), t["sinks"]),
        lambda t, q, k, d: 2 * (_dot(q, k) / 2).tanh() + t["b"] - t["m"][:, None, None] * d.abs(),
        lambda h, n, m, d: {"b": _random(n, 1), "m": _random(h).abs() / 8, "sinks": _random(h)},
    ),
    "alibi of heads": Case(
        lambda t: ScoreOfHeads(
            ScaledDotProduct() + Alibi(t["m"]), torch.arange(1, len(t["m"]), device=t["m"].device), len(t["m"])
        ),
        lambda t, q, k, d: _dot(q, k) - t["m"][1:, None, None] * d.abs(),
        lambda h, n, m, d: {"m": _random(h + 1).abs() / 8},
    ),
    "own": Case(
        lambda t: Cosine(t["t"]),
        lambda t, q, k, d: _dot(*(x / (x.square().sum(-1, keepdim=True) + 1e-3).sqrt() for x in (q, k)))
        * (q.shape[-1] ** 0.5 * t["t"][:, None, None]),
        lambda h, n, m, d: {"t": _random(h)},
    ),
}  # fmt: skip
"""By name; those of the registry first in their order, then variants and a user's own. A tensor named sinks is one."""


def measures(queries: int, keys: int) -> dict[str, Measure]:
    """By name: each registered measure, and users' own."""
    size = max(1, keys // 64)  # of words; what is quadratic by nature stays small
    words = torch.arange(queries) // 3 // size, torch.arange(keys) // 4 // size
    return {
        "entropy": Entropy(),
        "lse": LogSumExp(),
        "received": Received(),
        "received of some": Received(torch.linspace(-1, 1, queries, dtype=torch.float64)),
        "topk": TopK(min(3, keys)),
        "max": Max(),
        "mean_distance": MeanDistance(),
        "mass": Mass(~Window(2, 1)),
        "block_mean": BlockMean(5 * size),
        "diagonal": Diagonal(-1),
        "group_pool": GroupPool(words[0] - (words[0] == 2).int() * 3, words[1] - 1 if keys > 4 else words[1]),
        "distance_histogram": DistanceHistogram(3),
        "squares": Squares(torch.linspace(-1, 1, keys, dtype=torch.float64)),
        "total": Total(),
    }
