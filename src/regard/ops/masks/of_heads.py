"""A mask for some of the heads that it was made for."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.ops.masks.base import Mask
from regard.ops.tile import Span, Tile


@dataclass(frozen=True, eq=False)
class MaskOfHeads(Mask):
    """What a rule allows some of the heads that it was made for.

    Args:
        rule: The rule for all heads.
        heads: (heads,) integers: which of them these are.
        count: How many there are in all.
    """

    rule: Mask
    heads: Int[Tensor, " heads"]
    count: int

    def allowed(self, cells: Tile) -> Bool[Tensor, "..."]:
        return self.rule.allowed(self._of_all(cells))

    def extent(self, cells: Tile) -> Span:
        return self.rule.extent(self._of_all(cells))

    def certain(self, cells: Tile) -> Span:
        return self.rule.certain(self._of_all(cells))

    def objections(self, shape: tuple[int, int, int, int], device: torch.device) -> list[str]:
        batch, _, queries, keys = shape
        return self.rule.objections((batch, self.count, queries, keys), device)

    @property
    def per_query(self) -> bool:
        return self.rule.per_query

    def _of_all(self, cells: Tile) -> Tile:
        return replace(cells, heads=self.heads[cells.heads])
