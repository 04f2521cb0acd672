"""The definition of attention and of all that is measured, dense: what kernels are compared with."""

from __future__ import annotations

from math import inf
from typing import Any

import torch
from torch import Tensor

from ops.rules import SCORES, Case, Tensors, measures

ADDED_ONE_BY_ONE = {"received of some": 3, "group_pool": 4}
"""So many times as far off as dense torch may these be, which adds pairwise, in sums of some hundred terms."""


def _grouped(weights: Tensor, of_query: Tensor, of_key: Tensor) -> Tensor:
    sums = torch.stack([weights[..., of_key == group].sum(-1) for group in range(int(of_key.max()) + 1)], -1)
    members = [sums[..., of_query == group, :] for group in range(int(of_query.max()) + 1)]
    return torch.stack([part.sum(-2) / max(1, part.shape[-2]) for part in members], -2)


def definition(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cells: Tensor,
    offset: int,
    case: Case = SCORES["scaled_dot"],
    held: Tensors | None = None,
) -> tuple[Tensor, Tensor, Tensor, dict[str, tuple[Tensor, ...]]]:
    """The definition, dense, in the dtype of its arguments: output, weights, scores and what is measured."""
    held = held or {}
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    queries, keys = cells.shape[2:]
    distance = torch.arange(keys) - torch.arange(queries)[:, None] - offset
    scores = case.dense(held, query, key, distance)
    cells = cells & (scores > -inf)
    scores = scores.masked_fill(~cells, -inf)
    sink = held["sinks"][:, None].expand(scores.shape[:3]) if "sinks" in held else scores.new_full((), -inf)
    highest = torch.maximum(scores.detach().amax(-1), sink.detach())
    highest = highest.where(highest > -inf, 0.0)
    numerator = (scores - highest[..., None]).exp()
    denominator = numerator.sum(-1) + (sink - highest).exp()
    some = denominator.where(denominator > 0, 1.0)
    weights = numerator / some[..., None]
    logs = weights.where(weights > 0, 1.0).log()
    wide = torch.linspace(-1, 1, keys, dtype=torch.float64).to(query.dtype)
    tall = torch.linspace(-1, 1, queries, dtype=torch.float64).to(query.dtype)
    asked: dict[str, Any] = measures(queries, keys)
    size, (of_query, of_key) = (
        asked["block_mean"].size,
        (asked["group_pool"].query_groups, asked["group_pool"].key_groups),
    )
    answers: dict[str, Tensor | tuple[Tensor, ...]] = {
        "entropy": -(weights * logs).sum(-1),
        "lse": torch.where(denominator > 0, some.log() + highest, -inf),
        "received": weights.sum(-2),
        "received of some": (weights * tall[:, None]).sum(-2),
        "topk": weights.sort(-1, descending=True).values[..., : min(3, keys)],
        "max": (weights.amax(-1), scores.amax(-1)),
        "mean_distance": (weights * distance.abs()).sum(-1),
        "mass": (weights * ((distance < -2) | (distance > 1))).sum(-1),
        "block_mean": torch.stack(
            [torch.stack([x.mean((-1, -2)) for x in rows.split(size, -1)], -1) for rows in weights.split(size, -2)], -2
        ),
        "diagonal": (weights * (distance == -1)).sum(-1),
        "group_pool": _grouped(weights, of_query, of_key),
        "distance_histogram": torch.stack([(weights * (distance.clamp(-3, 3) == d)).sum(-1) for d in range(-3, 4)], -1),
        "squares": (weights**2 * wide).sum(-1),
        "total": (weights * scores.where(cells, 0.0)).sum((-1, -2)),
    }  # fmt: skip
    named = {name: answer if isinstance(answer, tuple) else (answer,) for name, answer in answers.items()}
    return weights @ value, weights, scores, named
