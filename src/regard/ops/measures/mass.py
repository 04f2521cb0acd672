"""The weight of each row on the cells of a mask."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from regard.checks import Checks
from regard.errors import InvalidType
from regard.ops.masks.base import Mask, MaskLike, as_mask
from regard.ops.measures.base import Block, Measure
from regard.ops.steps import Place, Step
from regard.ops.tile import Shape


class Mass(Measure):
    """Attention mass on the cells of a mask: T_i = Σ_j P_ij [j allowed for i], (batch, heads, queries).

    The mask selects which weights to add up; it does not change them.

    Args:
        mask: Any mask that `attend` takes. Its tensors have the shape of the matrix that is measured; positions are
            those of the queries, also after `WeightMatrix.at`.

    Examples:
        How much of each row is on the same token, here and elsewhere:

        >>> import regard, torch
        >>> x = torch.zeros(1, 1, 4, 8)
        >>> same = regard.Documents(torch.tensor([5, 7, 5, 9]))
        >>> regard.weights(x, x).measure(regard.Mass(same))["mass"]
        tensor([[[0.5000, 0.2500, 0.5000, 0.2500]]])
    """

    mask: Mask
    needs_all_keys = False

    def __init__(self, mask: MaskLike) -> None:
        try:
            self.mask = as_mask(mask)
        except InvalidType as error:
            raise InvalidType(f"Mass.{error}") from None

    def compute(self, block: Block) -> Float[Tensor, "batch heads rows"]:
        return torch.where(self.mask.allowed(block.matrix_tile), block.weights, 0.0).sum(-1)

    def steps(self, place: Place) -> list[Step] | None:
        mask = self.mask.steps(place)
        return None if mask is None else [Step("mass", mask=mask)]

    def check(self, checks: Checks, shape: Shape, head_dim: int, device: torch.device) -> None:
        of_mask = Checks()
        self.mask.check(of_mask, shape, head_dim, device)
        for problem in of_mask.problems:
            checks.fail(problem.replace("mask:", "Mass.mask:", 1))
