"""GradientMatrix: the gradient of a loss with respect to attention weights, any part of which is computed on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from regard.ops.indexing import SelectCells, Selection
from regard.ops.matrix import Matrix
from regard.ops.measures import Measure
from regard.ops.request import AttentionRequest, make_request


class GradientMatrix(Matrix):
    """The gradient of a loss with respect to attention weights: ∂L/∂Pᵢⱼ = dOᵢ · Vⱼ.

    dO is the gradient with respect to the output of a head, O = P V, and V are its values. It holds both, and nothing
    of size queries × keys. Keys that a query may not attend to have a gradient, too, as those of dense attention have
    in autograd: what follows from it is multiplied by their weights, which are 0.

    It is read as a `WeightMatrix` is: ``G[0, 3]``, `at`, `dense`, ``sum``, ``mean``, ``topk``, ``G @ x``,
    ``G.mT @ y``. ``G * W`` is lazy, too (`ProductMatrix`).

    Examples:
        >>> import torch
        >>> output_gradient, value = torch.randn(1, 8, 50, 16), torch.randn(1, 2, 60, 16)
        >>> G = GradientMatrix.of(output_gradient, value)
        >>> G.shape
        torch.Size([1, 8, 50, 60])
        >>> torch.allclose(G[0, 5, 7, 9], output_gradient[0, 5, 7] @ value[0, 1, 9], atol=1e-5)
        True
    """

    _source = "scores"
    _made_of = "values and a gradient"

    @classmethod
    def of(
        cls,
        output_gradient: Float[Tensor, "batch heads queries value_dim"],
        value: Float[Tensor, "batch value_heads keys value_dim"],
        valid_queries: Bool[Tensor, "batch queries"] | None = None,
    ) -> GradientMatrix:
        """The matrix of these gradients and values.

        Args:
            output_gradient: (batch, heads, queries, value_dim).
            value: (batch, value_heads, keys, value_dim); value_heads divides heads.
            valid_queries: (batch, queries) False where a query is padding; None if none is known to be.

        Raises:
            InvalidArgument: If shapes do not fit.
        """
        return cls(make_request(output_gradient, value, scale=1.0), valid_queries)

    def _evaluate(self, request: AttentionRequest, measures: Mapping[str, Measure]) -> dict[str, Any]:
        cells = measures["cells"]
        if not isinstance(cells, SelectCells) or isinstance(cells.keys, Tensor):
            return super()._evaluate(request, measures)
        gradient, value = self._factors(request)  # one product, instead of a kernel's pass for softmax
        return {"cells": gradient @ value[:, :, cells.keys].mT}

    def reduce_axes(self, name: str, dims: tuple[int, ...]) -> Tensor:
        if name != "sum" or not {2, 3} & {*dims}:
            return super().reduce_axes(name, dims)
        gradient, value = self._factors(self.request)  # a sum over an axis is one over a factor
        gradient, value = (
            part.sum(2, keepdim=True) if axis in dims else part for part, axis in ((gradient, 2), (value, 3))
        )
        rest = tuple(dim for dim in dims if dim < 2)
        return (gradient @ value.mT).sum(rest, keepdim=True) if rest else gradient @ value.mT

    def product(self, columns: Tensor) -> Tensor:
        gradient, value = self._factors(self.request)
        return gradient @ (value.mT @ columns)

    def transposed_product(self, y: Tensor) -> Tensor:
        gradient, value = self._factors(self.request)
        return value @ (gradient.mT @ y.to(self.dtype))

    def _factors(self, request: AttentionRequest) -> tuple[Tensor, Tensor]:
        """Factors dO and V, both (batch, heads, tokens, value_dim), in the dtype of sums."""
        self._check_unchanged()
        gradient, value = (part.to(self.dtype) for part in (request.query, request.key))
        group = gradient.shape[1] // value.shape[1]
        return gradient, value if group == 1 else value.repeat_interleave(group, 1)


GradientSource = GradientMatrix | Callable[[], GradientMatrix | str | None] | None
"""The gradient of a weight matrix, or what returns it when it is read: None if there is none, or the sentence why not
yet."""


def select_gradient(source: GradientSource, *axes: Selection) -> GradientMatrix | str | None:
    """The gradient of a part of a weight matrix, by the arguments of `Matrix.at`."""
    whole = source() if callable(source) else source
    return whole.at(*axes) if axes and isinstance(whole, GradientMatrix) else whole
