"""Products of query and key: the scaled dot product and the bilinear score."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from regard.checks import Checks
from regard.ops.grouped_query import grouped_matmul
from regard.ops.scores.base import Key, Query, Score, Scores
from regard.ops.steps import Place, Step
from regard.ops.tile import Shape, Tile


class ScaledDotProduct(Score):
    """Scaled dot product: s_ij = scale * q_i · k_j, with scale = 1/√head_dim by default.

    Reference:
        Vaswani et al. 2017, "Attention Is All You Need", equation 1.
    """

    def __call__(self, query: Query, key: Key, scale: float, tile: Tile) -> Scores:
        return grouped_matmul(query * scale, key.mT)

    def steps(self, place: Place) -> list[Step]:
        return [Step("dot_product")]

    def default_scale(self, head_dim: int) -> float:
        return head_dim**-0.5

    @property
    def is_fresh_and_finite(self) -> bool:
        return True


class Bilinear(Score):
    """Bilinear score: s_ij = scale * q_iᵀ W k_j, with scale = 1 by default.

    Args:
        weight: W, (head_dim, head_dim), or (heads, head_dim, head_dim) for one per head.

    Reference:
        Luong, Pham, Manning 2015, "Effective Approaches to Attention-based Neural Machine Translation", equation 8,
        which calls it "general"; torch calls such a map `torch.nn.Bilinear`.

    Examples:
        >>> import regard, torch
        >>> query, key = torch.randn(2, 1, 2, 5, 4).unbind()
        >>> W = regard.weights(query, key, score=regard.Bilinear(torch.eye(4)))
        >>> torch.allclose(W.dense(), regard.weights(query, key, scale=1.0).dense())
        True
    """

    weight: Float[Tensor, "*heads head_dim head_dim"]

    def __call__(self, query: Query, key: Key, scale: float, tile: Tile) -> Scores:
        weight = self.weight[tile.heads] if self.weight.ndim == 3 else self.weight
        return grouped_matmul(query @ (weight.to(query.dtype) * scale), key.mT)

    def default_scale(self, head_dim: int) -> float:
        return 1.0

    def check(self, checks: Checks, shape: Shape, head_dim: int, device: torch.device) -> None:
        square = (head_dim, head_dim)
        shapes = {"(head_dim, head_dim)": square, "(heads, head_dim, head_dim)": (shape[1], *square)}
        checks.tensor("Bilinear.weight", self.weight, "floating-point", shapes=shapes, device=device)

    @property
    def is_fresh_and_finite(self) -> bool:
        return True
