"""Transposed: the transpose of a lazy matrix, which has its products."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from regard.checks import Checks
from regard.ops.linear_operator import as_columns
from regard.ops.matrix_stack import join
from regard.ops.matrix_sum import MatrixParts
from regard.ops.spectra import Spectra
from regard.ops.tensor_functions import DENSE_LIMIT, ROWS_AND_COLUMNS, TensorFunctions


class Multiplying(Protocol):
    """A lazy matrix, (batch, heads, queries, keys), whose transpose has products."""

    @property
    def shape(self) -> torch.Size: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def requires_grad(self) -> bool: ...
    def dense(self, limit: int = DENSE_LIMIT) -> Tensor: ...
    def to(self, *args: Any, **options: Any) -> Any: ...
    def detach(self) -> Any: ...
    def reduce_axes(self, name: str, dims: tuple[int, ...]) -> Tensor: ...
    def transposed_product(self, y: Tensor) -> Tensor:
        """``dense().mT @ y`` for y (batch or 1, heads or 1, queries, columns): (batch, heads, keys, columns)."""
        ...

    def topk_of_columns(self, k: int) -> Any:
        """The k largest cells of each column, (batch, heads, keys, k), and their queries."""
        ...


class Transposed(MatrixParts):
    """The transpose of a lazy matrix, (batch, heads, keys, queries)."""

    join = staticmethod(join)

    def __init__(self, matrix: Multiplying) -> None:
        self._matrix: Any = matrix

    @property
    def mT(self) -> Any:  # noqa: N802 - torch's name
        """The matrix itself."""
        return self._matrix

    @property
    def is_triangular(self) -> bool:
        return self.mT.is_triangular

    @property
    def shape(self) -> torch.Size:
        """(batch, heads, keys, queries)."""
        batch, heads, queries, keys = self.mT.shape
        return torch.Size((batch, heads, keys, queries))

    @property
    def dtype(self) -> torch.dtype:
        """That of the matrix."""
        return self.mT.dtype

    @property
    def device(self) -> torch.device:
        """That of the matrix."""
        return self.mT.device

    def __repr__(self) -> str:
        return f"{self.mT!r}.mT"

    def __matmul__(
        self, y: Float[Tensor, " queries"] | Float[Tensor, "... queries columns"]
    ) -> Float[Tensor, "batch heads keys"] | Float[Tensor, "batch heads keys columns"]:
        """The product with a vector or a matrix, as ``dense().mT @ y``; with a vector it equals `Received`.

        Args:
            y: (queries,), (queries, columns), or (..., queries, columns) broadcastable to batch and heads.

        Returns:
            (batch, heads, keys) or (batch, heads, keys, columns), in the dtype of y.

        Raises:
            InvalidArgument: If y does not fit.
            InvalidType: If it is not a floating-point tensor.

        Memory:
            O(queries + keys) per column.
        """
        y = y.dense_for("matmul") if isinstance(y, TensorFunctions) else y
        rows = as_columns("W.mT @ y", y, self.mT.shape, 2, self.mT.device)
        product = self.mT.transposed_product(rows).to(y.dtype)
        return product[..., 0] if y.ndim == 1 else product

    @property
    def requires_grad(self) -> bool:
        return self.mT.requires_grad

    def dense(self, limit: int = DENSE_LIMIT) -> Tensor:
        """The transpose of the matrix's `dense`."""
        return self.mT.dense(limit).mT

    def to(self, *args: Any, **options: Any) -> Any:
        """The transpose of the matrix's `to`."""
        return self.mT.to(*args, **options).mT

    def detach(self) -> Transposed:
        """The transpose of the matrix's `detach`."""
        return self.mT.detach().mT

    def diagonal(self, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
        """A diagonal, as ``dense().diagonal``; between keys and queries it computes only these cells."""
        if {dim1, dim2} not in ROWS_AND_COLUMNS:
            return self.dense_for("diagonal").diagonal(offset, dim1, dim2)
        return self.mT.diagonal(-offset, dim1, dim2)

    def in_dtype_of_sums(self) -> Transposed:
        return self.mT.in_dtype_of_sums().mT

    def without_padding(self) -> Spectra:
        return self.mT.without_padding().mT

    def transpose(self, dim0: int, dim1: int) -> Any:
        """The matrix itself, if these are queries and keys; else that of the dense matrix."""
        return self.mT if {dim0, dim1} in ROWS_AND_COLUMNS else self.dense_for("transpose").transpose(dim0, dim1)

    def reduce_axes(self, name: str, dims: tuple[int, ...]) -> Tensor:
        swapped = {2: 3, 3: 2}
        return self.mT.reduce_axes(name, tuple(swapped.get(dim, dim) for dim in dims)).mT

    def topk(self, k: int, dim: int = -1, largest: bool = True, *rest: bool, **options: bool) -> Any:
        """The k largest cells of each column: values and the indices of their queries, (batch, heads, keys, k).

        Of weights: where fewer than k queries have one above 0, the rest has value 0 and index −1. Values are
        differentiable.

        Args:
            k: Number of queries, at least 1.
            dim: The axis; over others than queries, the dense matrix is computed.
            largest: Whether to return the largest; for the smallest, the dense matrix is computed.
            rest: ``sorted``, as in ``torch.topk``; they always are.
            options: The same.

        Raises:
            InvalidType: If k is not an int.
            InvalidArgument: If it is below 1, or the result has more cells than `dense` computes by default.

        Memory:
            O(queries + keys * k). It takes about twice the time of `WeightMatrix.topk`.

        Examples:
            >>> import regard, torch
            >>> W = regard.weights(torch.randn(1, 8, 50, 16), torch.randn(1, 8, 60, 16))
            >>> torch.allclose(W.mT.topk(3).values, W.dense().mT.topk(3).values)
            True
        """
        if not largest or dim not in (3, -1):
            return super().topk(k, dim, largest, *rest, **options)
        checks = Checks()
        checks.integer("k", k, low=1)
        checks.raise_problems()
        return self.mT.topk_of_columns(k)
