"""The launch that pools weights over groups of queries and keys."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.ops.kernels.triton.configurations import num_pool_splits
from regard.ops.kernels.triton.launch import Launcher
from regard.ops.kernels.triton.pack import PackedMatrix
from regard.ops.steps import Step

GROUPS = 64
"""Groups of queries, and of keys, of a tile of the result."""


class Groups(NamedTuple):
    """Which group each token is in.

    Args:
        group: (batch or 1, tokens) int64; negative for none.
        starts: (batch or 1, groups + 1) int64 Where each group starts among the tokens in the order of their groups.
        order: (batch or 1, tokens) int64 The tokens in this order.
    """

    group: Tensor
    starts: Tensor
    order: Tensor

    @classmethod
    def of(cls, group: Tensor, count: int) -> Groups:
        """From the group of each token."""
        in_order, order = group.contiguous().sort(dim=-1, stable=True)
        numbers = torch.arange(count + 1, device=group.device).expand(len(group), -1).contiguous()
        return cls(group.contiguous(), torch.searchsorted(in_order, numbers), order)

    def args(self) -> tuple[Any, ...]:
        """As the pass takes them."""
        strides = (0, 0) if len(self.group) == 1 else (self.group.shape[1], self.starts.shape[1])
        return self.order, self.group, self.starts, *strides

    def shares(self) -> Tensor:
        """1 / the number of tokens of each group, (batch or 1, groups)."""
        return 1 / self.starts.diff(dim=-1).clamp(min=1)


def groups_of(step: Step, matrix: PackedMatrix, result: Tensor) -> tuple[Groups, Groups]:
    """The groups of queries and keys of a measure."""
    _, _, queries, keys = matrix.request.shape
    if step.kind == "block_mean":
        both = [torch.arange(n, device=result.device)[None] // step.numbers[0] for n in (queries, keys)]
    else:
        _, row_groups, key_groups = step.tensors()
        assert row_groups is not None
        assert key_groups is not None
        both = [row_groups[:, 0, :, 0], key_groups[:, 0, 0]]
    rows, columns = (Groups.of(group, count) for group, count in zip(both, result.shape[2:], strict=True))
    return rows, columns


def pool(matrix: PackedMatrix, lse: Tensor, step: Step, result: Tensor, run: Launcher) -> None:
    """Fill the result of a measure."""
    from regard.ops.kernels.triton.jit import pooling as jit

    batch, heads, queries, keys = matrix.request.shape
    height, width = result.shape[2:]
    rows, columns = groups_of(step, matrix, result)
    programs = batch * heads * -(-height // GROUPS) * -(-width // GROUPS)
    splits = num_pool_splits(programs, queries // -(-height // GROUPS), lse.device)
    parts = result if splits == 1 else lse.new_empty(splits, *result.shape)
    args = (
        matrix.query, matrix.key, lse, parts, height, width, rows.args(), columns.args(), queries, keys, heads,
        heads // matrix.key.shape[1], matrix.query.stride()[:3], matrix.key.stride()[:3], matrix.log_scale,
        matrix.selection, matrix.mask.args, matrix.score.args,
    )  # fmt: skip
    sizes = matrix.tiles("pooling", ()).options()
    constants = matrix.options() | {"IS_MEAN": step.kind == "block_mean", "SPLITS": splits, "GROUPS": GROUPS} | sizes
    run(jit.pool, programs * splits, args, constants)
    if splits > 1:
        torch.sum(parts, 0, out=result)
