"""Scores that are products of query and key: the scaled dot product and Luong's general score."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from regard.ops.grouped_query import grouped_matmul
from regard.ops.scores.base import Score, Shape, tensor_objections
from regard.ops.tile import Tile


@dataclass(frozen=True, eq=False)
class ScaledDotProduct(Score):
    """The scaled dot product, sᵢⱼ = qᵢ·kⱼ · scale, with scale = 1/√head_dim where none is given.

    Reference: Vaswani et al. 2017, "Attention Is All You Need", equation 1.
    """

    def __call__(
        self,
        query: Float[Tensor, "batch heads rows head_dim"],
        key: Float[Tensor, " batch #heads *rows keys head_dim"],
        scale: float,
        cells: Tile,
    ) -> Float[Tensor, "batch heads rows keys"]:
        return grouped_matmul(query * scale, key.mT, often=cells.whole)

    def default_scale(self, head_dim: int) -> float:
        return head_dim**-0.5

    @property
    def plain(self) -> bool:
        return True


@dataclass(frozen=True, eq=False)
class Bilinear(Score):
    """The general score, sᵢⱼ = qᵢᵀ W kⱼ · scale, with scale = 1 where none is given.

    Args:
        weight: W, (head_dim, head_dim), or (heads, head_dim, head_dim) for one a head.

    Reference: Luong, Pham, Manning 2015, "Effective Approaches to Attention-based Neural Machine Translation",
    equation 8.

    Example:
        >>> import regard, torch
        >>> query, key = torch.randn(2, 1, 2, 5, 4).unbind()
        >>> W = regard.weights(query, key, score=regard.Bilinear(torch.eye(4)))
        >>> torch.allclose(W.dense(), regard.weights(query, key, scale=1.0).dense())
        True
    """

    weight: Float[Tensor, "*heads head_dim head_dim"]

    def __call__(
        self,
        query: Float[Tensor, "batch heads rows head_dim"],
        key: Float[Tensor, " batch #heads *rows keys head_dim"],
        scale: float,
        cells: Tile,
    ) -> Float[Tensor, "batch heads rows keys"]:
        weight = self.weight[cells.heads] if self.weight.ndim == 3 else self.weight
        return grouped_matmul(query @ (weight.to(query.dtype) * scale), key.mT, often=cells.whole)

    def objections(self, shape: Shape, head_dim: int, device: torch.device) -> list[str]:
        square = (head_dim, head_dim)
        shapes = {"(head_dim, head_dim)": square, "(heads, head_dim, head_dim)": (shape[1], *square)}
        return tensor_objections("the weight of General", self.weight, shapes, device)

    @property
    def plain(self) -> bool:
        return True
