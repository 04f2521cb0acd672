"""Every mask, score and measure, with a user's own of each: the library's rule beside the definition's formula.

A case holds plain tensors and numbers. The library's rule and the formula are each made from them, and from nothing
that the other has made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask
from torch.nn.functional import leaky_relu

from helpers.ops import dense_reference as d
from regard.ops.kernels.base import Kernel
from regard.ops.kernels.blocks import CPU
from regard.ops.kernels.blockwise import Blockwise
from regard.ops.kernels.dispatch import KERNELS
from regard.ops.masks import Causal, Documents, Mask, Neighbours, Padding, Prefix, Spans, Window
from regard.ops.masks.base import as_mask, find_part
from regard.ops.measures import (
    Block,
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
    ScaledDotProduct,
    Score,
    Sinks,
    SoftCap,
    T5RelativeBias,
)
from regard.ops.tile import Tile
from regard.ops.tree import subtrees

CPU_KERNELS = tuple(kernel for kernel in KERNELS if kernel.devices is None or "cpu" in kernel.devices)

Parameters = dict[str, Any]
"""What a case is made of: tensors and numbers by name."""
Tensors = dict[str, Tensor]


class EveryThird(Mask):
    """A user's mask: an index rule and nothing else."""

    def allowed(self, tile: Tile) -> Tensor:
        return (tile.q_pos + tile.kv_idx) % 3 == 0


def alternate(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """A user's mask as a function of indices."""
    return (batch + head + query + key) % 2 == 0


def _banded(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return (key >= query // 3) & (key < query // 3 + 20)


class Squares(Measure):
    """A user's measure: Σⱼ wⱼ Pᵢⱼ², with a tensor that gets a gradient."""

    weight_of_key: Tensor
    axis = "queries"

    def compute(self, block: Block) -> Tensor:
        return (block.weights.square() * self.weight_of_key[block.kv_idx]).sum(-1)


class Total(Measure):
    """A user's measure that is summed over blocks: Σᵢⱼ Pᵢⱼ Sᵢⱼ of each head."""

    axis = None

    def compute(self, block: Block) -> Tensor:
        return (block.weights * block.scores).sum((-1, -2))


class Cosine(Score):
    """A user's score, with a tensor that gets a gradient: the cosine times a temperature for each head."""

    temperature: Tensor

    def __call__(self, query: Tensor, key: Tensor, scale: float, tile: Tile) -> Tensor:
        query, key = (x / (x.square().sum(-1, keepdim=True) + 1e-3).sqrt() for x in (query, key))
        cosine = (query[..., None, :] @ key.mT)[..., 0, :] if key.ndim == 5 else query @ key.mT
        return cosine * self.temperature[tile.heads].to(query.dtype)[:, None, None]


@dataclass(frozen=True)
class MaskCase:
    """A mask."""

    rule: Callable[[Parameters], Any]
    """The library's, or what becomes one."""
    visible: Callable[[Parameters, d.Grid], Tensor]
    """The definition: a bool that broadcasts to (batch, heads, queries, keys)."""
    parameters: Callable[[int, int, int, int], Parameters] = lambda batch, heads, queries, keys: {}
    """From batch, heads, queries and keys."""


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _numbers(below: int, *shape: int, seed: int) -> Tensor:
    return torch.randint(0, below, shape, generator=_generator(seed))


def _chance(probability: float, *shape: int, seed: int) -> Tensor:
    return torch.rand(shape, generator=_generator(seed)) < probability


def _lengths(batch: int, keys: int) -> Tensor:
    """Most keys, all, none, one, all but one."""
    kinds = (2 * keys + 2) // 3, keys, 0, 1, keys - 1
    return torch.tensor([kinds[number % len(kinds)] for number in range(batch)])


def _edges(queries: int, keys: int) -> Tensor:
    """In no order, and some of them twice."""
    edges = torch.stack((_numbers(queries, 3 * queries, seed=7), _numbers(keys, 3 * queries, seed=8)))
    return torch.cat((edges, edges[:, : queries // 2]), 1)


def _ranges(batch: int, heads: int, queries: int, keys: int, count: int) -> Parameters:
    starts, stops = _numbers(keys + 1, 2, batch, heads, queries, count, seed=9)
    return {"starts": starts, "stops": stops}


MASKS: dict[str, MaskCase] = {
    "none": MaskCase(lambda p: None, lambda p, at: torch.ones(1, dtype=torch.bool)),
    "causal": MaskCase(lambda p: Causal(), lambda p, at: d.causal(at)),
    "window": MaskCase(lambda p: Window(4, 2), lambda p, at: d.window(at, 4, 2)),
    "past": MaskCase(lambda p: Window(None, -1), lambda p, at: d.window(at, None, -1)),
    "future": MaskCase(lambda p: Window(-1, None), lambda p, at: d.window(at, -1, None)),
    "lengths": MaskCase(
        lambda p: Padding(p["lengths"]),
        lambda p, at: d.shorter(at, p["lengths"]),
        lambda b, h, n, m: {"lengths": _lengths(b, m)},
    ),
    "padding": MaskCase(
        lambda p: Padding(p["real"]),
        lambda p, at: p["real"][:, None, None],
        lambda b, h, n, m: {"real": _chance(0.7, b, m, seed=5)},
    ),
    "prefix": MaskCase(lambda p: Prefix(3), lambda p, at: d.causal(at) | (at.key < 3)),
    "prefixes": MaskCase(
        lambda p: Prefix(p["lengths"]),
        lambda p, at: d.causal(at) | d.shorter(at, p["lengths"]),
        lambda b, h, n, m: {"lengths": _lengths(b, m) // 2},
    ),
    "documents": MaskCase(
        lambda p: Documents(p["ids"]),
        lambda p, at: d.same_document(d.at_position(at, p["ids"]), p["ids"][None]),
        lambda b, h, n, m: {"ids": torch.arange(m) // 7 - (torch.arange(m) < 2).int()},
    ),
    "documents of each": MaskCase(
        lambda p: Documents(p["of keys"], p["of queries"]),
        lambda p, at: d.same_document(p["of queries"], p["of keys"]),
        lambda b, h, n, m: {"of keys": _numbers(4, b, m, seed=5) - 1, "of queries": _numbers(4, b, n, seed=6) - 1},
    ),
    "spans": MaskCase(
        lambda p: Spans(p["starts"], p["stops"]),
        lambda p, at: d.in_ranges(at, p["starts"], p["stops"]),
        lambda b, h, n, m: _ranges(b, 1, n, m, 2),
    ),
    "spans of heads": MaskCase(
        lambda p: Spans(p["starts"], p["stops"]),
        lambda p, at: d.in_ranges(at, p["starts"], p["stops"]),
        lambda b, h, n, m: _ranges(1, h, n, m, 1),
    ),
    "neighbours": MaskCase(
        lambda p: Neighbours(*p["edges"]),
        lambda p, at: d.linked(at, p["edges"]),
        lambda b, h, n, m: {"edges": _edges(n, m)},
    ),
    "neighbours and": MaskCase(
        lambda p: Causal() & Neighbours(*p["edges"]) & Padding(p["lengths"]),
        lambda p, at: d.causal(at) & d.linked(at, p["edges"]) & d.shorter(at, p["lengths"]),
        lambda b, h, n, m: {"edges": _edges(n, m), "lengths": _lengths(b, m)},
    ),
    "no edges": MaskCase(
        lambda p: Neighbours(*torch.zeros(2, 0, dtype=torch.int64)), lambda p, at: torch.zeros(1, dtype=torch.bool)
    ),
    "function": MaskCase(lambda p: alternate, lambda p, at: (at.batch + at.head + at.query + at.key).remainder(2) == 0),
    "and": MaskCase(
        lambda p: Causal() & Padding(p["lengths"]) & Window(6, None),
        lambda p, at: d.causal(at) & d.shorter(at, p["lengths"]) & d.window(at, 6, None),
        lambda b, h, n, m: {"lengths": _lengths(b, m)},
    ),
    "or": MaskCase(
        lambda p: Window(2, 0) | Padding(p["lengths"]),
        lambda p, at: d.window(at, 2, 0) | d.shorter(at, p["lengths"]),
        lambda b, h, n, m: {"lengths": torch.full((b,), min(3, m))},
    ),
    "not": MaskCase(lambda p: ~Window(3, 1), lambda p, at: ~d.window(at, 3, 1)),
    "not causal": MaskCase(lambda p: ~Causal(), lambda p, at: at.key > at.position),
    "not padding": MaskCase(
        lambda p: ~(Padding(p["lengths"]) & Padding(p["lengths"])),
        lambda p, at: ~d.shorter(at, p["lengths"]),
        lambda b, h, n, m: {"lengths": _lengths(b, m)},
    ),
    "own": MaskCase(lambda p: EveryThird(), lambda p, at: (at.position + at.key).remainder(3) == 0),
    "nothing": MaskCase(lambda p: torch.zeros(1, 1, dtype=torch.bool), lambda p, at: torch.zeros(1, dtype=torch.bool)),
    "empty rows": MaskCase(
        lambda p: p["cells"],
        lambda p, at: p["cells"],
        lambda b, h, n, m: {"cells": torch.arange(n)[:, None] % 4 != 1},
    ),
    "dense of keys": MaskCase(
        lambda p: p["cells"], lambda p, at: p["cells"], lambda b, h, n, m: {"cells": _chance(0.7, m, seed=5)}
    ),
    "dense": MaskCase(
        lambda p: p["cells"], lambda p, at: p["cells"], lambda b, h, n, m: {"cells": _chance(0.6, b, h, n, m, seed=6)}
    ),
    "block mask": MaskCase(
        lambda p: create_block_mask(_banded, None, None, p["queries"], p["keys"], device="cpu", BLOCK_SIZE=16),
        lambda p, at: (at.key >= at.query // 3) & (at.key < at.query // 3 + 20),
        lambda b, h, n, m: {"queries": n, "keys": m},
    ),
}
"""By name."""

AS_LARGE_AS_THE_MATRIX = ("dense", "block mask")
"""At least while they are made; they are left out where the matrix is large."""


@dataclass(frozen=True)
class Case:
    """A score; what its tensors are by name, one named sinks takes part in the softmax."""

    rule: Callable[[Tensors], Score | None]
    """The library's."""
    formula: Callable[[Tensors, Tensor, Tensor, Tensor, float], Tensor]
    """The definition, from tensors, query, key (a head for each query head), key − position, and the scale."""
    tensors: Callable[[int, int, int, int], Tensors] = lambda heads, queries, keys, dim: {}
    """From heads, queries, keys and head_dim."""
    scaled: bool = True
    """Whether the scale is 1/√head_dim if none is given, and not 1."""

    def dense(
        self, tensors: Tensors, query: Tensor, key: Tensor, distance: Tensor, scale: float | None = None
    ) -> Tensor:
        """The scores of all cells by the definition, before the mask."""
        if scale is None:
            scale = query.shape[-1] ** -0.5 if self.scaled else 1.0
        return self.formula(tensors, query, key, distance, scale)


def _random(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(shape, generator=_generator(seed), dtype=torch.float64)


SCORES: dict[str, Case] = {
    "scaled_dot": Case(lambda t: None, lambda t, q, k, x, s: d.dot(q, k, s)),
    "bilinear": Case(
        lambda t: Bilinear(t["w"]),
        lambda t, q, k, x, s: d.bilinear(q, k, t["w"], s),
        lambda h, n, m, dim: {"w": _random(dim, dim) / dim},
        scaled=False,
    ),
    "bilinear of heads": Case(
        lambda t: Bilinear(t["w"]),
        lambda t, q, k, x, s: d.bilinear(q, k, t["w"], s),
        lambda h, n, m, dim: {"w": _random(h, dim, dim) / dim},
        scaled=False,
    ),
    "additive": Case(
        lambda t: Additive(t["v"]),
        lambda t, q, k, x, s: d.additive(q, k, t["v"], s, torch.tanh),
        lambda h, n, m, dim: {"v": _random(dim)},
        scaled=False,
    ),
    "additive as in GAT": Case(
        lambda t: Additive(t["v"], "leaky_relu"),
        lambda t, q, k, x, s: d.additive(q, k, t["v"], s, lambda sums: leaky_relu(sums, 0.2)),
        lambda h, n, m, dim: {"v": _random(h, dim)},
        scaled=False,
    ),
    "soft_cap": Case(lambda t: SoftCap(ScaledDotProduct(), 1.5), lambda t, q, k, x, s: d.soft_cap(d.dot(q, k, s), 1.5)),
    "bias": Case(
        lambda t: ScaledDotProduct() + Bias(t["b"]),
        lambda t, q, k, x, s: d.dot(q, k, s) + t["b"],
        lambda h, n, m, dim: {"b": _random(h, n, m)},
    ),
    "bias that forbids": Case(
        lambda t: ScaledDotProduct() + Bias(t["b"]),
        lambda t, q, k, x, s: d.dot(q, k, s) + t["b"],
        lambda h, n, m, dim: {"b": _random(1, n, m).masked_fill(_random(1, n, m, seed=4) > 0.7, -inf)},
    ),
    "bias of keys alone": Case(
        lambda t: Bias(t["b"]),
        lambda t, q, k, x, s: t["b"].expand(*q.shape[:3], -1),
        lambda h, n, m, dim: {"b": _random(m)},
        scaled=False,
    ),
    "alibi": Case(
        lambda t: ScaledDotProduct() + Alibi(t["m"]),
        lambda t, q, k, x, s: d.dot(q, k, s) + d.alibi(t["m"], x),
        lambda h, n, m, dim: {"m": _random(h).abs() / 8},
    ),
    "t5_bias": Case(
        lambda t: ScaledDotProduct() + T5RelativeBias(t["t"], max_distance=20),
        lambda t, q, k, x, s: d.dot(q, k, s) + d.t5_bias(t["t"], x, 20, True),
        lambda h, n, m, dim: {"t": _random(8, h)},
    ),
    "t5_bias of the past": Case(
        lambda t: ScaledDotProduct() + T5RelativeBias(t["t"], bidirectional=False),
        lambda t, q, k, x, s: d.dot(q, k, s) + d.t5_bias(t["t"], x, 128, False),
        lambda h, n, m, dim: {"t": _random(6, h)},
    ),
    "relative": Case(
        lambda t: ScaledDotProduct() + RelativeKey(t["a"]),
        lambda t, q, k, x, s: d.dot(q, k, s) + d.relative(q, t["a"], x, s),
        lambda h, n, m, dim: {"a": _random(7, dim)},
    ),
    "relative of heads": Case(
        lambda t: RelativeKey(t["a"]),
        lambda t, q, k, x, s: d.relative(q, t["a"], x, s),
        lambda h, n, m, dim: {"a": _random(h, 3, dim) / 4},
    ),
    "sinks": Case(
        lambda t: Sinks(ScaledDotProduct(), t["sinks"]),
        lambda t, q, k, x, s: d.dot(q, k, s),
        lambda h, n, m, dim: {"sinks": _random(h)},
    ),
    "several": Case(
        lambda t: SoftCap(ScaledDotProduct(), 2.0) + Bias(t["b"]) + Sinks(Alibi(t["m"]), t["sinks"]),
        lambda t, q, k, x, s: d.soft_cap(d.dot(q, k, s), 2.0) + t["b"] + d.alibi(t["m"], x),
        lambda h, n, m, dim: {"b": _random(n, 1), "m": _random(h).abs() / 8, "sinks": _random(h)},
    ),
    "own": Case(
        lambda t: Cosine(t["t"]),
        lambda t, q, k, x, s: d.cosine(q, k, t["t"]),
        lambda h, n, m, dim: {"t": _random(h)},
    ),
}
"""By name; those of the registry first in their order, then variants and a user's own."""


def mask(name: str, batch: int, heads: int, queries: int, keys: int) -> Any:
    """The library's mask, or what becomes one, for a matrix of this shape."""
    return MASKS[name].rule(MASKS[name].parameters(batch, heads, queries, keys))


def masks(batch: int, heads: int, queries: int, keys: int) -> dict[str, Any]:
    """All of them by name."""
    left_out = AS_LARGE_AS_THE_MATRIX if queries * keys > 2**20 else ()
    return {name: mask(name, batch, heads, queries, keys) for name in MASKS if name not in left_out}


def kernels(rows: int, **sizes: int) -> list[Kernel]:
    """All kernels in the order in which they are tried; blocks of `blockwise` have few rows, so that there are several.

    Args:
        rows: Rows of a block under a mask.
        sizes: Other fields of BlockSizes.
    """
    blockwise = Blockwise(replace(CPU, rows=rows, **sizes))
    return [blockwise if type(kernel) is Blockwise else kernel for kernel in CPU_KERNELS]


def scores_of(kernel: Kernel) -> list[str]:
    """The names of the scores that a kernel supports."""

    def supported(score: Score | None) -> bool:
        parts = subtrees(ScaledDotProduct() if score is None else score)
        return all(kernel.supports(type(part)) for part in parts if isinstance(part, Score))

    return [name for name, case in SCORES.items() if supported(case.rule(case.tensors(2, 9, 12, 4)))]


def masks_of(kernel: Kernel) -> list[str]:
    """The names of those that a kernel supports."""

    def supported(rule: Any) -> bool:
        mask = None if rule is None else as_mask(rule)
        if kernel.required_mask is not None and find_part(mask, kernel.required_mask) is None:
            return False
        return all(kernel.supports(type(part)) for part in subtrees(mask) if isinstance(part, Mask))

    return [name for name, rule in masks(2, 2, 9, 12).items() if supported(rule)]


def allowed(name: str, batch: int, heads: int, queries: int, keys: int, offset: int) -> Tensor:
    """The definition of the same masks, cell by cell, (batch, heads, queries, keys)."""
    case, shape = MASKS[name], (batch, heads, queries, keys)
    return case.visible(case.parameters(*shape), d.grid(*shape, offset)).expand(shape)


def measures(queries: int, keys: int) -> dict[str, Measure]:
    """By name: each registered measure, and users' own."""
    numbers = d.numbers_of_measures(queries, keys)
    return {
        "entropy": Entropy(),
        "lse": LogSumExp(),
        "received": Received(),
        "received of some": Received(numbers["received of some"]),
        "topk": TopK(numbers["topk"]),
        "max": Max(),
        "mean_distance": MeanDistance(),
        "mass": Mass(~Window(*numbers["mass"])),
        "block_mean": BlockMean(numbers["block_mean"]),
        "diagonal": Diagonal(numbers["diagonal"]),
        "group_pool": GroupPool(*numbers["group_pool"]),
        "distance_histogram": DistanceHistogram(numbers["distance_histogram"]),
        "squares": Squares(numbers["squares"]),
        "total": Total(),
    }
