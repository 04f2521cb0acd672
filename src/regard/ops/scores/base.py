"""Score rules: from a query and a key to one number, before the mask and the softmax. Rules add up.

The order in which they are written is the order in which they act: ``SoftCap(ScaledDotProduct(), 50.0) + Bias(table)`` scales,
then caps, then adds.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from regard.ops.tile import Tile

Shape = tuple[int, int, int, int]


class Score:
    """Base of all score rules. A rule that holds tensors is a dataclass with these as fields: they get gradients."""

    def __call__(
        self,
        query: Float[Tensor, "batch heads rows head_dim"],
        key: Float[Tensor, " batch #heads *rows keys head_dim"],
        scale: float,
        cells: Tile,
    ) -> Float[Tensor, "#batch #heads #rows #keys"]:
        """The scores of a block.

        Args:
            query: (batch, heads, rows, head_dim).
            key: (batch, heads or 1, keys, head_dim); 1 where all heads of the block share their keys. (batch, heads or
                1, rows, keys, head_dim) where each row has its own keys, as on a sparse graph.
            scale: What the raw score is multiplied with.
            cells: Where the block stands.

        Returns:
            What broadcasts to (batch, heads, rows, keys); −∞ forbids a cell as a mask does, and so does whatever lies
            below −10³⁰.
        """
        raise NotImplementedError

    def default_scale(self, head_dim: int) -> float | None:
        """The scale where none is given; None leaves it to the rules beside this one, and is 1 where there are none."""
        return None

    def objections(self, shape: Shape, head_dim: int, device: torch.device) -> list[str]:
        """Why the rule does not fit a weight matrix of this shape, from queries of this size on this device."""
        return []

    @property
    def sinks(self) -> Float[Tensor, " heads"] | None:
        """A logit for each head that takes part in the softmax and leads to no key; None where there is none."""
        return None

    @property
    def plain(self) -> bool:
        """Whether every score is finite and the block's tensor the rule's own, so that it may be written over."""
        return False

    def floats_per_cell(self, head_dim: int) -> int:
        """How many numbers the rule holds at once for each cell of a block."""
        return 1

    def __add__(self, other: Score) -> Score:
        return Sum(self, other) if isinstance(other, Score) else NotImplemented


@dataclass(frozen=True, eq=False)
class Sum(Score):
    """What two rules give, added."""

    left: Score
    right: Score

    def __call__(
        self,
        query: Float[Tensor, "batch heads rows head_dim"],
        key: Float[Tensor, " batch #heads *rows keys head_dim"],
        scale: float,
        cells: Tile,
    ) -> Float[Tensor, "#batch #heads #rows #keys"]:
        return self.left(query, key, scale, cells) + self.right(query, key, scale, cells)

    def default_scale(self, head_dim: int) -> float | None:
        left = self.left.default_scale(head_dim)
        return self.right.default_scale(head_dim) if left is None else left

    def objections(self, shape: Shape, head_dim: int, device: torch.device) -> list[str]:
        found = self.left.objections(shape, head_dim, device) + self.right.objections(shape, head_dim, device)
        if self.left.sinks is not None and self.right.sinks is not None:
            found.append("score: has sinks on both sides of a sum; give them once")
        return found

    @property
    def sinks(self) -> Float[Tensor, " heads"] | None:
        return self.right.sinks if self.left.sinks is None else self.left.sinks

    @property
    def plain(self) -> bool:
        return self.left.plain and self.right.plain

    def floats_per_cell(self, head_dim: int) -> int:
        return max(self.left.floats_per_cell(head_dim), self.right.floats_per_cell(head_dim))

    def __repr__(self) -> str:
        return f"{self.left!r} + {self.right!r}"


def tensor_objections(name: str, given: object, shapes: dict[str, tuple[int, ...]], device: torch.device) -> list[str]:
    """Why something is not a floating-point tensor of one of these shapes, by what their axes are called."""
    if not isinstance(given, Tensor) or not given.is_floating_point():
        came = given.dtype if isinstance(given, Tensor) else type(given).__name__
        return [f"score: {name} must be a floating-point tensor, but is {came}"]
    found = []
    if tuple(given.shape) not in shapes.values():
        expected = " or ".join(f"{axes} = {shape}" for axes, shape in shapes.items())
        found.append(f"score: {name} is {tuple(given.shape)}, expected {expected}")
    if given.device != device:
        found.append(f"score: {name} lies on {given.device}, the query on {device}; move it with .to()")
    return found
