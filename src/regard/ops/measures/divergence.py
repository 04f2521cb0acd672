"""One weight matrix compared with another of the same shape."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from regard.checks import Checks
from regard.errors import InvalidType
from regard.ops.autograd import AutogradFunction, check_forward_mode
from regard.ops.measures.base import Block, Measure
from regard.ops.measures.entropy import Entropy
from regard.ops.steps import Place, Step
from regard.ops.tile import KeyRange, Shape
from regard.ops.tree import TensorVersions


class WeightMatrixLike(Protocol):
    """What this measure needs of a `regard.WeightMatrix`, which is made of measures."""

    request: Any

    def lse(self) -> Tensor:
        """The log-sum-exp of each row."""
        ...

    def in_dtype_of_sums(self) -> WeightMatrixLike:
        """The matrix with gradients that are added up before they are rounded."""
        ...


class KLDivergence(Measure, name="kl_divergence"):
    """KL divergence from another weight matrix: Σ_j P_ij log(P_ij / Q_ij), in nats, (batch, heads, queries).

    It is infinite where P has weight on a key that Q forbids, and 0 for a row of P without keys. The gradient of an
    infinite row is NaN, or 0 if a loss leaves the row out.

    Args:
        other: The matrix Q, a `regard.WeightMatrix` of the same shape.

    Raises:
        InvalidType: If it is not a weight matrix.
        StaleView: When it is used, if query, key, mask or score of the other matrix have been changed in place.

    Reference:
        Kullback and Leibler 1951, "On Information and Sufficiency".

    Examples:
        >>> import regard, torch
        >>> W = regard.weights(*torch.randn(2, 1, 2, 5, 8).unbind())
        >>> divergence = W.measure(regard.KLDivergence(W))["kl_divergence"]
        >>> bool((divergence.abs() < 1e-6).all())
        True
    """

    __slots__ = ("_versions",)  # outside of `__dict__`: not a part of the rule

    request: Any
    lse: Float[Tensor, "batch heads queries"]
    needs_all_keys = False

    def __init__(self, other: WeightMatrixLike) -> None:
        if not hasattr(other, "request") or not hasattr(other, "lse"):
            raise InvalidType(f"KLDivergence.other: expected a WeightMatrix, got {type(other).__name__}")
        wide = other.in_dtype_of_sums()  # scores and log-sum-exp send gradients that cancel
        self.request, self.lse = wide.request, wide.lse()
        if not torch.compiler.is_compiling():  # where nothing is watched
            self._versions = TensorVersions(
                (other.request.query, other.request.key, other.request.mask, other.request.score)
            )

    def compute(self, block: Block) -> Float[Tensor, "batch heads rows"]:
        other, weights = self.request, block.weights
        batch, heads, rows, keys = block.index
        group = other.query.shape[1] // other.key.shape[1]
        kv_heads = torch.arange(heads.start, heads.stop, device=weights.device) // group
        query = other.query[batch, heads, rows].to(weights.dtype)
        key = other.key[batch, :, keys].index_select(1, kv_heads).to(weights.dtype)
        tile = other.tile(batch, heads, rows).with_keys(KeyRange(keys.start, keys.stop))
        lse = block.slice_rows(self.lse)[..., None]
        has_keys = lse > -torch.inf
        logs = other.masked_scores(query, key, tile) - lse.where(has_keys, 0.0)
        logs = logs.masked_fill(~has_keys, -torch.inf).where(weights > 0, 0.0)
        is_infinite = logs == -torch.inf
        finite = -Entropy().compute(block) - (weights * logs.masked_fill(is_infinite, 0.0)).sum(-1)
        return _Infinite.apply(finite, is_infinite.any(-1))

    def steps(self, place: Place) -> list[Step]:
        """The log-sum-exp of each row of the other matrix, (batch, heads, queries, 1), and its request."""
        return [Step("divergence", tensors=lambda: (self.lse.to(place.dtype)[..., None],), other=self.request)]

    def check(self, checks: Checks, shape: Shape, head_dim: int, device: torch.device) -> None:
        """Also raises `StaleView` if the other matrix has changed since its log-sum-exp was computed."""
        versions = getattr(self, "_versions", None)  # a copy that `to` made has none
        if versions is not None and not torch.compiler.is_compiling():
            versions.check("KLDivergence compares with query, key, mask and score of the other matrix")
        if self.request.shape != shape or self.lse.device != device:
            checks.fail(
                f"KLDivergence.other: expected (batch, heads, queries, keys) = {shape} on {device}, got "
                f"{self.request.shape} on {self.lse.device}"
            )


class _Infinite(AutogradFunction):
    """Infinity in some rows, whose gradient is NaN, but 0 where a loss leaves them out."""

    generate_vmap_rule = True

    @staticmethod
    def forward(finite: Tensor, is_infinite: Tensor) -> Tensor:
        return finite.masked_fill(is_infinite, torch.inf)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (is_infinite,) = ctx.saved_tensors
        return gradient.masked_fill(is_infinite & (gradient != 0), torch.nan), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: Any) -> Tensor:
        check_forward_mode()
        return tangent.masked_fill(ctx.saved_tensors[0], torch.nan)
