"""A smaller weight matrix: means over blocks of cells, and over groups of queries and keys."""

from __future__ import annotations

from dataclasses import field

import torch
from jaxtyping import Float, Integer
from torch import Tensor
from torch.nn.functional import pad

from regard.checks import Checks
from regard.errors import InvalidArgument
from regard.ops.autograd import is_traced
from regard.ops.measures.base import Block, BlockIndex, Measure
from regard.ops.steps import Place, Step
from regard.ops.tile import Index, Shape, index_size


class BlockMean(Measure):
    """Mean of each block of block_size × block_size cells, (batch, heads, ⌈queries / block_size⌉, ⌈keys / block_size⌉).

    A block at the edge is averaged over the cells that exist; masked cells count as 0.

    Args:
        block_size: Queries, and keys, per block; at least 1.

    Memory:
        O(queries * keys / block_size²).
    """

    block_size: int
    axis = None
    needs_all_keys = False

    def __post_init__(self) -> None:
        with Checks() as checks:
            checks.integer("BlockMean.block_size", self.block_size, low=1)

    def compute(self, block: Block) -> Float[Tensor, "batch heads rows keys"]:
        _, _, rows, keys = block.index
        assert isinstance(rows, slice)
        size, device = self.block_size, block.weights.device
        starts = [torch.arange(part.start // size * size, part.stop, size, device=device) for part in (rows, keys)]
        row_counts, key_counts = (
            (total - start).clamp(max=size) for start, total in zip(starts, block.shape[2:], strict=True)
        )
        sums = _pool(block.weights, size, rows.start % size, len(row_counts))
        sums = _pool(sums.mT, size, keys.start % size, len(key_counts)).mT
        return sums / (row_counts[:, None] * key_counts)

    def steps(self, place: Place) -> list[Step]:
        return [Step("block_mean", (self.block_size,))]

    def result_shape(self, shape: Shape) -> tuple[int, ...]:
        batch, heads, queries, keys = shape
        return batch, heads, -(-queries // self.block_size), -(-keys // self.block_size)

    def result_index(self, index: BlockIndex, shape: Shape) -> tuple[Index, ...]:
        batch, heads, rows, keys = index
        assert isinstance(rows, slice)
        size = self.block_size
        return batch, heads, *(slice(at.start // size, -(-at.stop // size)) for at in (rows, keys))


def _pool(x: Tensor, size: int, before: int, count: int) -> Tensor:
    """Sums over `size` rows each, of which the first `before` are missing: (batch, heads, count, columns)."""
    after = count * size - before - x.shape[2]
    if before or after:
        x = pad(x, (0, 0, before, after))
    return x.unflatten(2, (count, size)).sum(3)


class GroupPool(Measure):
    """Attention between groups of tokens, such as words: sums over the keys of a group, means over its queries.

    The result is (batch, heads, query groups, key groups).

    Args:
        query_groups: Group of each query, (queries,) or (batch, queries) integers from 0; −1 drops the query. The
            number of groups is the highest group plus 1.
        key_groups: Group of each key, (keys,) or (batch, keys), in the same way.

    Memory:
        O(query groups * key groups).
    """

    query_groups: Integer[Tensor, "*batch queries"]
    key_groups: Integer[Tensor, "*batch keys"]
    axis = None
    needs_all_keys = False

    num_groups: tuple[int, int] = field(init=False)
    """Number of query groups, and of key groups."""

    def __post_init__(self) -> None:
        self.num_groups = self._count_groups()

    def compute(self, block: Block) -> Float[Tensor, "batch heads query_groups key_groups"]:
        block.tile.summary(self)
        weights = block.weights
        batch, _, rows, keys = block.index
        key_groups = _of_batch(self.key_groups, batch)[..., keys][:, None, None]
        if block.tile.row_keys is not None:
            key_groups = _of_batch(self.key_groups, batch)[:, None][..., block.kv_idx]
        count = self.num_groups[1]
        key_groups = key_groups.to(torch.int64).where(key_groups >= 0, count).expand_as(weights)
        sums = weights.new_zeros(*weights.shape[:3], count + 1).scatter_add(-1, key_groups, weights)[..., :count]
        query_groups, present = _of_batch(self.query_groups, batch).to(torch.int64), self._present(batch, rows)
        members = query_groups.new_zeros(len(query_groups), self.num_groups[0] + 1)
        members.scatter_add_(
            1, query_groups.where(query_groups >= 0, self.num_groups[0]), torch.ones_like(query_groups)
        )
        own = query_groups[:, rows]
        bins = torch.searchsorted(present, own.clamp(min=0)).where(own >= 0, len(present))
        shares = members.gather(1, own.where(own >= 0, self.num_groups[0])).to(sums.dtype).reciprocal()
        sums = sums * shares[:, None, :, None]
        means = sums.new_zeros(*sums.shape[:2], len(present) + 1, count)
        return means.scatter_add(2, bins[:, None, :, None].expand_as(sums), sums)[:, :, :-1]

    def summarize(self) -> None:
        """Called once per pass."""
        self.check_unchanged()

    def steps(self, place: Place) -> list[Step]:
        """Of each query the share in its group and the group, (batch or 1, 1, queries, 1); the group of each key."""
        return [Step("group_pool", tensors=self._step_tensors)]

    def _step_tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        self.check_unchanged()
        query_groups, key_groups = (torch.atleast_2d(g).to(torch.int64) for g in (self.query_groups, self.key_groups))
        return self.row_shares()[:, None, :, None], query_groups[:, None, :, None], key_groups[:, None, None]

    def result_shape(self, shape: Shape) -> tuple[int, ...]:
        return *shape[:2], *self.num_groups

    def result_index(self, index: BlockIndex, shape: Shape) -> tuple[Index, ...]:
        return index[0], index[1], self._present(index[0], index[2])

    def check(self, checks: Checks, shape: Shape, head_dim: int, device: torch.device) -> None:
        batch, _, queries, keys = shape
        can_read = not is_traced()
        for name, groups, size in (("query", self.query_groups, queries), ("key", self.key_groups, keys)):
            axis = "queries" if name == "query" else "keys"
            name = f"GroupPool.{name}_groups"
            shapes = {f"({axis},)": (size,), f"(batch, {axis})": (batch, size), f"(1, {axis})": (1, size)}
            if checks.tensor(name, groups, "integer", shapes=shapes, device=device) and can_read:
                low, high = int(groups.min()), int(groups.max())
                checks.that(
                    low >= -1 and high >= 0,
                    f"{name}: expected groups from 0, at least one, and −1 for tokens to drop, got {low} to {high}",
                )
        if can_read and not checks.problems:
            self.num_groups = self._count_groups()  # the tensors may have changed since

    def check_unchanged(self) -> None:
        """Raise an error if there are other groups than before."""
        if self._count_groups() != self.num_groups:
            raise InvalidArgument("GroupPool: the groups were changed in place while they were in use; make a new one")

    def row_shares(self) -> Float[Tensor, "batch queries"]:
        """For each query, 1 / the number of queries in its group; 0 if it is dropped; batch is 1 for (queries,)."""
        groups = torch.atleast_2d(self.query_groups).to(torch.int64)
        bins = groups.where(groups >= 0, self.num_groups[0])
        members = torch.zeros(len(groups), self.num_groups[0] + 1, device=groups.device)
        members.scatter_add_(1, bins, torch.ones_like(bins, dtype=members.dtype))
        return (1 / members.clamp(min=1)).gather(1, bins) * (groups >= 0)

    def _count_groups(self) -> tuple[int, int]:
        query, key = (
            int(groups.max()) + 1 if isinstance(groups, Tensor) and groups.numel() else 0  # pyright: ignore[reportUnnecessaryIsInstance]
            for groups in (self.query_groups, self.key_groups)
        )
        return query, key

    def _present(self, batch: slice, rows: Index) -> Tensor:
        """The groups that some rows belong to; all groups if there are few, because those of the rows must be read."""
        groups = _of_batch(self.query_groups, batch)
        if index_size(rows) >= min(self.num_groups[0], groups.shape[1]):
            return torch.arange(self.num_groups[0], device=groups.device)
        present = groups[:, rows].unique()
        return present[present >= 0].to(torch.int64)


def _of_batch(groups: Tensor, batch: slice) -> Tensor:
    """The groups of some batch entries, (batch or 1, tokens)."""
    return groups[None] if groups.ndim == 1 else groups if len(groups) == 1 else groups[batch]
