"""How much of a row lies on some of its cells."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from regard.ops.masks.base import Mask
from regard.ops.measures.base import Block, Measure, Shape


@dataclass(frozen=True, eq=False)
class Mass(Measure):
    """The mass on the cells that a rule allows: Tᵢ = Σⱼ Pᵢⱼ [j allowed for i], (batch, heads, queries).

    The rule changes nothing of the weights, as a mask would: it says whose to add up.

    Args:
        cells: A mask, as for `attend`.

    Example:
        How much of each row lies on the same token elsewhere, and here:

        >>> import regard, torch
        >>> x = torch.zeros(1, 1, 4, 8)
        >>> same = regard.Documents(torch.tensor([5, 7, 5, 9]))
        >>> regard.weights(x, x).measure(regard.Mass(same))["mass"]
        tensor([[[0.5000, 0.2500, 0.5000, 0.2500]]])
    """

    cells: Mask

    def of(self, block: Block) -> Float[Tensor, "batch heads rows"]:
        allowed = self.cells.allowed(block.cells)
        keys = block.weights.shape[-1]
        if allowed.ndim > 1 and allowed.shape[-2:] == (1, keys):  # the same keys for all rows
            return (block.weights @ allowed.mT.to(block.weights.dtype))[..., 0]
        return torch.where(allowed, block.weights, 0.0).sum(-1)

    def objections(self, shape: Shape, device: torch.device) -> list[str]:
        if not isinstance(self.cells, Mask):
            return [f"mass: cells must be a Mask, got {type(self.cells).__name__}"]
        return [objection.replace("mask:", "mass:", 1) for objection in self.cells.objections(shape, device)]
