"""The matrix made smaller: means over squares of cells, and over groups of queries and keys."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Integer
from torch import Tensor
from torch.nn.functional import pad

from regard.ops.measures.base import Block, Entries, Measure, Position, Shape
from regard.ops.tile import Index


@dataclass(frozen=True, eq=False)
class BlockMean(Measure):
    """The mean of each square of size × size cells, (batch, heads, ⌈queries / size⌉, ⌈keys / size⌉).

    A square at the end that is not full is averaged over the cells that are there; masked cells count as 0.

    Args:
        size: How many queries, and keys, become one; at least 1.

    Memory: O(queries · keys / size²).
    """

    size: int
    axis = None

    def of(self, block: Block) -> Float[Tensor, "batch heads rows keys"]:
        _, _, rows, keys = block.index
        assert isinstance(rows, slice)
        before = rows.start % self.size, keys.start % self.size
        counts = [
            torch.arange(part.start // self.size * self.size, part.stop, self.size, device=block.weights.device)
            for part in (rows, keys)
        ]
        row_counts, key_counts = (
            (total - starts).clamp(max=self.size) for starts, total in zip(counts, block.shape[2:], strict=True)
        )
        sums = _pool(block.weights, self.size, before[0], len(row_counts))
        sums = _pool(sums.mT, self.size, before[1], len(key_counts)).mT
        return sums / (row_counts[:, None] * key_counts)

    def whole(self, shape: Shape) -> tuple[int, ...]:
        batch, heads, queries, keys = shape
        return batch, heads, -(-queries // self.size), -(-keys // self.size)

    def entries(self, index: Position, shape: Shape) -> Entries:
        batch, heads, rows, keys = index
        assert isinstance(rows, slice)
        return batch, heads, *(slice(at.start // self.size, -(-at.stop // self.size)) for at in (rows, keys))

    def objections(self, shape: Shape, device: torch.device) -> list[str]:
        if isinstance(self.size, int) and not isinstance(self.size, bool) and self.size >= 1:
            return []
        return [f"block_mean: size must be a number of cells, at least 1; got {self.size!r}"]


def _pool(x: Tensor, size: int, before: int, count: int) -> Tensor:
    """Sums over `size` rows each, of which the first `before` are missing: (batch, heads, count, columns)."""
    after = count * size - before - x.shape[2]
    if before or after:
        x = pad(x, (0, 0, before, after))
    return x.unflatten(2, (count, size)).sum(3)


@dataclass(frozen=True, eq=False)
class GroupPool(Measure):
    """Groups of tokens, such as words: how much a query of one group looks at all keys of another.

    Sums over the keys of a group, means over the queries of a group, (batch, heads, query groups, key groups).

    Args:
        query_groups: The group of each query, (queries,) or (batch, queries) integers from 0 on; −1 drops it. There are
            as many groups as the highest number says.
        key_groups: The group of each key, (keys,) or (batch, keys); −1 drops it.

    Memory: O(query groups · key groups).
    """

    query_groups: Integer[Tensor, "*batch queries"]
    key_groups: Integer[Tensor, "*batch keys"]
    axis = None

    lowest: tuple[int, int] = field(init=False)
    """The lowest number of a group of queries, and of keys."""
    sizes: tuple[int, int] = field(init=False)
    """How many groups of queries, and of keys, there are."""

    def __post_init__(self) -> None:
        groups = (self.query_groups, self.key_groups)
        known = [each if isinstance(each, Tensor) and each.numel() else torch.zeros(1) for each in groups]
        object.__setattr__(self, "lowest", tuple(int(each.min()) for each in known))
        object.__setattr__(self, "sizes", tuple(int(each.max()) + 1 for each in known))

    def of(self, block: Block) -> Float[Tensor, "batch heads query_groups key_groups"]:
        weights = block.weights
        batch, _, rows, keys = block.index
        of_keys = _of(self.key_groups, batch)[..., keys][:, None, None]
        if block.cells.columns is not None:
            of_keys = _of(self.key_groups, batch)[:, None][..., block.key]
        count = self.sizes[1]
        of_keys = of_keys.to(torch.int64).where(of_keys >= 0, count).expand_as(weights)
        sums = weights.new_zeros(*weights.shape[:3], count + 1).scatter_add(-1, of_keys, weights)[..., :count]
        groups, chosen = _of(self.query_groups, batch).to(torch.int64), self._chosen(batch, rows)
        members = groups.new_zeros(len(groups), self.sizes[0] + 1)
        members.scatter_add_(1, groups.where(groups >= 0, self.sizes[0]), torch.ones_like(groups))
        here = (groups[:, rows, None] == chosen).to(weights.dtype)  # (batch or 1, rows, groups)
        return (here / members[:, None, chosen].clamp(min=1)).mT[:, None] @ sums

    def whole(self, shape: Shape) -> tuple[int, ...]:
        return *shape[:2], *self.sizes

    def entries(self, index: Position, shape: Shape) -> Entries:
        return index[0], index[1], self._chosen(index[0], index[2])

    def objections(self, shape: Shape, device: torch.device) -> list[str]:
        found = []
        batch, _, queries, keys = shape
        given = (("query_groups", self.query_groups, queries), ("key_groups", self.key_groups, keys))
        for number, (name, groups, tokens) in enumerate(given):
            if not isinstance(groups, Tensor) or groups.is_floating_point() or groups.dtype == torch.bool:
                came = groups.dtype if isinstance(groups, Tensor) else type(groups).__name__
                found.append(f"grouped: {name} must be a tensor of integers, but is {came}")
            elif tuple(groups.shape) not in ((tokens,), (1, tokens), (batch, tokens)):
                axis = "queries" if name == "query_groups" else "keys"
                found.append(
                    f"grouped: {name} {tuple(groups.shape)} must cover all {axis}: ({tokens},) or ({batch}, {tokens})"
                )
            elif groups.device != device:
                found.append(f"grouped: {name} lies on {groups.device}, the query on {device}; move it with .to()")
            elif self.lowest[number] < -1 or self.sizes[number] < 1:
                wrong = self.lowest[number]
                found.append(f"grouped: {name} are numbers from 0 on, −1 to drop some of the tokens; got {wrong}")
        return found

    def _chosen(self, batch: slice, rows: Index) -> Tensor:
        """The groups that some rows belong to; all of them for all rows."""
        groups = _of(self.query_groups, batch)
        if isinstance(rows, slice) and rows.stop - rows.start == groups.shape[1]:
            return torch.arange(self.sizes[0], device=groups.device)
        found = groups[:, rows].unique()
        return found[found >= 0].to(torch.int64)


def _of(groups: Tensor, batch: slice) -> Tensor:
    """The groups of some sequences, (batch or 1, tokens)."""
    return groups[None] if groups.ndim == 1 else groups if len(groups) == 1 else groups[batch]
