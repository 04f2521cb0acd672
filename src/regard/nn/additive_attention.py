"""Additive attention, as in the recurrent translators before the Transformer."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.checks import Checks
from regard.ops import AttentionOutput, WeightMatrix, attend, weights
from regard.ops.masks import MaskLike
from regard.ops.scores import Additive


class AdditiveAttention(nn.Module):
    """Attention scored by a network with one hidden layer; the keys are also the values.

    Pᵢⱼ = softmax over j of v · tanh(W sᵢ + U hⱼ + b), outputᵢ = Σⱼ Pᵢⱼ hⱼ

    ``query_proj`` is W, ``key_proj`` is U and b.

    Args:
        query_size: Size of the queries s.
        key_size: Size of the keys h.
        d_attention: Size of the hidden layer.

    Raises:
        InvalidType: If a size is not an int; in a call, if an input is not a tensor.
        InvalidArgument: If a size is below 1; in a call, if an input has another shape.

    Memory: O((queries + keys) · d_attention).

    Reference: Bahdanau, Cho, Bengio 2015, "Neural Machine Translation by Jointly Learning to Align and Translate",
    equations 5 and 6, appendices A.1.2 and B.1.

    Examples:
        >>> import torch
        >>> attention = AdditiveAttention(query_size=6, key_size=8, d_attention=5)
        >>> attended = attention(torch.randn(2, 3, 6), torch.randn(2, 4, 8))
        >>> attended.output.shape, attended.weights.shape
        (torch.Size([2, 3, 8]), torch.Size([2, 1, 3, 4]))
    """

    def __init__(self, query_size: int, key_size: int, d_attention: int) -> None:
        super().__init__()
        with Checks() as checks:
            for name, size in (("query_size", query_size), ("key_size", key_size), ("d_attention", d_attention)):
                checks.integer(name, size, low=1)
        self.query_proj = nn.Linear(query_size, d_attention, bias=False)
        self.key_proj = nn.Linear(key_size, d_attention)
        self.v = nn.Parameter(torch.empty(d_attention))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize W and U from N(0, 0.001²), and v and b with 0: all weights of a query start equal."""
        for linear in (self.query_proj, self.key_proj):
            nn.init.normal_(linear.weight, std=0.001)
        nn.init.zeros_(self.key_proj.bias)
        nn.init.zeros_(self.v)

    def forward(
        self,
        query: Float[Tensor, "batch queries query_size"],
        key: Float[Tensor, "batch keys key_size"],
        *,
        mask: MaskLike | None = None,
        projected_key: Float[Tensor, "batch 1 keys d_attention"] | None = None,
    ) -> AttentionOutput:
        """Attend from every query to the keys.

        Args:
            query: (batch, queries, query_size).
            key: (batch, keys, key_size).
            mask: As in `regard.attend`: True means may attend.
            projected_key: ``project_key(key)``, to compute it once for many calls. Default: computed in this call.

        Returns:
            AttentionOutput: ``output`` (batch, queries, key_size); ``weights`` a view (batch, 1, queries, keys).
        """
        projected_query, projected_key = self._project(query, key, projected_key)
        value = key[:, None].to(projected_query.dtype)  # under autocast projections have another dtype
        attended = attend(projected_query, projected_key, value, mask=mask, score=Additive(self.v))
        return replace(attended, output=attended.output[:, 0])

    def weights(
        self,
        query: Float[Tensor, "batch queries query_size"],
        key: Float[Tensor, "batch keys key_size"],
        *,
        mask: MaskLike | None = None,
        projected_key: Float[Tensor, "batch 1 keys d_attention"] | None = None,
    ) -> WeightMatrix:
        """The weights of `forward` without its output; computed when read."""
        projected_query, projected_key = self._project(query, key, projected_key)
        return weights(projected_query, projected_key, mask=mask, score=Additive(self.v))

    def project_key(self, key: Float[Tensor, "batch keys key_size"]) -> Float[Tensor, "batch 1 keys d_attention"]:
        """U h + b, (batch, 1, keys, d_attention)."""
        return self.key_proj(key)[:, None]

    def _project(self, query: Tensor, key: Tensor, projected_key: Tensor | None) -> tuple[Tensor, Tensor]:
        """W s, (batch, 1, queries, d_attention), and U h + b."""
        with Checks() as checks:
            for name, x, projection in (("query", query, self.query_proj), ("key", key, self.key_proj)):
                sizes = {"batch": None, "tokens": None, f"{name}_size": projection.in_features}
                checks.input(name, x, sizes, projection.weight)
        projected_query = self.query_proj(query)[:, None]
        return projected_query, self.project_key(key) if projected_key is None else projected_key
