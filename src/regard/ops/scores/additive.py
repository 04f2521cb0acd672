"""Additive scores, of recurrent encoder-decoders and graph attention networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from regard.checks import Checks
from regard.ops.scores.base import Key, Query, Score, Scores
from regard.ops.tile import Shape, Tile

ACTIVATIONS: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
    {"tanh": torch.tanh, "leaky_relu": functional.leaky_relu, "relu": functional.relu, "sigmoid": torch.sigmoid}
)


class Additive(Score):
    """Additive score: s_ij = scale * v · f(q_i + k_j), with scale = 1 by default.

    In the paper q_i = W s_i and k_j = U h_j are projected decoder and encoder states, as query and key are here.

    Args:
        vector: v, (head_dim,), or (heads, head_dim) for one per head.
        activation: f: ``"tanh"`` (Bahdanau), ``"leaky_relu"`` (GAT), ``"relu"`` or ``"sigmoid"``. With head_dim = 1 and
            v = 1, leaky_relu gives GAT's LeakyReLU(a₁·h_i + a₂·h_j).
        negative_slope: That of leaky_relu.

    Raises:
        InvalidArgument: If the activation is unknown.
        InvalidType: If negative_slope is not a number.

    Memory:
        O(keys * head_dim) per row of a block, which therefore has fewer rows.

    Reference:
        Bahdanau, Cho, Bengio 2015, "Neural Machine Translation by Jointly Learning to Align and Translate", appendix
        A.1.2; Veličković et al. 2018, "Graph Attention Networks", equation 3.

    Examples:
        >>> import regard, torch
        >>> query, key = torch.randn(2, 1, 2, 5, 4).unbind()
        >>> score = regard.Additive(torch.ones(4), activation="tanh")
        >>> expected = (query[:, :, :, None] + key[:, :, None]).tanh().sum(-1).softmax(-1)
        >>> torch.allclose(regard.weights(query, key, score=score).dense(), expected)
        True
    """

    vector: Float[Tensor, "*heads head_dim"]
    activation: str = "tanh"
    negative_slope: float = 0.2

    def __post_init__(self) -> None:
        checks = Checks()
        checks.number("Additive.negative_slope", self.negative_slope)
        checks.choice("Additive.activation", self.activation, ACTIVATIONS)
        checks.raise_problems()

    def __call__(self, query: Query, key: Key, scale: float, tile: Tile) -> Scores:
        vector = self.vector[tile.heads][:, None, :, None] if self.vector.ndim == 2 else self.vector[:, None]
        sums = query[:, :, :, None] + (key if key.ndim == 5 else key[:, :, None])
        f = ACTIVATIONS[self.activation]
        activated = f(sums, self.negative_slope) if self.activation == "leaky_relu" else f(sums)
        # The query's dtype first: in half precision the product with the scale would round.
        return (activated @ (vector.to(query.dtype) * scale))[..., 0]

    def default_scale(self, head_dim: int) -> float:
        return 1.0

    def check(self, checks: Checks, shape: Shape, head_dim: int, device: torch.device) -> None:
        shapes = {"(head_dim,)": (head_dim,), "(heads, head_dim)": (shape[1], head_dim)}
        checks.tensor("Additive.vector", self.vector, "floating-point", shapes=shapes, device=device)

    @property
    def is_fresh_and_finite(self) -> bool:
        return True

    def workspace_per_cell(self, head_dim: int) -> int:
        return head_dim
