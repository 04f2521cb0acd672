"""The additive score, of recurrent encoder-decoders and of graph attention networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from regard.errors import InvalidArgument, did_you_mean
from regard.ops.scores.base import Score, Shape, tensor_objections
from regard.ops.tile import Tile

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "tanh": torch.tanh,
        "leaky_relu": partial(functional.leaky_relu, negative_slope=0.2),
        "relu": functional.relu,
        "sigmoid": torch.sigmoid,
    }
)


@dataclass(frozen=True, eq=False)
class Additive(Score):
    """The additive score, sᵢⱼ = v · f(qᵢ + kⱼ) · scale, with scale = 1 where none is given.

    In the paper qᵢ = W sᵢ and kⱼ = U hⱼ are projected states of decoder and encoder, as query and key are here.

    Args:
        vector: v, (head_dim,), or (heads, head_dim) for one a head.
        activation: f, ``"tanh"`` (Bahdanau), ``"leaky_relu"`` (slope 0.2 below 0, as in GAT), ``"relu"``,
            ``"sigmoid"``. With head_dim = 1 and v = 1 the second is GAT's LeakyReLU(a₁·hᵢ + a₂·hⱼ).

    Raises:
        InvalidArgument: If the activation is unknown.

    Memory: O(keys · head_dim) for each row of a block, which therefore has fewer rows.

    Reference: Bahdanau, Cho, Bengio 2015, "Neural Machine Translation by Jointly Learning to Align and Translate",
    appendix A.1.2; Veličković et al. 2018, "Graph Attention Networks", equation 3.

    Example:
        >>> import regard, torch
        >>> query, key = torch.randn(2, 1, 2, 5, 4).unbind()
        >>> score = regard.Additive(torch.ones(4), activation="tanh")
        >>> expected = (query[:, :, :, None] + key[:, :, None]).tanh().sum(-1).softmax(-1)
        >>> torch.allclose(regard.weights(query, key, score=score).dense(), expected)
        True
    """

    vector: Float[Tensor, "*heads head_dim"]
    activation: str = "tanh"

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise InvalidArgument(
                f"Additive: unknown activation {self.activation!r}{did_you_mean(str(self.activation), ACTIVATIONS)} "
                f"(known: {', '.join(ACTIVATIONS)})"
            )

    def __call__(
        self,
        query: Float[Tensor, "batch heads rows head_dim"],
        key: Float[Tensor, " batch #heads *rows keys head_dim"],
        scale: float,
        cells: Tile,
    ) -> Float[Tensor, "batch heads rows keys"]:
        vector = (self.vector[cells.heads][:, None, :, None] if self.vector.ndim == 2 else self.vector[:, None]) * scale
        sums = query[:, :, :, None] + (key if key.ndim == 5 else key[:, :, None])
        return (ACTIVATIONS[self.activation](sums) @ vector.to(query.dtype))[..., 0]

    @property
    def plain(self) -> bool:
        return True

    def objections(self, shape: Shape, head_dim: int, device: torch.device) -> list[str]:
        shapes = {"(head_dim,)": (head_dim,), "(heads, head_dim)": (shape[1], head_dim)}
        return tensor_objections("the vector of Additive", self.vector, shapes, device)

    def floats_per_cell(self, head_dim: int) -> int:
        return head_dim
