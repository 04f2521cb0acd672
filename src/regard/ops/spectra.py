"""Spectra: singular values, eigenvalues and what follows from them, of lazy matrices with products."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from regard.checks import Checks
from regard.errors import InvalidArgument
from regard.ops.krylov import Budget, arnoldi, check_finite, dense_eig, dense_svd, golub_kahan
from regard.ops.spectral_gradients import DifferentiableEigenvalues, DifferentiableTriplets, Resolvent, left_vectors
from regard.ops.tensor_functions import TensorFunctions

DENSE_CELLS = 2**18
"""Cells of a head up to which its spectrum is computed from the dense matrix, 512 × 512: faster there, and exact."""

MAX_PASSES = 100
"""Products with a matrix or its transpose after which a spectrum has not converged."""


class SVD(NamedTuple):
    """Singular values and vectors: W ≈ U diag(S) Vᵀ, as in `torch.svd_lowrank`."""

    U: Float[Tensor, "batch heads queries k"]
    """The left singular vectors, in columns."""
    S: Float[Tensor, "batch heads k"]
    """The singular values, in descending order."""
    V: Float[Tensor, "batch heads keys k"]
    """The right singular vectors, in columns."""
    residuals: Float[Tensor, "batch heads k"]
    """The norms of Wᵀu − σv, where Wv = σu; a singular value is at most so far from one of W."""


class Eigenpairs(NamedTuple):
    """Eigenvalues and vectors: W x = λ x."""

    eigenvalues: Inexact[Tensor, "batch heads k"]
    """In descending order of magnitude; complex, unless the matrix is symmetric."""
    eigenvectors: Inexact[Tensor, "batch heads tokens k"]
    """Vectors of length 1, in columns, without gradient."""
    residuals: Float[Tensor, "batch heads k"]
    """The norms of Wx − λx."""


class Spectra(TensorFunctions):
    """Base of lazy matrices (batch, heads, queries, keys) with products: their singular values and eigenvalues.

    All heads are computed at once, from products with blocks of vectors: a pass over the weights for each. Up to 512 ×
    512 cells a head, and for all values (``k=None``), they come from the dense matrix.

    Subclasses have ``@`` and `mT`.
    """

    multiplies = True

    @property
    def mT(self) -> Any:  # noqa: N802 - torch's name
        """The transpose, with products."""
        raise NotImplementedError

    @property
    def is_symmetric(self) -> bool:
        """Whether the matrix is known to be symmetric, so that its eigenvalues are real."""
        return False

    @property
    def is_triangular(self) -> bool:
        """Whether the matrix is known to be triangular, so that its diagonal holds its eigenvalues."""
        return False

    def detach(self) -> Any:
        """The same matrix, detached from the graph of its tensors."""
        raise NotImplementedError

    def in_dtype_of_sums(self) -> Any:
        """The same matrix, in whose gradients those of several products are added up before they are rounded."""
        return self

    def without_padding(self) -> Spectra:
        """The matrix with 0 in the rows of padding, if these are known."""
        return self

    def svd(self, k: int | None = None, *, tol: float | None = None, max_passes: int = MAX_PASSES) -> SVD:
        """The k largest singular values and their vectors.

        Values have gradients, dσ = uᵀ dW v; vectors, too, where all singular values differ from theirs. Both are of
        first order.

        Args:
            k: How many. Default: all, from the dense matrix.
            tol: The largest residual, relative to the largest singular value. Default: the square root of the dtype's
                eps, 3e-4 (1e-8 in float64): where values are not close together, errors are like its square.
            max_passes: Largest number of products with the matrix or its transpose.

        Returns:
            ``U, S, V, residuals``; V is not transposed.

        Raises:
            InvalidArgument: If there are fewer than k values, they do not converge, or all are asked for and the dense
                matrix is too large. In a backward pass, if a vector has no gradient, because the gap to another
                singular value is too small.

        Memory:
            O((queries + keys) * passes * k).

        Reference:
            Golub and Kahan 1965; Golub, Luk and Overton 1981.

        Examples:
            >>> import regard, torch
            >>> W = regard.weights(*torch.randn(2, 1, 8, 600, 16).unbind())
            >>> U, S, V, residuals = W.svd(4)
            >>> U.shape, S.shape, bool((residuals < 1e-3).all())
            (torch.Size([1, 8, 600, 4]), torch.Size([1, 8, 4]), True)
        """
        return self._svd("svd", k, tol, max_passes)

    def singular_values(
        self, k: int | None = None, *, tol: float | None = None, max_passes: int = MAX_PASSES
    ) -> Float[Tensor, "batch heads k"]:
        """The k largest singular values, (batch, heads, k), in descending order; see `svd`."""
        return self._svd("singular_values", k, tol, max_passes).S

    def eig(
        self, k: int | None = None, *, largest: bool = True, tol: float | None = None, max_passes: int = MAX_PASSES
    ) -> Eigenpairs:
        """The k eigenvalues of largest magnitude and their vectors.

        Eigenvalues have gradients of first order, dλ = yᵀ dW x for a left vector y with yᵀx = 1, where they are simple.

        Args:
            k: How many. Default: all, from the dense matrix.
            largest: False for the least ones of a symmetric matrix, in ascending order, such as a Laplacian.
            tol: The largest residual, relative to the norm of the matrix. Default: as in `svd`.
            max_passes: Largest number of products with the matrix.

        Returns:
            ``eigenvalues, eigenvectors, residuals``; complex, unless the matrix is symmetric. How far an eigenvalue of
            a matrix that is not symmetric is from the exact one also depends on its condition.

        Raises:
            InvalidArgument: If the matrix is not square, or has fewer than k values, or they do not converge, or all
                are asked for and the dense matrix is too large; or the least ones of a matrix that is not symmetric are
                asked for. With gradients, if an eigenvalue is not simple.

        Memory:
            O(tokens * passes * k).

        Reference:
            Saad 2011, "Numerical Methods for Large Eigenvalue Problems", chapter 6.

        Examples:
            >>> import regard, torch
            >>> W = regard.weights(*torch.randn(2, 1, 8, 600, 16).unbind())
            >>> W.eig(2).eigenvalues.abs()[0, :, 0]
            tensor([1.0000, 1.0000, 1.0000, 1.0000, 1.0000, 1.0000, 1.0000, 1.0000])
            >>> W.laplacian().eig(2, largest=False).eigenvectors.shape  # the second is Fiedler's
            torch.Size([1, 8, 600, 2])
        """
        count, budget = self._checked("eigenvalues", k, tol, max_passes, square=True)
        if not largest and not self.is_symmetric:
            raise InvalidArgument("largest: expected True, got False, which only a symmetric matrix can have")
        matrix: Any = self._computed(k)
        plain, symmetric = matrix.detach(), self.is_symmetric

        def find(matrix: Any, count: int) -> Any:
            options = {"symmetric": symmetric, "largest": largest}
            return (
                dense_eig(matrix, count, **options)
                if isinstance(matrix, Tensor)
                else arnoldi(matrix, count, budget, **options)
            )

        with torch.no_grad():
            pairs = find(plain, count)
        values, vectors, _ = pairs
        if torch.is_grad_enabled() and matrix.requires_grad:
            parts = vectors if symmetric else torch.cat([vectors.real, vectors.imag], -1)
            with torch.no_grad():
                more = min(count + 1, self.shape[2])
                left = vectors if symmetric else left_vectors(pairs, find(plain.mT, more))
            values = DifferentiableEigenvalues.apply(matrix @ parts, left, values)
        return Eigenpairs(values, vectors, pairs.residuals)

    def eigenvalues(
        self, k: int | None = None, *, largest: bool = True, tol: float | None = None, max_passes: int = MAX_PASSES
    ) -> Inexact[Tensor, "batch heads k"]:
        """The k eigenvalues of largest magnitude, (batch, heads, k); see `eig`. Those of a causal matrix are exact."""
        if not self.is_triangular or not largest:
            return self.eig(k, largest=largest, tol=tol, max_passes=max_passes).eigenvalues
        count, _ = self._checked("eigenvalues", k, tol, max_passes, square=True)
        diagonal = self.diagonal(0, 2, 3)
        values = diagonal.gather(-1, diagonal.detach().abs().topk(count).indices)
        return torch.complex(values, torch.zeros_like(values))

    def spectral_entropy(self, k: int | None = None, **options: Any) -> Float[Tensor, "batch heads"]:
        """The entropy of the k largest singular values as shares of their sum: −Σᵢ pᵢ log pᵢ, in nats; (batch, heads).

        It is 0 for a matrix of rank one, where every query has the same output up to a factor, and log k where all
        singular values are equal. Padding queries, if known, count as 0.

        Args:
            k: How many singular values. Default: all, from the dense matrix.
            options: ``tol`` and ``max_passes``, as in `svd`.

        Reference:
            Roy and Vetterli 2007, "The Effective Rank: A Measure of Effective Dimensionality".
        """
        values = self.without_padding().singular_values(k, **options)
        least = torch.finfo(values.dtype).eps * max(self.shape[2:]) * values.detach().amax(-1, keepdim=True)
        values = values.where(values > least, 0.0)  # rounding; the entropy has no derivative at 0
        shares = values / values.sum(-1, keepdim=True).clamp(min=torch.finfo(values.dtype).tiny)
        return -(shares * shares.where(shares > 0, 1.0).log()).sum(-1)

    def effective_rank(self, k: int | None = None, **options: Any) -> Float[Tensor, "batch heads"]:
        """The exponential of `spectral_entropy`: how many equal singular values have this entropy; (batch, heads)."""
        return self.spectral_entropy(k, **options).exp()

    def spectral_gap(self, **options: Any) -> Float[Tensor, "batch heads"]:
        """The gap |λ₁| − |λ₂| between the magnitudes of the first two eigenvalues, (batch, heads).

        Rows of weights sum to 1, so λ₁ = 1, and a random walk along attention forgets its start like |λ₂| to the power
        of its steps. Padding queries, if known, are not visited.

        Args:
            options: ``tol`` and ``max_passes``, as in `eig`.

        Reference:
            Levin and Peres 2017, "Markov Chains and Mixing Times", chapter 12.
        """
        sizes = self.without_padding().eigenvalues(min(2, *self.shape[2:]), **options).abs()
        return sizes[..., 0] - sizes[..., 1:].sum(-1)

    def _svd(self, name: str, k: int | None, tol: float | None, max_passes: int) -> SVD:
        count, budget = self._checked(name, k, tol, max_passes)
        matrix: Any = self._computed(k)
        plain = matrix.detach()
        with torch.no_grad():
            known = dense_svd(plain) if isinstance(plain, Tensor) else golub_kahan(plain, count, budget)
        u, s, v = known.u[..., :count], known.s[..., :count], known.v[..., :count]
        if torch.is_grad_enabled() and matrix.requires_grad:
            left = matrix.mT @ u if name == "svd" else None
            u, s, v = DifferentiableTriplets.apply(matrix @ v, left, u, s, v, Resolvent(plain, known, budget))
        return SVD(u, s, v, known.residuals[..., :count])

    def _computed(self, k: int | None) -> Any:
        """The matrix, or the tensor of a small one."""
        is_small = k is None or prod(self.shape[2:]) <= DENSE_CELLS
        return check_finite(self.dense()) if is_small else self.in_dtype_of_sums()

    def _checked(
        self, name: str, k: int | None, tol: float | None, max_passes: int, *, square: bool = False
    ) -> tuple[int, Budget]:
        if square:
            self.check_square(name)
        rows, columns = self.shape[2:]
        with Checks() as checks:
            is_count = checks.integer("k", k, low=1, optional=True)
            if is_count and k is not None and k > min(rows, columns):
                checks.fail(f"k: expected at most {min(rows, columns)} values of a matrix {rows} × {columns}, got {k}")
            checks.number("tol", tol, above=0, optional=True)
            checks.integer("max_passes", max_passes, low=2)
        default = torch.finfo(self.dtype).eps ** 0.5
        return min(rows, columns) if k is None else k, Budget(default if tol is None else tol, max_passes)

    def check_square(self, name: str) -> None:
        """Check that a function, named so in errors, can be computed.

        Raises:
            InvalidArgument: If the matrix is not square.
        """
        rows, columns = self.shape[2:]
        if rows != columns:
            raise InvalidArgument(f"{name}: expected as many queries as keys, got {rows} and {columns}")
