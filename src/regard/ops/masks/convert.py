"""Convert masks to and from FlexAttention's `BlockMask` and `mask_mod`, and to dense bool tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from regard.checks import Checks
from regard.errors import InvalidArgument, InvalidType, short_repr
from regard.ops.autograd import is_traced
from regard.ops.cell_functions import CellFunction
from regard.ops.masks.base import Mask, MaskLike, MaskModFunction, as_mask
from regard.ops.tile import KeyRange, Shape, Tile


class FlexBlockMask(Mask):
    """The content of a FlexAttention `BlockMask`; made by `from_block_mask`.

    As in FlexAttention, the mask depends on the query's index, not on its position: `offset` has no effect.

    Args:
        partial_or_full: (batch or 1, heads or 1, query blocks, key blocks) Blocks with any visible cell.
        full: The same shape; blocks in which all cells are visible.
        block_size: Queries and keys per block.
        lengths: Queries and keys that the mask was made for.
        mask_mod: Visible cells of the partial blocks; called for one cell, as in FlexAttention.

    Raises:
        InvalidArgument: If mask_mod fails.
    """

    partial_or_full: Bool[Tensor, "#batch #heads rows keys"]
    full: Bool[Tensor, "#batch #heads rows keys"]
    block_size: tuple[int, int]
    lengths: tuple[int, int]
    mask_mod: MaskModFunction
    has_python_callable = True

    def __post_init__(self) -> None:
        self._of_cell: CellFunction = _run_mask_mod(lambda: CellFunction(self.mask_mod, has_score=False))

    def __repr__(self) -> str:
        return f"FlexBlockMask({self.lengths[0]} × {self.lengths[1]})"

    def allowed(self, tile: Tile) -> Bool[Tensor, "..."]:
        sizes = self.full.shape
        lead = (index if size > 1 else 0 for index, size in zip((tile.b, tile.h), sizes, strict=False))
        block = (*lead, tile.q_idx // self.block_size[0], tile.kv_idx // self.block_size[1])
        return self.full[block] | (self.partial_or_full[block] & self.of_cells(tile))

    def of_cells(self, tile: Tile) -> Bool[Tensor, "..."]:
        """What mask_mod returns for the cells of a tile, whatever their blocks are."""
        return _run_mask_mod(lambda: self._of_cell.map(tile))

    def summarize(self) -> Tensor:
        """(query blocks, key blocks), on the CPU: whether any batch entry and head sees the block."""
        return self.partial_or_full.any(0).any(0).cpu()

    def key_range(self, tile: Tile) -> KeyRange:
        if not isinstance(tile.rows, slice):
            return tile.keys
        first, last = tile.rows.start // self.block_size[0], (tile.rows.stop - 1) // self.block_size[0]
        blocks = tile.summary(self)[first : last + 1].any(0).nonzero()
        if not len(blocks):
            return tile.no_keys
        return tile.clip(int(blocks[0]) * self.block_size[1], (int(blocks[-1]) + 1) * self.block_size[1])

    def check(self, checks: Checks, shape: Shape, head_dim: int, device: torch.device) -> None:
        checks.device("mask", self.full, device)
        if self.lengths != shape[2:]:
            checks.fail(f"mask: expected a BlockMask for (queries, keys) = {shape[2:]}, got {self.lengths}")
        for axis, size, actual in zip(("batch", "heads"), shape, self.full.shape, strict=False):
            if actual not in (1, size):
                checks.fail(f"mask: expected a BlockMask with {axis} 1 or {size}, got {actual}")
        if checks.problems or is_traced():  # values cannot be computed while tracing
            return
        batch, heads, queries, keys = (torch.tensor([0, size - 1], device=device) for size in shape)
        tile = Tile(batch, heads, queries, KeyRange(0, shape[3]), 0, device, keys.expand(2, 2))
        allowed = checks.collect(self.of_cells, tile)
        if allowed is not None and (allowed.dtype != torch.bool or allowed.shape != tile.shape):
            got = f"{str(allowed.dtype).removeprefix('torch.')} of shape {tuple(allowed.shape[4:])}"
            checks.fail_type(f"mask: expected the BlockMask's mask_mod to return a bool scalar, got {got}")


def _run_mask_mod(compute: Callable[[], Any]) -> Any:
    """Call the `mask_mod` of a `BlockMask`, and say what is wrong with it.

    Raises:
        InvalidArgument: If it fails.
    """
    try:
        return compute()
    except (TypeError, RuntimeError, IndexError, ValueError) as error:
        first_line = next(iter(str(error).splitlines()), "")
        raise InvalidArgument(
            f"mask: the BlockMask's mask_mod failed with {type(error).__name__}: {first_line}"
        ) from error


def from_block_mask(block_mask: BlockMask) -> FlexBlockMask:
    """Convert FlexAttention's `BlockMask`, to combine it with other masks. `attend` takes one as it is, too.

    Args:
        block_mask: Of `torch.nn.attention.flex_attention`.

    Raises:
        InvalidType: If it is something else.

    Examples:
        >>> import regard, torch
        >>> from torch.nn.attention.flex_attention import create_block_mask
        >>> block_mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 200, 200, device="cpu")
        >>> x = torch.zeros(1, 1, 200, 8)
        >>> regard.weights(x, x, mask=block_mask)[0, 0, 1, :4]
        tensor([0.5000, 0.5000, 0.0000, 0.0000])
    """
    if not isinstance(block_mask, BlockMask):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidType(f"block_mask: expected a BlockMask of FlexAttention, got {type(block_mask).__name__}")
    tables = block_mask.kv_num_blocks, block_mask.kv_indices, block_mask.full_kv_num_blocks, block_mask.full_kv_indices
    return from_tables(block_mask.seq_lengths, block_mask.BLOCK_SIZE, tables, block_mask.mask_mod)  # pyright: ignore[reportArgumentType]


def from_tables(
    lengths: Sequence[int], block_size: Sequence[int], tables: Sequence[Tensor | None], mask_mod: MaskModFunction
) -> FlexBlockMask:
    """The content of a `BlockMask` by its attributes.

    Args:
        lengths: Its seq_lengths.
        block_size: Its BLOCK_SIZE.
        tables: Its kv_num_blocks, kv_indices, full_kv_num_blocks and full_kv_indices.
        mask_mod: Its mask_mod.
    """
    queries, keys = map(int, lengths)
    rows, columns = map(int, block_size)
    count, indices, full_count, full_indices = tables
    assert count is not None
    assert indices is not None
    partial = _block_table(count, indices, -(-keys // columns))
    full = torch.zeros_like(partial)
    if full_count is not None and full_indices is not None:
        full = _block_table(full_count, full_indices, -(-keys // columns))
    return FlexBlockMask(partial | full, full, (rows, columns), (queries, keys), mask_mod)


def _block_table(count: Tensor, indices: Tensor, columns: int) -> Tensor:
    """Lists of block numbers, of which the first `count` are valid, as bools: (batch, heads, rows, columns)."""
    valid = torch.arange(indices.shape[-1], device=count.device) < count[..., None]
    table = torch.zeros(*count.shape, columns + 1, dtype=torch.bool, device=count.device)
    return table.scatter(-1, indices.to(torch.int64).where(valid, columns), True)[..., :columns]


def to_mask_mod(mask: MaskLike, offset: int = 0) -> MaskModFunction:
    """Convert a mask to FlexAttention's `mask_mod`, ``(b, h, q_idx, kv_idx) -> bool``.

    The function takes the indices of one cell, or index tensors that broadcast against each other.

    Args:
        mask: Any mask that `attend` takes.
        offset: Query i has position i + offset.
    """
    rule = as_mask(mask)
    return lambda b, h, q_idx, kv_idx: _allowed_at(rule, offset, b, h, q_idx, kv_idx)


def _allowed_at(mask: Mask, offset: int, *indices: Tensor) -> Tensor:
    """Evaluate a mask on the cells with these indices."""
    b, h, q_idx, kv_idx = cells = torch.broadcast_tensors(*(torch.as_tensor(index) for index in indices))
    if b.ndim:
        flat = (index.flatten() for index in cells)
        return torch.vmap(partial(_allowed_at, mask, offset))(*flat).view(b.shape)
    tile = Tile(b[None], h[None], q_idx[None], KeyRange(0, 0), offset, kv_idx.device, kv_idx[None, None])
    return mask.allowed(tile).expand(1, 1, 1, 1).reshape(())


def to_block_mask(mask: MaskLike, shape: Shape, offset: int | None = None, **options: Any) -> BlockMask:
    """Convert a mask to FlexAttention's `BlockMask`.

    Args:
        mask: Any mask that `attend` takes.
        shape: (batch, heads, queries, keys).
        offset: Query i has position i + offset. Default: keys - queries.
        options: Arguments of torch's `create_block_mask`: its device, ``"cpu"`` by default, and its BLOCK_SIZE.

    Raises:
        InvalidArgument: If the mask does not fit the shape.
        InvalidType: If shape or offset are not integers, or the mask is not one.

    Examples:
        >>> import regard
        >>> from regard.ops.masks import to_block_mask
        >>> to_block_mask(regard.Window(64, 0), (1, 1, 512, 512)).sparsity()
        56.25
    """
    options = {"device": "cpu"} | options
    rule, offset = check_mask(mask, shape, offset, torch.device(options["device"]))
    return create_block_mask(to_mask_mod(rule, offset), *shape, **options)


def to_dense(
    mask: MaskLike, shape: Shape, offset: int | None = None, device: str | torch.device = "cpu"
) -> Bool[Tensor, "batch heads queries keys"]:
    """Convert a mask to a bool tensor, (batch, heads, queries, keys), True where a query may attend.

    Args:
        mask: Any mask that `attend` takes.
        shape: (batch, heads, queries, keys).
        offset: Query i has position i + offset. Default: keys - queries.
        device: Device of the mask's tensors.

    Raises:
        InvalidArgument: If the mask does not fit the shape.
        InvalidType: If shape or offset are not integers, or the mask is not one.

    Examples:
        >>> import regard
        >>> from regard.ops.masks import to_dense
        >>> to_dense(regard.Causal(), (1, 1, 2, 3))[0, 0].tolist()
        [[True, True, False], [True, True, True]]
    """
    rule, offset = check_mask(mask, shape, offset, torch.device(device))
    batch, heads, queries, keys = shape
    tile = Tile(slice(0, batch), slice(0, heads), slice(0, queries), KeyRange(0, keys), offset, torch.device(device))
    return rule.allowed(tile).expand(shape)


def check_mask(mask: MaskLike, shape: Any, offset: int | None, device: torch.device) -> tuple[Mask, int]:
    """The mask and the offset for a matrix of this shape, checked."""
    checks = Checks()
    if not isinstance(shape, Sequence) or len(shape) != 4 or not all(isinstance(size, int) for size in shape):
        checks.fail_type(f"shape: expected (batch, heads, queries, keys), got {short_repr(shape)}")
    elif min(shape) < 1:
        checks.fail(f"shape: expected (batch, heads, queries, keys) of at least 1 each, got {short_repr(shape)}")
    checks.integer("offset", offset, optional=True)
    checks.raise_problems()
    rule, shape = as_mask(mask), (shape[0], shape[1], shape[2], shape[3])
    rule.check(checks, shape, 0, device)
    checks.raise_problems()
    return rule, shape[3] - shape[2] if offset is None else offset
