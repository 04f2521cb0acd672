"""MatrixSum: what a lazy matrix and its transpose make, such as its symmetric part and the Laplacians of its graph."""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from regard.checks import Checks
from regard.ops.linear_operator import as_columns
from regard.ops.spectra import Spectra
from regard.ops.tensor_functions import DENSE_LIMIT

LaplacianKind = Literal["undirected", "normalized", "in_degree", "out_degree"]
"""Which Laplacian of the attention graph."""


class MatrixSum(Spectra):
    """diag(l) (a W + b Wᵀ) diag(r) + diag(d): what a lazy matrix W and its transpose make, with products and spectra.

    `MatrixParts` returns it. It holds W and vectors.

    Args:
        matrix: W, (batch, heads, queries, keys).
        factor: a.
        transposed_factor: b, 0 unless W is square.
        left: l, (batch, heads, rows). Default: 1.
        right: r, (batch, heads, columns). Default: 1.
        added: d, (batch, heads, rows), of a square matrix. Default: 0.

    Examples:
        >>> import regard, torch
        >>> W = regard.weights(*torch.randn(2, 1, 8, 50, 16).unbind())
        >>> W.antisymmetric_part
        MatrixSum(0.5 W − 0.5 Wᵀ, shape=(1, 8, 50, 50))
        >>> W.antisymmetric_part.singular_values(2).shape
        torch.Size([1, 8, 2])
    """

    def __init__(
        self,
        matrix: Any,
        factor: float,
        transposed_factor: float,
        left: Float[Tensor, "batch heads rows"] | None = None,
        right: Float[Tensor, "batch heads columns"] | None = None,
        added: Float[Tensor, "batch heads rows"] | None = None,
    ) -> None:
        self.matrix, self.factor, self.transposed_factor = matrix, factor, transposed_factor
        self.left, self.right, self.added = left, right, added

    @property
    def shape(self) -> torch.Size:
        """(batch, heads, rows, columns)."""
        return self.matrix.shape if self.factor else self.matrix.mT.shape

    @property
    def dtype(self) -> torch.dtype:
        """That of W."""
        return self.matrix.dtype

    @property
    def device(self) -> torch.device:
        """That of W."""
        return self.matrix.device

    @property
    def requires_grad(self) -> bool:
        """Whether W requires a gradient."""
        return self.matrix.requires_grad

    @property
    def is_symmetric(self) -> bool:
        """Whether a = b and l = r."""
        return self.factor == self.transposed_factor and self.left is self.right

    @property
    def is_triangular(self) -> bool:
        """Whether W is, and a or b is 0."""
        return self.matrix.is_triangular and 0 in (self.factor, self.transposed_factor)

    @property
    def mT(self) -> MatrixSum:  # noqa: N802 - torch's name
        """The transpose."""
        return MatrixSum(self.matrix, self.transposed_factor, self.factor, self.right, self.left, self.added)

    def __repr__(self) -> str:
        terms = [f"{x:g} {name}" for x, name in ((self.factor, "W"), (self.transposed_factor, "Wᵀ")) if x]
        terms += ["diagonal"] if self.added is not None else []
        return f"{type(self).__name__}({' + '.join(terms).replace('+ -', '− ')}, shape={tuple(self.shape)})"

    def __matmul__(self, x: Tensor) -> Tensor:
        """The product with a vector or a matrix, as ``dense() @ x``: one pass, or two if a and b are not 0.

        Args:
            x: (columns,), (columns, several), or (..., columns, several) broadcastable to batch and heads.

        Raises:
            InvalidArgument: If x does not fit.
            InvalidType: If it is not a floating-point tensor.
        """
        columns = as_columns("M @ x", x, self.shape, 3, self.device)
        scaled = columns if self.right is None else self.right[..., None] * columns
        parts = (self.factor, self.matrix), (self.transposed_factor, self.matrix.mT)
        total: Any = sum(factor * (matrix @ scaled) for factor, matrix in parts if factor)
        total = total if self.left is None else self.left[..., None] * total
        total = total if self.added is None else total + self.added[..., None] * columns
        return total[..., 0] if x.ndim == 1 else total

    def dense(self, limit: int = DENSE_LIMIT) -> Float[Tensor, "batch heads rows columns"]:
        """All cells as a tensor.

        Args:
            limit: Largest number of cells.

        Raises:
            InvalidArgument: If there are more.
        """
        cells = self.matrix.dense(limit)
        parts = (self.factor, cells), (self.transposed_factor, cells.mT)
        total: Any = sum(factor * part for factor, part in parts if factor)
        total = total if self.left is None else self.left[..., None] * total
        total = total if self.right is None else total * self.right[..., None, :]
        return total if self.added is None else total + self.added.diag_embed()

    def diagonal(self, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
        """A diagonal, as ``dense().diagonal``; the main one between queries and keys computes only these cells."""
        if (offset, dim1, dim2) != (0, 2, 3):
            return self.dense_for("diagonal").diagonal(offset, dim1, dim2)
        cells = (self.factor + self.transposed_factor) * self.matrix.diagonal(0, 2, 3)
        for scale in (self.left, self.right):
            cells = cells if scale is None else scale[..., : cells.shape[2]] * cells
        return cells if self.added is None else cells + self.added

    def reduce_axes(self, name: str, dims: tuple[int, ...]) -> Tensor:
        return getattr(torch, name)(self.dense_for(name), dims, keepdim=True)

    def to(self, *args: Any, **options: Any) -> Any:
        """The dense matrix on another device or in another dtype."""
        return self.dense_for("to").to(*args, **options)

    def detach(self) -> MatrixSum:
        """The same matrix, detached from the graph of its tensors."""
        vectors = (None if each is None else each.detach() for each in (self.left, self.right, self.added))
        return MatrixSum(self.matrix.detach(), self.factor, self.transposed_factor, *vectors)

    def in_dtype_of_sums(self) -> MatrixSum:
        matrix = self.matrix.in_dtype_of_sums()
        return MatrixSum(matrix, self.factor, self.transposed_factor, self.left, self.right, self.added)


class MatrixParts(Spectra):
    """Base of lazy matrices whose symmetric part, antisymmetric part and Laplacians are lazy, too."""

    @property
    def symmetric_part(self) -> MatrixSum:
        """(W + Wᵀ) / 2, as lazy as the matrix."""
        self.check_square("symmetric_part")
        return MatrixSum(self, 0.5, 0.5)

    @property
    def antisymmetric_part(self) -> MatrixSum:
        """(W − Wᵀ) / 2, as lazy as the matrix: how much attention i pays to j beyond what j pays to i."""
        self.check_square("antisymmetric_part")
        return MatrixSum(self, 0.5, -0.5)

    def laplacian(self, kind: LaplacianKind = "undirected") -> MatrixSum:
        """The Laplacian of the graph whose edges are weights, as lazy as the matrix. Padding queries, if known, are 0.

        With S = (W + Wᵀ) / 2 and D the sums of its rows, ``"undirected"`` is D − S, and ``"normalized"`` is
        I − D^-½ S D^-½; both are symmetric. ``"in_degree"`` is diag(Σᵢ Wᵢⱼ) − W, ``"out_degree"`` diag(Σⱼ Wᵢⱼ) − W.

        Args:
            kind: Which one.

        Raises:
            InvalidArgument: If the matrix is not square, or there is no such Laplacian.

        Reference:
            Chung 1997, "Spectral Graph Theory"; Binkowski et al. 2025, "Hallucination Detection in LLMs Using Spectral
            Features of Attention Maps" (``"in_degree"``).

        Examples:
            >>> import regard, torch
            >>> W = regard.weights(*torch.zeros(2, 1, 1, 3, 8).unbind())
            >>> W.laplacian().dense()[0, 0].diagonal()
            tensor([0.6667, 0.6667, 0.6667])
        """
        self.check_square("laplacian")
        with Checks() as checks:
            checks.choice("kind", kind, ("undirected", "normalized", "in_degree", "out_degree"))
        matrix: Any = self
        rows = self._valid_rows()
        ones = torch.ones(*self.shape[:3], dtype=self.dtype, device=self.device) if rows is None else rows
        sent, received = ones * (matrix @ ones[..., None])[..., 0], (matrix.mT @ ones[..., None])[..., 0]
        if kind in ("in_degree", "out_degree"):
            return MatrixSum(matrix, -1.0, 0.0, rows, rows, received if kind == "in_degree" else sent)
        degrees = (sent + received) / 2
        if kind == "undirected":
            return MatrixSum(matrix, -0.5, -0.5, rows, rows, degrees)
        scale = ones * degrees.where(degrees > 0, torch.inf).rsqrt()
        return MatrixSum(matrix, -0.5, -0.5, scale, scale, (degrees > 0).to(degrees.dtype))

    def _valid_rows(self) -> Tensor | None:
        """(batch, heads, queries) 1 where a query is not padding; None if none is known to be."""
        valid = getattr(self, "valid_queries", None)
        return None if valid is None else valid[:, None].expand(self.shape[:3]).to(self.dtype)

    def without_padding(self) -> Spectra:
        """The matrix with 0 in the rows of padding, if these are known."""
        rows = self._valid_rows()
        return self if rows is None else MatrixSum(self, 1.0, 0.0, rows)
