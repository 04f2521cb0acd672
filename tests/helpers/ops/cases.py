"""Every mask, score and measure, with a user's own of each: the library's rule and the formula that defines it.

The library's rules are those of `regard.diagnostics.cases`. A case holds plain tensors and numbers. The rule and the
formula are each made from them, and from nothing that the other has made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask
from torch.nn.functional import leaky_relu

from helpers.ops import dense_reference as d
from regard.diagnostics import cases
from regard.diagnostics.calls import Tensors
from regard.diagnostics.cases import MaskCase, Parameters, ScoreCase
from regard.ops.kernels.base import Kernel
from regard.ops.kernels.blocks import CPU
from regard.ops.kernels.blockwise import Blockwise
from regard.ops.kernels.dispatch import KERNELS
from regard.ops.masks import Mask
from regard.ops.masks.base import as_mask, find_part
from regard.ops.measures import Block, Measure
from regard.ops.scores import ScaledDotProduct, Score
from regard.ops.tile import Tile
from regard.ops.tree import subtrees

CPU_KERNELS = tuple(kernel for kernel in KERNELS if kernel.devices is None or "cpu" in kernel.devices)


class EveryThird(Mask):
    """A user's mask: an index rule and nothing else."""

    def allowed(self, tile: Tile) -> Tensor:
        return (tile.q_pos + tile.kv_idx) % 3 == 0


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


OWN_MASKS = {
    "own": MaskCase(lambda p: EveryThird()),
    "block mask": MaskCase(
        lambda p: create_block_mask(_banded, None, None, p["queries"], p["keys"], device="cpu", BLOCK_SIZE=16),
        lambda b, h, n, m: {"queries": n, "keys": m},
    ),
}
"""Classes of a user and of torch."""

VISIBLE: dict[str, Callable[[Parameters, d.Grid], Tensor]] = {
    "none": lambda p, at: torch.ones(1, dtype=torch.bool),
    "causal": lambda p, at: d.causal(at),
    "window": lambda p, at: d.window(at, 4, 2),
    "past": lambda p, at: d.window(at, None, -1),
    "future": lambda p, at: d.window(at, -1, None),
    "lengths": lambda p, at: d.shorter(at, p["lengths"]),
    "padding": lambda p, at: p["real"][:, None, None],
    "prefix": lambda p, at: d.causal(at) | (at.key < 3),
    "prefixes": lambda p, at: d.causal(at) | d.shorter(at, p["lengths"]),
    "documents": lambda p, at: d.same_document(d.at_position(at, p["ids"]), p["ids"][None]),
    "documents of each": lambda p, at: d.same_document(p["of queries"], p["of keys"]),
    "spans": lambda p, at: d.in_ranges(at, p["starts"], p["stops"]),
    "spans of heads": lambda p, at: d.in_ranges(at, p["starts"], p["stops"]),
    "neighbors": lambda p, at: d.linked(at, p["edges"]),
    "neighbors and": lambda p, at: d.causal(at) & d.linked(at, p["edges"]) & d.shorter(at, p["lengths"]),
    "no edges": lambda p, at: torch.zeros(1, dtype=torch.bool),
    "function": lambda p, at: (at.batch + at.head + at.query + at.key).remainder(2) == 0,
    "and": lambda p, at: d.causal(at) & d.shorter(at, p["lengths"]) & d.window(at, 6, None),
    "or": lambda p, at: d.window(at, 2, 0) | d.shorter(at, p["lengths"]),
    "not": lambda p, at: ~d.window(at, 3, 1),
    "not causal": lambda p, at: at.key > at.position,
    "not padding": lambda p, at: ~d.shorter(at, p["lengths"]),
    "nothing": lambda p, at: torch.zeros(1, dtype=torch.bool),
    "empty rows": lambda p, at: p["cells"],
    "dense of keys": lambda p, at: p["cells"],
    "dense": lambda p, at: p["cells"],
    "own": lambda p, at: (at.position + at.key).remainder(3) == 0,
    "block mask": lambda p, at: (at.key >= at.query // 3) & (at.key < at.query // 3 + 20),
}
"""The definition of each mask: a bool that broadcasts to (batch, heads, queries, keys)."""

MASKS: dict[str, MaskCase] = cases.MASKS | OWN_MASKS
"""By name."""

AS_LARGE_AS_THE_MATRIX = ("dense", "block mask")
"""At least while they are made; they are left out where the matrix is large."""

Formula = Callable[[Tensors, Tensor, Tensor, Tensor, float], Tensor]
"""From tensors, query, key (a head for each query head), key − position, and the scale."""

FORMULAS: dict[str, Formula] = {
    "scaled_dot": lambda t, q, k, x, s: d.dot(q, k, s),
    "bilinear": lambda t, q, k, x, s: d.bilinear(q, k, t["w"], s),
    "bilinear of heads": lambda t, q, k, x, s: d.bilinear(q, k, t["w"], s),
    "additive": lambda t, q, k, x, s: d.additive(q, k, t["v"], s, torch.tanh),
    "additive as in GAT": lambda t, q, k, x, s: d.additive(q, k, t["v"], s, lambda sums: leaky_relu(sums, 0.2)),
    "soft_cap": lambda t, q, k, x, s: d.soft_cap(d.dot(q, k, s), 1.5),
    "bias": lambda t, q, k, x, s: d.dot(q, k, s) + t["b"],
    "bias that forbids": lambda t, q, k, x, s: d.dot(q, k, s) + t["b"],
    "bias of keys alone": lambda t, q, k, x, s: t["b"].expand(*q.shape[:3], -1),
    "alibi": lambda t, q, k, x, s: d.dot(q, k, s) + d.alibi(t["m"], x),
    "t5_bias": lambda t, q, k, x, s: d.dot(q, k, s) + d.t5_bias(t["t"], x, 20, True),
    "t5_bias of the past": lambda t, q, k, x, s: d.dot(q, k, s) + d.t5_bias(t["t"], x, 128, False),
    "relative": lambda t, q, k, x, s: d.dot(q, k, s) + d.relative(q, t["a"], x, s),
    "relative of heads": lambda t, q, k, x, s: d.relative(q, t["a"], x, s),
    "function": lambda t, q, k, x, s: (
        t["c"][:, None, None] * d.dot(q, k, s) + t["m"] * torch.arange(k.shape[2], device=k.device).remainder(3)
    ),
    "relative query": lambda t, q, k, x, s: (
        d.dot(q, k, s) + d.relative(q, t["a"], x, s) + d.relative(k, t["b"], x.mT, s).mT
    ),
    "sinks": lambda t, q, k, x, s: d.dot(q, k, s),
    "several": lambda t, q, k, x, s: d.soft_cap(d.dot(q, k, s), 2.0) + t["b"] + d.alibi(t["m"], x),
    "own": lambda t, q, k, x, s: d.cosine(q, k, t["t"]),
}
"""The definition of each score, before the mask."""

UNSCALED = {"bilinear", "bilinear of heads", "additive", "additive as in GAT", "bias of keys alone"}
"""Whose scale is 1 if none is given, and not 1/√head_dim."""


@dataclass(frozen=True, eq=False)
class Case(ScoreCase):
    """A score and its definition."""

    formula: Formula = FORMULAS["scaled_dot"]
    scaled: bool = True

    def dense(
        self, tensors: Tensors, query: Tensor, key: Tensor, distance: Tensor, scale: float | None = None
    ) -> Tensor:
        """The scores of all cells by the definition, before the mask."""
        if scale is None:
            scale = query.shape[-1] ** -0.5 if self.scaled else 1.0
        return self.formula(tensors, query, key, distance, scale)


OWN_SCORE = ScoreCase(
    lambda t: Cosine(t["t"]),
    lambda h, n, m, dim: {"t": torch.randn(h, generator=torch.Generator().manual_seed(3), dtype=torch.float64)},
)

SCORES: dict[str, Case] = {
    name: Case(score.rule, score.tensors, FORMULAS[name], name not in UNSCALED)
    for name, score in (cases.SCORES | {"own": OWN_SCORE}).items()
}
"""By name; the built-in ones first in their order, then variants and a user's own."""


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

    def supported(user_measures: Any) -> bool:
        mask = None if user_measures is None else as_mask(user_measures)
        if kernel.required_mask is not None and find_part(mask, kernel.required_mask) is None:
            return False
        return all(kernel.supports(type(part)) for part in subtrees(mask) if isinstance(part, Mask))

    return [name for name, user_measures in masks(2, 2, 9, 12).items() if supported(user_measures)]


def allowed(name: str, batch: int, heads: int, queries: int, keys: int, offset: int) -> Tensor:
    """The definition of the same masks, cell by cell, (batch, heads, queries, keys)."""
    shape = batch, heads, queries, keys
    return VISIBLE[name](MASKS[name].parameters(*shape), d.grid(*shape, offset)).expand(shape)


def measures(queries: int, keys: int) -> dict[str, Measure]:
    """By name: each registered measure, and users' own."""
    user_measures = {"squares": Squares(d.numbers_of_measures(queries, keys)["squares"]), "total": Total()}
    return cases.measures(queries, keys) | user_measures
