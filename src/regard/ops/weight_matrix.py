"""The weight matrix as a view: a request seen as a matrix, any part of which is computed when it is asked for."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from regard.errors import InvalidArgument, raise_problems
from regard.ops.kernels.base import KernelInputs
from regard.ops.kernels.dispatch import choose
from regard.ops.linear_operator import as_columns, linear_operator, require_one_head
from regard.ops.masks import Mask
from regard.ops.matrix import Matrix, ScoreMatrix, ask
from regard.ops.measures import (
    BlockMean,
    Diagonal,
    DistanceHistogram,
    GroupPool,
    Mass,
    MaxResult,
    Measure,
    MeasureLike,
    Received,
    TopK,
    TopKResult,
    TransposedProduct,
    as_measures,
)


class WeightMatrix(Matrix):
    """The weights after softmax, which are computed when they are asked for, exactly and with gradients.

    It holds query, key and the rules between them, and nothing of the size queries × keys. Weights are per query head,
    also where heads share their keys. If query, key or mask are changed in place after it was made, it raises
    `StaleView`.

    Example:
        >>> import regard, torch
        >>> query, key = torch.randn(2, 1, 8, 2000, 64).unbind(0)
        >>> W = regard.weights(query, key, mask=regard.Causal())
        >>> W  # doctest: +NORMALIZE_WHITESPACE
        WeightMatrix(batch=1, heads=8, queries=2000, keys=2000, mask=Causal(), float32, cpu,
            holds 8.2 MB in place of 128.0 MB)
        >>> torch.allclose(W[0, 3, 120].sum(), torch.tensor(1.0))
        True
        >>> W.topk(3).indices.shape
        torch.Size([1, 8, 2000, 3])
    """

    _shown = "weights"

    @property
    def scores(self) -> ScoreMatrix:
        """The matrix before softmax."""
        self._check()
        return ScoreMatrix(self.request)

    def measure(self, *asked: str | Measure | MeasureLike) -> dict[str, Any]:
        """Several answers from one pass.

        Args:
            asked: Names and measures, or one dict that names them, as for `attend`.

        Returns:
            The answers by name, in float32 (float64 for float64).

        Raises:
            InvalidArgument: If a name is unknown, comes twice, or an argument does not fit the matrix.

        Memory: O(queries + keys), forward and backward.

        Example:
            >>> import regard, torch
            >>> W = regard.weights(torch.randn(1, 8, 50, 16), torch.randn(1, 8, 60, 16))
            >>> {name: tuple(answer.shape) for name, answer in W.measure("entropy", "received").items()}
            {'entropy': (1, 8, 50), 'received': (1, 8, 60)}
        """
        measures = as_measures(asked[0] if len(asked) == 1 else asked)  # pyright: ignore[reportArgumentType]
        raise_problems(
            [objection for m in measures.values() for objection in m.objections(self.request.shape, self.device)],
            InvalidArgument,
        )
        self._check()
        return ask(self.request, measures)

    def entropy(self) -> Float[Tensor, "batch heads queries"]:
        """How spread each row is, in nats, (batch, heads, queries). See `Entropy`."""
        return self.measure("entropy")["entropy"]

    def lse(self) -> Float[Tensor, "batch heads queries"]:
        """The log-sum-exp of each row's scores, (batch, heads, queries). See `LogSumExp`."""
        return self.measure("lse")["lse"]

    def max(self) -> MaxResult:
        """The largest weight and the highest score of each row, each (batch, heads, queries). See `Max`."""
        return self.measure("max")["max"]

    def mean_distance(self) -> Float[Tensor, "batch heads queries"]:
        """How far each row looks, in keys, (batch, heads, queries). See `MeanDistance`."""
        return self.measure("mean_distance")["mean_distance"]

    def mass(self, cells: Mask) -> Float[Tensor, "batch heads queries"]:
        """The mass of each row on the cells that a rule allows, (batch, heads, queries). See `Mass`."""
        return self.measure(Mass(cells))["mass"]

    def diagonal(self, d: int = 0) -> Float[Tensor, "batch heads queries"]:
        """The weight on the key at a distance, (batch, heads, queries). See `Diagonal`."""
        return self.measure(Diagonal(d))["diagonal"]

    def distance_histogram(self, k: int) -> Float[Tensor, "batch heads queries distances"]:
        """The weight at each distance, clipped at k, (batch, heads, queries, 2k + 1). See `DistanceHistogram`."""
        return self.measure(DistanceHistogram(k))["distance_histogram"]

    def block_mean(self, size: int) -> Float[Tensor, "batch heads queries keys"]:
        """The mean of each square of cells, (batch, heads, ⌈queries / size⌉, ⌈keys / size⌉). See `BlockMean`."""
        return self.measure(BlockMean(size))["block_mean"]

    def grouped(
        self, query_groups: Integer[Tensor, "*batch queries"], key_groups: Integer[Tensor, "*batch keys"]
    ) -> Float[Tensor, "batch heads query_groups key_groups"]:
        """How groups of queries look at groups of keys. See `GroupPool`."""
        return self.measure(GroupPool(query_groups, key_groups))["group_pool"]

    def received(self, row_weights: Tensor | None = None) -> Float[Tensor, "batch heads keys"]:
        """What each key receives, (batch, heads, keys). See `Received`."""
        return self.measure(Received(row_weights))["received"]

    def topk(self, k: int) -> TopKResult:
        """The k strongest keys of each row: values and indices, (batch, heads, queries, k). See `TopK`."""
        return self.measure(TopK(k))["topk"]

    def __matmul__(
        self, x: Float[Tensor, " keys"] | Float[Tensor, "... keys columns"]
    ) -> Float[Tensor, "batch heads queries"] | Float[Tensor, "batch heads queries columns"]:
        """The product with a vector or a matrix, as `dense() @ x`, without the dense.

        Args:
            x: (keys,), (keys, columns), or (..., keys, columns) that broadcasts to batch and heads; where heads of the
                query share one of the key, it may have as many heads as the key.

        Returns:
            (batch, heads, queries) or (batch, heads, queries, columns), in the dtype of x.

        Raises:
            InvalidArgument: If x does not fit.
        """
        value = as_columns("W @ x", x, self.shape, 3, self.device, self.request.key.shape[1])
        self._check()
        job = KernelInputs(self.request, value.expand(self.shape[0], -1, -1, -1), {})
        output, _ = choose(job).run(job)
        assert output is not None
        return output[..., 0] if x.ndim == 1 else output

    @property
    def mT(self) -> Transposed:  # noqa: N802 - as torch calls it
        """The transpose, for products: ``W.mT @ y`` is what the keys receive where y weighs the queries."""
        return Transposed(self)

    def linear_operator(self) -> Any:
        """One head's weights as `scipy.sparse.linalg.LinearOperator`, for singular values and the like.

        Returns:
            An operator of shape (queries, keys), of NumPy arrays; nothing of that size is made.

        Raises:
            InvalidArgument: If this is not one head of one sequence: choose it by ``W.at(batch=0, heads=3)``.
            MissingExtra: If SciPy is not installed.

        Example:
            >>> import regard, torch
            >>> from scipy.sparse.linalg import svds
            >>> _ = torch.manual_seed(0)
            >>> W = regard.weights(torch.randn(1, 8, 500, 64), torch.randn(1, 8, 500, 64))
            >>> largest = svds(W.at(heads=3).linear_operator(), k=2, return_singular_vectors=False, rng=0)
            >>> bool(abs(largest.max() - torch.linalg.svdvals(W[0, 3])[0]) < 1e-4)
            True
        """
        require_one_head("linear_operator", self.shape)
        weights = self.detach()
        return linear_operator(weights.__matmul__, weights.mT.__matmul__, self.shape[2:], self.dtype, self.device)


class Transposed:
    """The transpose of a weight matrix, (batch, heads, keys, queries): ``W.mT @ y`` without the matrix."""

    def __init__(self, matrix: WeightMatrix) -> None:
        self.mT = matrix

    @property
    def shape(self) -> torch.Size:
        """(batch, heads, keys, queries)."""
        batch, heads, queries, keys = self.mT.shape
        return torch.Size((batch, heads, keys, queries))

    def __repr__(self) -> str:
        return f"{self.mT!r}.mT"

    def __matmul__(
        self, y: Float[Tensor, " queries"] | Float[Tensor, "... queries columns"]
    ) -> Float[Tensor, "batch heads keys"] | Float[Tensor, "batch heads keys columns"]:
        """The product with a vector or a matrix, as ``dense().mT @ y``; with a vector, what `Received` gives for it.

        Args:
            y: (queries,), (queries, columns), or (..., queries, columns) that broadcasts to batch and heads.

        Returns:
            (batch, heads, keys) or (batch, heads, keys, columns), in the dtype of y.

        Raises:
            InvalidArgument: If y does not fit.
            InvalidType: If it is no tensor of floating-point numbers.

        Memory: O(queries + keys) for each column.
        """
        rows = as_columns("W.mT @ y", y, self.mT.shape, 2, self.mT.device)
        found = self.mT.measure({"pulled": TransposedProduct(rows)})["pulled"].to(y.dtype)
        return found[..., 0] if y.ndim == 1 else found
