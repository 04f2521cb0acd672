"""A linear layer with faster inference on CPUs, and the check of the input of a layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.checks import Checks
from regard.ops.matmul import linear


class Linear(nn.Linear):
    """y = x Wᵀ + b: ``torch.nn.Linear`` that uses oneDNN on a CPU when it is faster and no gradient is needed.

    Examples:
        >>> import torch
        >>> Linear(4, 3)(torch.ones(2, 5, 4)).shape
        torch.Size([2, 5, 3])
    """

    bias: nn.Parameter | None  # pyright: ignore[reportIncompatibleVariableOverride] - torch leaves out None

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride] - torch's argument is called input
        self, x: Float[Tensor, "*axes in_features"]
    ) -> Float[Tensor, "*axes out_features"]:
        """Map (..., in_features) to (..., out_features)."""
        return linear(x, self.weight, self.bias)


def check_input(
    checks: Checks, name: str, x: Any, sizes: Mapping[str, int | None], weight: Tensor | None = None
) -> bool:
    """Check the shape of a tensor, where None allows any size, and its dtype, unless autocast converts it."""
    if not checks.tensor(name, x):
        return False
    valid = x.ndim == len(sizes) and all(
        size is None or size == own for size, own in zip(sizes.values(), x.shape, strict=True)
    )
    if not valid:
        axes = ", ".join(axis if size is None else f"{axis}={size}" for axis, size in sizes.items())
        checks.fail(f"{name}: expected shape ({axes}), got {tuple(x.shape)}")
    if weight is not None and x.dtype != weight.dtype and not torch.is_autocast_enabled(weight.device.type):
        return checks.fail(f"{name}: expected the weights' dtype {weight.dtype}, got {x.dtype}; convert it with .to()")
    return valid
