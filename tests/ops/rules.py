"""Every registered mask and measure, and a user's own of each, with the dense definition beside it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.ops import Block, Causal, Entropy, Lse, Mask, Measure, Padding, Received, TopK, Window
from regard.ops.cells import Cells


class EveryThird(Mask):
    """A user's mask: an index rule and nothing else."""

    def allowed(self, cells: Cells) -> Tensor:
        return (cells.positions[:, None] + cells.key) % 3 == 0


@dataclass(frozen=True, eq=False)
class Squares(Measure):
    """A user's measure: Σⱼ wⱼ Pᵢⱼ², with a tensor that gets a gradient."""

    weight_of_key: Tensor
    axis = "queries"

    def of(self, block: Block) -> Tensor:
        return (block.weights.square() * self.weight_of_key[block.index[3]]).sum(-1)


class Total(Measure):
    """A user's measure that is summed over blocks: Σᵢⱼ Pᵢⱼ Sᵢⱼ of each head."""

    axis = None

    def of(self, block: Block) -> Tensor:
        return (block.weights * block.scores).sum((-1, -2))


def masks(batch: int, heads: int, queries: int, keys: int) -> dict[str, Mask | Tensor | None]:
    """By name: each kind of mask, for a matrix of this shape."""
    random = torch.Generator().manual_seed(5)
    lengths = torch.randint(0, keys + 1, (batch,), generator=random)
    lengths[0] = keys
    real = torch.rand(batch, keys, generator=random) < 0.7
    dense = torch.rand(batch, heads, queries, keys, generator=random) < 0.6
    return {
        "none": None,
        "causal": Causal(),
        "window": Window(4, 2),
        "past": Window(None, -1),
        "future": Window(-1, None),
        "lengths": Padding(lengths),
        "padding": Padding(real),
        "dense": dense,
        "dense of keys": dense[0, 0, 0],
        "empty rows": torch.arange(queries)[:, None] % 4 != 1,
        "nothing": torch.zeros(1, 1, dtype=torch.bool),
        "and": Causal() & Padding(lengths) & Window(6, None),
        "or": Window(2, 0) | Padding(torch.full((batch,), min(3, keys))),
        "not": ~Window(3, 1),
        "not causal": ~Causal(),
        "not padding": ~(Padding(lengths) & Padding(lengths)),
        "own": EveryThird(),
    }


def allowed(name: str, batch: int, heads: int, queries: int, keys: int, offset: int) -> Tensor:
    """The same masks, cell by cell, (batch, heads, queries, keys)."""
    rule = masks(batch, heads, queries, keys)[name]
    i = torch.arange(queries)[:, None] + offset
    j = torch.arange(keys)[None]
    lengths = masks(batch, heads, queries, keys)["lengths"].keys.view(batch, 1, 1, 1)
    formulas = {
        "none": torch.ones(1, 1, dtype=torch.bool),
        "causal": j <= i,
        "window": (j >= i - 4) & (j <= i + 2),
        "past": j < i,
        "future": j > i,
        "lengths": j < lengths,
        "padding": rule.keys[:, None, None] if name == "padding" else None,
        "and": (j <= i) & (j < lengths) & (j >= i - 6),
        "or": ((j >= i - 2) & (j <= i)) | (j < 3),
        "not": ~((j >= i - 3) & (j <= i + 1)),
        "not causal": j > i,
        "not padding": j >= lengths,
        "own": (i + j) % 3 == 0,
    }
    return formulas.get(name, rule).expand(batch, heads, queries, keys)


def measures(keys: int) -> dict[str, Measure]:
    """By name: each registered measure, and users' own."""
    return {
        "entropy": Entropy(),
        "lse": Lse(),
        "received": Received(),
        "topk": TopK(min(3, keys)),
        "squares": Squares(torch.linspace(-1, 1, keys, dtype=torch.float64)),
        "total": Total(),
    }


def definition(
    query: Tensor, key: Tensor, value: Tensor, cells: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """The definition, written for this test in float64: output, weights, scores and what is measured."""
    query, key, value = query.double(), key.double(), value.double()
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) * scale
    numerator = scores.exp() * cells  # scores of tests are small
    seen = cells.any(-1)  # rows with a key
    denominator = numerator.sum(-1).where(seen, 1.0)
    weights = numerator / denominator[..., None]
    logs = weights.where(weights > 0, 1.0).log()
    wide = torch.linspace(-1, 1, key.shape[2], dtype=torch.float64)
    answers = {
        "entropy": -(weights * logs).sum(-1),
        "lse": denominator.log().where(seen, -torch.inf),
        "received": weights.sum(-2),
        "topk": weights.sort(-1, descending=True).values[..., : min(3, key.shape[2])],
        "squares": (weights**2 * wide).sum(-1),
        "total": (weights * scores).sum((-1, -2)),
    }
    return weights @ value, weights, scores.masked_fill(~cells, -torch.inf), answers
