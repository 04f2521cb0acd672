"""Score rules: from a query and a key to one number, before the mask and the softmax."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from regard.ops.cells import Cells
from regard.ops.heads import multiply


class Score:
    """Base of all score rules. A rule that holds tensors is a dataclass with these as fields: they get gradients."""

    def __call__(
        self,
        query: Float[Tensor, "batch heads rows head_dim"],
        key: Float[Tensor, " batch #heads keys head_dim"],
        scale: float,
        cells: Cells,
    ) -> Float[Tensor, "batch heads rows keys"]:
        """The scores of a block.

        Args:
            query: (batch, heads, rows, head_dim).
            key: (batch, heads or 1, keys, head_dim); 1 where all heads of the block share their keys.
            scale: What the raw score is multiplied with.
            cells: Where the block stands.

        Returns:
            (batch, heads, rows, keys); −∞ forbids a cell as a mask does, and so does whatever lies below −10³⁰.
        """
        raise NotImplementedError

    def default_scale(self, head_dim: int) -> float:
        """The scale where none is given."""
        return 1.0


@dataclass(frozen=True, eq=False)
class ScaledDot(Score):
    """The scaled dot product, sᵢⱼ = qᵢ·kⱼ · scale, with scale = 1/√head_dim where none is given.

    Reference: Vaswani et al. 2017, "Attention Is All You Need", equation 1.
    """

    def __call__(
        self,
        query: Float[Tensor, "batch heads rows head_dim"],
        key: Float[Tensor, " batch #heads keys head_dim"],
        scale: float,
        cells: Cells,
    ) -> Float[Tensor, "batch heads rows keys"]:
        return multiply(query * scale, key.mT)

    def default_scale(self, head_dim: int) -> float:
        return head_dim**-0.5
