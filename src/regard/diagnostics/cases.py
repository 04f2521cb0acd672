"""The calls that `regard check` compares: shapes, masks and scores that take different ways through a kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.ops.masks import Causal, DenseMask, Documents, Mask, MaskMod, Neighbours, Padding, Prefix, Window
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
from regard.ops.scores import Alibi, Bias, RelativeKey, ScaledDotProduct, Score, Sinks, SoftCap, T5RelativeBias


@dataclass(frozen=True)
class CheckCase:
    """A call.

    Args:
        name: What is special about it.
        mask: The mask, on a device.
        score: The score, from a tensor of the shape `score_shape`.
        score_shape: The shape of the score's tensor, which gets a gradient; None if it has no tensor.
        batch: Number of sequences.
        heads: Number of query heads.
        kv_heads: Number of key and value heads.
        queries: Number of queries.
        keys: Number of keys.
        head_dim: Features of queries and keys.
        value_dim: Features of values.
    """

    name: str
    mask: Callable[[torch.device], Mask | None] = lambda device: None
    score: Callable[[Tensor], Score] | None = None
    score_shape: tuple[int, ...] | None = None
    batch: int = 2
    heads: int = 4
    kv_heads: int = 4
    queries: int = 33
    keys: int = 33
    head_dim: int = 16
    value_dim: int = 16

    def tensors(self) -> dict[str, Tensor]:
        """Query, key, value, and the score's tensor if it has one, in float64 on the CPU."""
        random = torch.Generator().manual_seed(0)
        shapes: dict[str, tuple[int, ...]] = {
            "query": (self.batch, self.heads, self.queries, self.head_dim),
            "key": (self.batch, self.kv_heads, self.keys, self.head_dim),
            "value": (self.batch, self.kv_heads, self.keys, self.value_dim),
        }
        if self.score_shape is not None:
            shapes["score"] = self.score_shape
        return {
            name: torch.randn(shape, generator=random, dtype=torch.float64).requires_grad_()
            for name, shape in shapes.items()
        }

    def measures(self, device: torch.device) -> dict[str, Measure]:
        """Each kind of measure, by name."""
        queries, keys = (torch.arange(size, device=device) // 5 for size in (self.queries, self.keys))
        return {
            "entropy": Entropy(),
            "lse": LogSumExp(),
            "received": Received(),
            "received_of_first": Received(torch.arange(self.queries, device=device) < 7),
            "topk": TopK(min(3, self.keys)),
            "max": Max(),
            "mean_distance": MeanDistance(),
            "mass": Mass(Window(2, 2)),
            "block_mean": BlockMean(16),
            "diagonal": Diagonal(-1),
            "group_pool": GroupPool(queries, keys),
            "distance_histogram": DistanceHistogram(3),
        }


def _random_cells(device: torch.device) -> Mask:
    """A third of the cells, and three rows without any."""
    cells = torch.rand(33, 33, generator=torch.Generator().manual_seed(1)) < 1 / 3
    cells[[0, 7, 32]] = False
    return DenseMask(cells.to(device))


def _edges(device: torch.device) -> Mask:
    """Two edges for each query, and none for the first."""
    query = torch.arange(1, 33).repeat(2)
    key = torch.randint(33, query.shape, generator=torch.Generator().manual_seed(2))
    return Neighbours(query.to(device), key.to(device))


def _slopes(tensor: Tensor) -> Score:
    return ScaledDotProduct() + Alibi(tensor)


CASES = (
    CheckCase("no mask"),
    CheckCase("grouped-query heads", heads=6, kv_heads=2, value_dim=24),
    CheckCase("head_dim 7, value_dim 1", head_dim=7, value_dim=1),
    CheckCase("129 queries, 65 keys", batch=1, queries=129, keys=65, head_dim=40, value_dim=40),
    CheckCase("causal", mask=lambda device: Causal()),
    CheckCase("causal, one query of 200 keys", mask=lambda device: Causal(), queries=1, keys=200),
    CheckCase("causal, 600 tokens", mask=lambda device: Causal(), batch=1, heads=2, kv_heads=1, queries=600, keys=600),
    CheckCase("causal, more queries than keys", mask=lambda device: Causal(), queries=40, keys=13),
    CheckCase("window", mask=lambda device: Window(4, 2)),
    CheckCase("padding, one sequence empty", mask=lambda device: Padding(torch.tensor([20, 0], device=device))),
    CheckCase(
        "padding and window", mask=lambda device: Padding(torch.tensor([33, 9], device=device)) & Window(6, None)
    ),
    CheckCase("documents", mask=lambda device: Documents(torch.arange(33, device=device) // 7)),
    CheckCase("prefix", mask=lambda device: Prefix(5)),
    CheckCase("dense mask with empty rows", mask=_random_cells),
    CheckCase("graph", mask=_edges),
    CheckCase("function", mask=lambda device: MaskMod(lambda b, h, q, k: (q + k) % 3 == 0)),
    CheckCase("bias", score=lambda tensor: ScaledDotProduct() + Bias(tensor), score_shape=(4, 33, 33)),
    CheckCase("ALiBi, causal", mask=lambda device: Causal(), score=_slopes, score_shape=(4,)),
    CheckCase("T5 bias", score=lambda tensor: ScaledDotProduct() + T5RelativeBias(tensor), score_shape=(32, 4)),
    CheckCase("relative keys", score=lambda tensor: ScaledDotProduct() + RelativeKey(tensor), score_shape=(7, 16)),
    CheckCase("soft-cap, window", mask=lambda device: Window(8, 0), score=lambda _: SoftCap(ScaledDotProduct(), 2.0)),
    CheckCase("sinks, causal", lambda device: Causal(), lambda tensor: Sinks(ScaledDotProduct(), tensor), (4,)),
)
"""The shapes are small: errors of kernels are at the edges of blocks and of what masks allow."""
