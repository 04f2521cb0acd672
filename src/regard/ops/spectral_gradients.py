"""Gradients of singular values, singular vectors and eigenvalues, which reach a matrix through its products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.errors import InvalidArgument
from regard.ops.autograd import AutogradFunction, first_order_only
from regard.ops.krylov import Budget, Pairs, Triplets, krylov, not_converged, relative


@dataclass(eq=False)
class Resolvent:
    """What the gradients of singular vectors need: the matrix, without gradient, and the triplets known of it."""

    matrix: Any
    known: Triplets
    budget: Budget

    def solve(self, s: Tensor, of_u: Tensor, of_v: Tensor) -> tuple[Tensor, Tensor]:
        """(σᵢ − H)⁺ w̄ᵢ for the gradient w̄ = (ū, v̄) of each pair of vectors, with H = [[0, W], [Wᵀ, 0]].

        In the span of the known vectors it is a division by gaps; outside, σᵢ − H is positive definite.
        """
        u, known, v, _, following = self.known
        half_u, half_v = u.mT @ of_u / 2, v.mT @ of_v / 2
        minus, plus = s[..., None, :] - known[..., None], s[..., None, :] + known[..., None]
        itself = torch.eye(*minus.shape[-2:], dtype=torch.bool, device=s.device)
        minus = minus.masked_fill(itself, torch.inf)
        size = torch.cat([of_u, of_v], -2).norm(dim=-2)
        self._check_gaps(s, torch.cat([minus, (s - following)[..., None, :], 2 * s[..., None, :]], -2), size > 0)
        minus, plus = (gap.masked_fill(gap == 0, torch.inf) for gap in (minus, plus))  # of vectors without gradient
        of_sum, of_difference = (half_u + half_v) / minus, (half_u - half_v) / plus
        rest = torch.cat([of_u - 2 * u @ half_u, of_v - 2 * v @ half_v], -2)
        rest = self._solve_outside(s, rest, size)
        inside = torch.cat([u @ (of_sum + of_difference), v @ (of_sum - of_difference)], -2)
        first, second = (inside + rest).split([u.shape[-2], v.shape[-2]], -2)
        return first, second

    def _check_gaps(self, s: Tensor, gaps: Tensor, is_used: Tensor) -> None:
        """Each vector that is used needs a gap to all other singular values, and to 0, which is half of that to −σ."""
        least = gaps.abs().amin(-2).where(is_used, torch.inf)
        limit = torch.finfo(s.dtype).eps ** 0.5 * self.known.s[..., :1]
        if (least <= limit).any():
            place = tuple((least <= limit).nonzero()[0].tolist())
            raise InvalidArgument(
                f"svd: the vectors of singular value {place[-1]} of batch {place[0]}, head {place[1]} have no "
                f"gradient, because the gap between {float(s[place]):.6g} and the nearest other value is "
                f"{float(least[place]):.1e}, and must be above {float(limit[place[:2]]):.1e}; use the values alone, or "
                "a smaller k"
            )

    def _solve_outside(self, s: Tensor, rest: Tensor, size: Tensor) -> Tensor:
        """The part that is orthogonal to the known vectors; all shifts σᵢ share one Krylov space."""
        rows, worst = self.known.u.shape[-2], torch.inf

        def product(x: Tensor) -> Tensor:
            return self._outside(torch.cat([self.matrix @ x[..., rows:, :], self.matrix.mT @ x[..., :rows, :]], -2))

        block, factor = torch.linalg.qr(rest)
        for basis, projected, outside in krylov(product, block, self.budget.max_passes // 2):
            values, vectors = torch.linalg.eigh((projected + projected.mT) / 2)
            shifted = s[..., None, :] - values[..., None]
            solution = vectors @ (vectors[..., : factor.shape[-2], :].mT @ factor / shifted)
            worst = relative((outside @ solution[..., -outside.shape[-1] :, :]).norm(dim=-2), size)
            if worst <= self.budget.tol:
                return basis @ solution
        raise not_converged("the gradients of singular vectors", worst, self.budget)

    def _outside(self, x: Tensor) -> Tensor:
        """What is orthogonal to the known vectors: rounding would grow in them."""
        u, _, v, _, _ = self.known
        above, below = x.split([u.shape[-2], v.shape[-2]], -2)
        return torch.cat([above - u @ (u.mT @ above), below - v @ (v.mT @ below)], -2)


class DifferentiableTriplets(AutogradFunction):
    """Singular triplets as functions of the products Wv and Wᵀu, through which their gradients reach the matrix.

    With p = (σᵢ − H)⁺ (ū, v̄) the gradient of W is Σᵢ (σ̄ᵢ uᵢ + pᵤ) vᵢᵀ + uᵢ pᵥᵀ: that of Wv is the factor of vᵀ, that of
    Wᵀu the factor of u.
    """

    @staticmethod
    def forward(right_product: Tensor, left_product: Tensor | None, u: Tensor, s: Tensor, v: Tensor, _: Any) -> Any:
        return u.clone(), s.clone(), v.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:5])
        ctx.resolvent = inputs[5]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, of_u: Tensor | None, of_s: Tensor | None, of_v: Tensor | None) -> tuple[Any, ...]:
        right_product, left_product, u, s, v = ctx.saved_tensors
        gradients: list[Tensor | None] = [None if of_s is None else of_s[..., None, :] * u, None]
        if of_u is not None or of_v is not None:
            with torch.no_grad():
                of_u = torch.zeros_like(u) if of_u is None else of_u
                of_v = torch.zeros_like(v) if of_v is None else of_v
                above, gradients[1] = ctx.resolvent.solve(s, of_u, of_v)
            gradients[0] = above if gradients[0] is None else gradients[0] + above
        return *first_order_only(gradients, right_product, left_product), None, None, None, None


class DifferentiableEigenvalues(AutogradFunction):
    """Eigenvalues as functions of the products W · (Re x, Im x): dλ = yᵀ dW x for left vectors y with yᵀx = 1."""

    @staticmethod
    def forward(products: Tensor, left: Tensor, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], inputs[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        products, left = ctx.saved_tensors
        factor = gradient.conj()[..., None, :] * left
        parts = torch.cat([factor.real, -factor.imag], -1) if factor.is_complex() else factor
        return *first_order_only([parts], products), None, None


def left_vectors(pairs: Pairs, transposed: Pairs) -> Tensor:
    """For each eigenpair (λ, x) the vector y of the transpose with the same eigenvalue, scaled so that yᵀx = 1.

    Raises:
        InvalidArgument: If the eigenvalue is not simple, so that it has no gradient.
    """
    values, vectors, _ = pairs
    distance = (values[..., :, None] - transposed.values[..., None, :]).abs()
    nearest = distance.argmin(-1)
    left = transposed.vectors.gather(-1, nearest[..., None, :].expand(*vectors.shape[:-1], -1))
    cosine = (left * vectors).sum(-2)
    limit = torch.finfo(vectors.dtype).eps ** 0.5
    gap = distance.scatter(-1, nearest[..., None], torch.inf).amin(-1)
    scale = values.abs().amax(-1, keepdim=True)
    has_none = (cosine.abs() <= limit) | (gap <= limit * scale)
    if has_none.any():
        place = tuple(has_none.nonzero()[0].tolist())
        raise InvalidArgument(
            f"eigenvalues: eigenvalue {place[-1]} of batch {place[0]}, head {place[1]} has no gradient, because the "
            f"gap between {values[place].item():.6g} and the nearest other one is {float(gap[place]):.1e}, and the "
            f"cosine of its left and right vectors {float(cosine[place].abs()):.1e}; both must be above {limit:.1e}"
        )
    return left / cosine[..., None, :]
