"""The calls that kernels are compared on: masks, scores, measures and shapes that take different ways through a kernel.

`regard check` runs each of them once, and the tests combine them and add the formula of each. A rule is made from plain
tensors and numbers, from which the tests compute the same by its formula.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.diagnostics.calls import Call, Tensors
from regard.ops.masks import Causal, Documents, Neighbors, Padding, Prefix, Spans, Window, as_mask
from regard.ops.measures import (
    BlockMean,
    Diagonal,
    DistanceHistogram,
    Entropy,
    GroupPool,
    LogSumExp,
    Mass,
    Max,
    MeanDistance,
    Measure,
    Received,
    TopK,
)
from regard.ops.scores import (
    Additive,
    Alibi,
    Bias,
    Bilinear,
    RelativeKey,
    RelativeQuery,
    ScaledDotProduct,
    Score,
    ScoreMod,
    Sinks,
    SoftCap,
    T5RelativeBias,
)

Parameters = dict[str, Any]


class Shape(NamedTuple):
    """The sizes of a call."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_dim: int
    value_dim: int

    @classmethod
    def of(cls, matrix: tuple[int, int, int, int], head_dim: int) -> Shape:
        """From (batch, heads, queries, keys), with a key and value head for each query head."""
        batch, heads, queries, keys = matrix
        return cls(batch, heads, heads, queries, keys, head_dim, head_dim)

    @property
    def matrix(self) -> tuple[int, int, int, int]:
        """(batch, heads, queries, keys)."""
        return self.batch, self.heads, self.queries, self.keys


SHAPES = {
    "square": Shape(2, 4, 4, 33, 33, 8, 8),
    "one query": Shape(2, 4, 4, 1, 20, 8, 8),
    "one key": Shape(1, 2, 2, 5, 1, 4, 4),
    "one of each": Shape(1, 1, 1, 1, 1, 1, 1),
    "grouped": Shape(2, 6, 2, 20, 31, 8, 5),
    "one kv head": Shape(3, 4, 1, 17, 9, 4, 8),
    "blocks": Shape(1, 2, 1, 300, 270, 4, 6),
    "more queries than keys": Shape(1, 2, 2, 40, 13, 4, 4),
    "one query and many keys": Shape(2, 2, 1, 1, 700, 8, 4),
    "one more than blocks": Shape(2, 2, 2, 257, 129, 4, 4),
    "many lengths": Shape(5, 2, 1, 19, 23, 4, 4),
}
"""Small, because errors of kernels are at the edges of blocks and of what masks allow."""


@dataclass(frozen=True, eq=False)
class MaskCase:
    """A mask.

    Args:
        rule: The mask, or what becomes one, from the parameters.
        parameters: Tensors and numbers, from batch, heads, queries and keys.
    """

    rule: Callable[[Parameters], Any]
    parameters: Callable[[int, int, int, int], Parameters] = lambda batch, heads, queries, keys: {}


@dataclass(frozen=True, eq=False)
class ScoreCase:
    """A score.

    Args:
        rule: The score, from its tensors; None for the default.
        tensors: Tensors in float64 that get gradients, from heads, queries, keys and head_dim; one named ``sinks``
            takes part in the softmax.
    """

    rule: Callable[[Tensors], Score | None]
    tensors: Callable[[int, int, int, int], Tensors] = lambda heads, queries, keys, head_dim: {}


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _integers(below: int, *shape: int, seed: int) -> Tensor:
    return torch.randint(0, below, shape, generator=_generator(seed))


def _chance(probability: float, *shape: int, seed: int) -> Tensor:
    return torch.rand(shape, generator=_generator(seed)) < probability


def _normal(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(shape, generator=_generator(seed), dtype=torch.float64)


def _lengths(batch: int, keys: int) -> Tensor:
    """Most keys, all, none, one, all but one."""
    kinds = (2 * keys + 2) // 3, keys, 0, 1, keys - 1
    return torch.tensor([kinds[number % len(kinds)] for number in range(batch)])


def _edges(queries: int, keys: int) -> Parameters:
    """In no order, and some of them twice."""
    edges = torch.stack((_integers(queries, 3 * queries, seed=7), _integers(keys, 3 * queries, seed=8)))
    return {"edges": torch.cat((edges, edges[:, : queries // 2]), 1)}


def _ranges(batch: int, heads: int, queries: int, keys: int, count: int) -> Parameters:
    starts, stops = _integers(keys + 1, 2, batch, heads, queries, count, seed=9)
    return {"starts": starts, "stops": stops}


def _alternate(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return (batch + head + query + key) % 2 == 0


def _with_lengths(rule: Callable[[Parameters], Any]) -> MaskCase:
    return MaskCase(rule, lambda b, h, n, m: {"lengths": _lengths(b, m)})


MASKS = {
    "none": MaskCase(lambda p: None),
    "causal": MaskCase(lambda p: Causal()),
    "window": MaskCase(lambda p: Window(4, 2)),
    "past": MaskCase(lambda p: Window(None, -1)),
    "future": MaskCase(lambda p: Window(-1, None)),
    "lengths": _with_lengths(lambda p: Padding(p["lengths"])),
    "padding": MaskCase(lambda p: Padding(p["real"]), lambda b, h, n, m: {"real": _chance(0.7, b, m, seed=5)}),
    "prefix": MaskCase(lambda p: Prefix(3)),
    "prefixes": MaskCase(lambda p: Prefix(p["lengths"]), lambda b, h, n, m: {"lengths": _lengths(b, m) // 2}),
    "documents": MaskCase(
        lambda p: Documents(p["ids"]),
        lambda b, h, n, m: {"ids": torch.arange(m) // 7 - (torch.arange(m) < 2).int()},
    ),
    "documents of each": MaskCase(
        lambda p: Documents(p["of keys"], p["of queries"]),
        lambda b, h, n, m: {"of keys": _integers(4, b, m, seed=5) - 1, "of queries": _integers(4, b, n, seed=6) - 1},
    ),
    "spans": MaskCase(lambda p: Spans(p["starts"], p["stops"]), lambda b, h, n, m: _ranges(b, 1, n, m, 2)),
    "spans of heads": MaskCase(lambda p: Spans(p["starts"], p["stops"]), lambda b, h, n, m: _ranges(1, h, n, m, 1)),
    "neighbors": MaskCase(lambda p: Neighbors(*p["edges"]), lambda b, h, n, m: _edges(n, m)),
    "neighbors and": MaskCase(
        lambda p: Causal() & Neighbors(*p["edges"]) & Padding(p["lengths"]),
        lambda b, h, n, m: _edges(n, m) | {"lengths": _lengths(b, m)},
    ),
    "no edges": MaskCase(lambda p: Neighbors(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))),
    "function": MaskCase(lambda p: _alternate),
    "and": _with_lengths(lambda p: Causal() & Padding(p["lengths"]) & Window(6, None)),
    "or": MaskCase(
        lambda p: Window(2, 0) | Padding(p["lengths"]), lambda b, h, n, m: {"lengths": torch.full((b,), min(3, m))}
    ),
    "not": MaskCase(lambda p: ~Window(3, 1)),
    "not causal": MaskCase(lambda p: ~Causal()),
    "not padding": _with_lengths(lambda p: ~(Padding(p["lengths"]) & Padding(p["lengths"]))),
    "nothing": MaskCase(lambda p: torch.zeros(1, 1, dtype=torch.bool)),
    "empty rows": MaskCase(lambda p: p["cells"], lambda b, h, n, m: {"cells": torch.arange(n)[:, None] % 4 != 1}),
    "dense of keys": MaskCase(lambda p: p["cells"], lambda b, h, n, m: {"cells": _chance(0.7, m, seed=5)}),
    "dense": MaskCase(lambda p: p["cells"], lambda b, h, n, m: {"cells": _chance(0.6, b, h, n, m, seed=6)}),
}

SCORES = {
    "scaled_dot": ScoreCase(lambda t: None),
    "bilinear": ScoreCase(lambda t: Bilinear(t["w"]), lambda h, n, m, dim: {"w": _normal(dim, dim) / dim}),
    "bilinear of heads": ScoreCase(lambda t: Bilinear(t["w"]), lambda h, n, m, dim: {"w": _normal(h, dim, dim) / dim}),
    "additive": ScoreCase(lambda t: Additive(t["v"]), lambda h, n, m, dim: {"v": _normal(dim)}),
    "additive as in GAT": ScoreCase(
        lambda t: Additive(t["v"], "leaky_relu"), lambda h, n, m, dim: {"v": _normal(h, dim)}
    ),
    "soft_cap": ScoreCase(lambda t: SoftCap(ScaledDotProduct(), 1.5)),
    "bias": ScoreCase(lambda t: ScaledDotProduct() + Bias(t["b"]), lambda h, n, m, dim: {"b": _normal(h, n, m)}),
    "bias that forbids": ScoreCase(
        lambda t: ScaledDotProduct() + Bias(t["b"]),
        lambda h, n, m, dim: {"b": _normal(1, n, m).masked_fill(_normal(1, n, m, seed=4) > 0.7, -inf)},
    ),
    "bias of keys alone": ScoreCase(lambda t: Bias(t["b"]), lambda h, n, m, dim: {"b": _normal(m)}),
    "alibi": ScoreCase(lambda t: ScaledDotProduct() + Alibi(t["m"]), lambda h, n, m, dim: {"m": _normal(h).abs() / 8}),
    "t5_bias": ScoreCase(
        lambda t: ScaledDotProduct() + T5RelativeBias(t["t"], max_distance=20),
        lambda h, n, m, dim: {"t": _normal(8, h)},
    ),
    "t5_bias of the past": ScoreCase(
        lambda t: ScaledDotProduct() + T5RelativeBias(t["t"], bidirectional=False),
        lambda h, n, m, dim: {"t": _normal(6, h)},
    ),
    "relative": ScoreCase(
        lambda t: ScaledDotProduct() + RelativeKey(t["a"]), lambda h, n, m, dim: {"a": _normal(7, dim)}
    ),
    "relative of heads": ScoreCase(lambda t: RelativeKey(t["a"]), lambda h, n, m, dim: {"a": _normal(h, 3, dim) / 4}),
    "function": ScoreCase(
        lambda t: ScoreMod(ScaledDotProduct(), lambda score, b, h, i, j: t["c"][h] * score + t["m"][h][i, 0] * (j % 3)),
        lambda h, n, m, dim: {"c": _normal(h), "m": _normal(h, n, 1)},
    ),
    "relative query": ScoreCase(
        lambda t: ScaledDotProduct() + RelativeKey(t["a"]) + RelativeQuery(t["b"]),
        lambda h, n, m, dim: {"a": _normal(7, dim), "b": _normal(h, 7, dim)},
    ),
    "sinks": ScoreCase(lambda t: Sinks(ScaledDotProduct(), t["sinks"]), lambda h, n, m, dim: {"sinks": _normal(h)}),
    "several": ScoreCase(
        lambda t: SoftCap(ScaledDotProduct(), 2.0) + Bias(t["b"]) + Sinks(Alibi(t["m"]), t["sinks"]),
        lambda h, n, m, dim: {"b": _normal(n, 1), "m": _normal(h).abs() / 8, "sinks": _normal(h)},
    ),
}


def measures(queries: int, keys: int) -> dict[str, Measure]:
    """Each measure of one matrix, by name."""
    size = max(1, keys // 64)  # of words, so that what is quadratic by nature stays small
    query_groups, key_groups = torch.arange(queries) // 3 // size, torch.arange(keys) // 4 // size
    query_groups = query_groups - (query_groups == 2).int() * 3  # one word is dropped, and so is the keys' first one
    return {
        "entropy": Entropy(),
        "lse": LogSumExp(),
        "received": Received(),
        "received of some": Received(torch.arange(queries) % 9 / 4 - 1),
        "topk": TopK(min(3, keys)),
        "max": Max(),
        "mean_distance": MeanDistance(),
        "mass": Mass(~Window(2, 1)),
        "block_mean": BlockMean(5 * size),
        "diagonal": Diagonal(-1),
        "group_pool": GroupPool(query_groups, key_groups - 1 if keys > 4 else key_groups),
        "distance_histogram": DistanceHistogram(3),
    }


@dataclass(frozen=True, eq=False)
class Case:
    """A call, without its dtype and device.

    Args:
        name: What is special about it.
        mask: The mask.
        score: The score.
        shape: The sizes.
        offset: Query i has position i + offset; None for the default.
        scale: Factor of the raw scores; None for the default.
        measures: By name, from queries and keys.
    """

    name: str
    mask: MaskCase = MASKS["none"]
    score: ScoreCase = SCORES["scaled_dot"]
    shape: Shape = SHAPES["square"]
    offset: int | None = None
    scale: float | None = None
    measures: Callable[[int, int], dict[str, Measure]] = measures

    def call(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> Call:
        """The call: the same numbers whatever the device, and in each dtype rounded from those in float64.

        Query, key and value have the layout that projecting and splitting heads leaves behind.
        """
        batch, heads, kv_heads, queries, keys, head_dim, value_dim = self.shape
        random = _generator(1)
        sizes = (queries, heads, head_dim), (keys, kv_heads, head_dim), (keys, kv_heads, value_dim)
        query, key, value = (
            torch.randn(batch, *size, generator=random, dtype=torch.float64).transpose(1, 2) for size in sizes
        )
        tensors = {"query": query, "key": key, "value": value} | self.score.tensors(heads, queries, keys, head_dim)
        rule = self.mask.rule(self.mask.parameters(*self.shape.matrix))
        mask = None if rule is None else as_mask(rule).to(device)
        call = Call(
            tensors,
            lambda own: {"mask": mask, "score": self.score.rule(own), "offset": self.offset, "scale": self.scale},
            {name: measure.to(device) for name, measure in self.measures(queries, keys).items()},
        )
        return call.to(dtype, device)


CASES = (
    *(Case(name, shape=shape) for name, shape in SHAPES.items()),
    *(Case(f"causal, {name}", MASKS["causal"], shape=shape) for name, shape in SHAPES.items()),
    *(Case(f"mask {name}", mask) for name, mask in MASKS.items() if name not in ("none", "causal")),
    *(Case(f"score {name}", score=score) for name, score in SCORES.items() if name != "scaled_dot"),
    Case("causal, 600 tokens, head_dim 40", MASKS["causal"], shape=Shape(1, 2, 1, 600, 600, 40, 40)),
    Case("causal, ALiBi", MASKS["causal"], SCORES["alibi"]),
    Case("causal, sinks", MASKS["causal"], SCORES["sinks"]),
    Case("window, soft-cap", MASKS["window"], SCORES["soft_cap"]),
)
"""What `regard check` runs."""
