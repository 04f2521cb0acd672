"""Extreme singular values and eigenvalues of matrices that are known by their products: block Krylov methods.

A pass multiplies a block of vectors by the matrices of all heads. The blocks are orthonormalized against all earlier
ones (full reorthogonalization). Within their span the matrix is small, and its values converge to the extreme ones of
the whole. What the span leaves out is the residual, which takes no further pass.

Matrices are tensors or lazy matrices: they have `shape`, (batch, heads, rows, columns), ``@``, `mT` and `detach`.

Reference: Golub, Luk and Overton 1981, "A Block Lanczos Method for Computing the Singular Values and Corresponding
Singular Vectors of a Matrix"; Saad 2011, "Numerical Methods for Large Eigenvalue Problems", chapter 6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.errors import InvalidArgument

BLOCK = 16
"""Vectors of a block: a pass with 16 takes hardly longer than one with a single vector."""


class Budget(NamedTuple):
    """When to stop."""

    tol: float
    """The largest residual, relative to the largest value."""
    max_passes: int
    """Products with the matrix or its transpose."""


class Triplets(NamedTuple):
    """Singular values, descending, and their vectors."""

    u: Tensor
    """(batch, heads, rows, k)."""
    s: Tensor
    """(batch, heads, k)."""
    v: Tensor
    """(batch, heads, columns, k)."""
    residuals: Tensor
    """(batch, heads, k) Norms of Wᵀu − σv, where Wv = σu."""
    following: Tensor
    """(batch, heads, 1) The next singular value, 0 if there is none."""


class Pairs(NamedTuple):
    """Eigenvalues and their vectors of length 1."""

    values: Tensor
    """(batch, heads, k)."""
    vectors: Tensor
    """(batch, heads, rows, k)."""
    residuals: Tensor
    """(batch, heads, k) Norms of Wx − λx."""


def dense_svd(matrix: Tensor) -> Triplets:
    """All triplets of a tensor."""
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    residuals = (matrix.mT @ u - vh.mT * s[..., None, :]).norm(dim=-2)
    return Triplets(u, s, vh.mT, residuals, torch.zeros_like(s[..., :1]))


def golub_kahan(matrix: Any, k: int, budget: Budget) -> Triplets:
    """The k largest singular values and their vectors, two passes for each block.

    Raises:
        InvalidArgument: If they do not converge.
    """
    if matrix.shape[-2] < matrix.shape[-1]:  # blocks of the shorter vectors may fill their space
        found = golub_kahan(matrix.mT, k, budget)
        return found._replace(u=found.v, v=found.u)
    block = _random_block(matrix, max(2 * k, BLOCK))
    left, right = block.new_empty(*matrix.shape[:3], 0), block
    projected = block.new_empty(*matrix.shape[:2], 0, 0)
    worst, checked, passes = torch.inf, 0, budget.max_passes // 2
    for number in range(1, passes + 1):
        new_left, column, corner = _extend(left, check_finite(matrix @ block))
        below = block.new_zeros(*matrix.shape[:2], corner.shape[-2], projected.shape[-1])
        projected = _bordered(projected, below, torch.cat([column, corner], -2))
        left = torch.cat([left, new_left], -1)
        block, _, outside = _extend(right, check_finite(matrix.mT @ new_left))
        if _is_due(right, checked) or number == passes:
            p, s, qh = torch.linalg.svd(projected)
            residuals = (outside @ p[..., -new_left.shape[-1] :, :k]).norm(dim=-2)
            worst, checked = relative(residuals, s[..., :1]), right.shape[-1]
            if worst <= budget.tol:
                following = pad(s, (0, 1))[..., k : k + 1]
                return Triplets(left @ p[..., :k], s[..., :k], right @ qh.mT[..., :k], residuals, following)
        right = torch.cat([right, block], -1)
    raise not_converged(f"{k} singular values", worst, budget)


def dense_eig(matrix: Tensor, k: int, *, symmetric: bool, largest: bool = True) -> Pairs:
    """The eigenpairs of a tensor that `arnoldi` finds."""
    values, vectors = _eigenpairs(matrix, k, symmetric, largest)
    return Pairs(values, vectors, (matrix.to(vectors.dtype) @ vectors - vectors * values[..., None, :]).norm(dim=-2))


def arnoldi(matrix: Any, k: int, budget: Budget, *, symmetric: bool, largest: bool = True) -> Pairs:
    """The k eigenvalues of largest magnitude and their vectors, a pass for each block; or of a symmetric one the least.

    Raises:
        InvalidArgument: If they do not converge.
    """
    block, worst = _random_block(matrix, max(2 * k, BLOCK)), torch.inf
    for basis, projected, outside in krylov(matrix.__matmul__, block, budget.max_passes):
        values, inner = _eigenpairs(projected, k, symmetric, largest)
        residuals = (outside.to(inner.dtype) @ inner[..., -outside.shape[-1] :, :]).norm(dim=-2)
        worst = relative(residuals, torch.linalg.matrix_norm(projected, 2)[..., None])
        if worst <= budget.tol:
            return Pairs(values, basis.to(inner.dtype) @ inner, residuals)
    raise not_converged(f"{k} eigenvalues", worst, budget)


def _random_block(matrix: Any, size: int) -> Tensor:
    """The first block, the same in each call: (batch, heads, columns, size or fewer)."""
    batch, heads, _, columns = matrix.shape
    generator = torch.Generator().manual_seed(0)
    block = torch.randn(columns, min(size, columns), generator=generator, dtype=torch.float64, device="cpu")
    return torch.linalg.qr(block)[0].to(matrix.dtype).to(matrix.device).expand(batch, heads, -1, -1)


def check_finite(numbers: Tensor) -> Tensor:
    """The numbers.

    Raises:
        InvalidArgument: If one is not finite, as the scores of masked keys.
    """
    if not numbers.isfinite().all():
        raise InvalidArgument("spectrum: expected a matrix of finite numbers, got NaN or infinite ones")
    return numbers


def krylov(product: Callable[[Tensor], Tensor], block: Tensor, passes: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Now and then after a pass: product(basis) = basis @ projected + new @ outside, with a new last block."""
    basis, projected, checked = block, block.new_empty(*block.shape[:2], 0, 0), 0
    lower = block.new_empty(*block.shape[:2], block.shape[-1], 0)
    for number in range(1, passes + 1):
        new, column, outside = _extend(basis, check_finite(product(block)))
        below = pad(lower, (projected.shape[-1] - lower.shape[-1], 0))
        projected, lower = _bordered(projected, below, column), outside
        if _is_due(basis, checked) or number == passes:
            yield basis, projected, outside
            checked = basis.shape[-1]
        basis, block = torch.cat([basis, new], -1), new


def _is_due(basis: Tensor, checked: int) -> bool:
    """Whether to decompose the small matrix again: in each pass, it would take longer than the passes.

    Also where the basis fills its space.
    """
    return basis.shape[-1] >= 1.2 * checked or basis.shape[-1] == basis.shape[-2]


def _extend(basis: Tensor, block: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Orthonormal `new` with block = basis @ column + new @ corner.

    The second round removes what rounding left. Where the block has a lower rank, the factorization adds directions
    that may lie near the basis: the third removes what rounding left of these.
    """
    column, corner = 0.0, None
    for _ in range(3):
        inside = basis.mT @ block
        new, triangle = _orthonormal(block - basis @ inside, basis.shape[-2] - basis.shape[-1])
        column = inside if corner is None else column + inside @ corner
        corner = triangle if corner is None else triangle @ corner
        block = new
    assert isinstance(column, Tensor)
    assert corner is not None
    return block, column, corner


def _orthonormal(block: Tensor, room: int) -> tuple[Tensor, Tensor]:
    """Orthonormal factor and the rest; with at most `room` columns, which then span all that is left."""
    if room >= block.shape[-1]:
        return torch.linalg.qr(block)
    u, s, vh = torch.linalg.svd(block, full_matrices=False)
    return u[..., :room], s[..., :room, None] * vh[..., :room, :]


def _bordered(matrix: Tensor, below: Tensor, column: Tensor) -> Tensor:
    return torch.cat([torch.cat([matrix, below], -2), column], -1)


def _eigenpairs(matrix: Tensor, k: int, symmetric: bool, largest: bool) -> tuple[Tensor, Tensor]:
    """The k eigenvalues of largest magnitude, or the k least, and their vectors."""
    values, vectors = torch.linalg.eigh((matrix + matrix.mT) / 2) if symmetric else _eig(matrix)
    order = values.abs().argsort(dim=-1, descending=True, stable=True) if largest else values.argsort(-1)
    order = order[..., :k]
    return values.gather(-1, order), vectors.gather(-1, order[..., None, :].expand(*vectors.shape[:-1], -1))


def _eig(matrix: Tensor) -> tuple[Tensor, Tensor]:
    try:
        return torch.linalg.eig(matrix)
    except torch.linalg.LinAlgError:  # pyright: ignore[reportPrivateImportUsage]
        # LAPACK may not converge for a matrix of rank one: change it by as much as rounding does.
        noise = torch.rand(matrix.shape[-2:], generator=torch.Generator().manual_seed(0), device="cpu").to(
            matrix.device
        )
        scale = torch.finfo(matrix.dtype).eps * matrix.abs().amax((-2, -1), keepdim=True)
        return torch.linalg.eig(matrix + scale * noise)


def relative(residuals: Tensor, scale: Tensor) -> float:
    """The largest residual, relative to the scale of each head; 0 where all is 0."""
    return float((residuals / scale.clamp(min=torch.finfo(scale.dtype).tiny)).max())


def not_converged(what: str, worst: float, budget: Budget) -> InvalidArgument:
    """The error that says how far from convergence the passes ended."""
    return InvalidArgument(
        f"max_passes: {what} did not converge in {budget.max_passes} passes over the matrix; the largest residual is "
        f"{worst:.1e} times the largest value, and tol is {budget.tol:.1e}; raise max_passes or tol"
    )
