"""The linear map of all layers."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.ops.matmul import linear


class Linear(nn.Linear):
    """y = x Wᵀ + b: ``torch.nn.Linear``, which without gradients multiplies float32 by the faster library.

    Example:
        >>> import torch
        >>> Linear(4, 3)(torch.ones(2, 5, 4)).shape
        torch.Size([2, 5, 3])
    """

    def forward(self, x: Float[Tensor, "*axes in_features"]) -> Float[Tensor, "*axes out_features"]:
        """Map (..., in_features) to (..., out_features)."""
        return linear(x, self.weight, self.bias)


def dtype_objections(weight: Tensor, **inputs: Tensor | None) -> list[str]:
    """Say which inputs that were given have another dtype than weights; autocast converts them all.

    Example:
        >>> import torch
        >>> dtype_objections(torch.ones(2), x=torch.ones(2, dtype=torch.int64))
        ['x must have the dtype of the weights, torch.float32, but has torch.int64: convert one of them']
    """
    if torch.is_autocast_enabled(weight.device.type):
        return []
    return [
        f"{name} must have the dtype of the weights, {weight.dtype}, but has {given.dtype}: convert one of them"
        for name, given in inputs.items()
        if given is not None and given.dtype != weight.dtype
    ]
