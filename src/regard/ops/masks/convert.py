"""From masks to FlexAttention's and back, and to a bool tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from regard.errors import InvalidArgument, InvalidType, raise_problems
from regard.ops.masks.base import Mask, MaskLike, MaskMod, MaskModFunction, as_mask, no_keys, other_device
from regard.ops.tile import Span, Tile

Shape = tuple[int, int, int, int]


@dataclass(frozen=True, eq=False)
class FlexBlockMask(Mask):
    """What a `BlockMask` says: which blocks are seen at all, which of them whole, and of the others which cells.

    Made by `from_block_mask`. Queries are counted by number, as FlexAttention does; `offset` has no part in it.

    Args:
        seen: (batch or 1, heads or 1, blocks of queries, blocks of keys) Blocks of which some cells are seen.
        whole: The same, of which all cells are seen.
        size: How many queries, and how many keys, a block has.
        lengths: How many queries, and how many keys, the mask was made for.
        function: Which cells of the other blocks are seen.
    """

    seen: Bool[Tensor, "#batch #heads rows keys"]
    whole: Bool[Tensor, "#batch #heads rows keys"]
    size: tuple[int, int]
    lengths: tuple[int, int]
    function: MaskModFunction

    def __repr__(self) -> str:
        return f"Blocks({self.lengths[0]} × {self.lengths[1]})"

    def allowed(self, cells: Tile) -> Bool[Tensor, "..."]:
        lead = (at if size > 1 else 0 for at, size in zip((cells.sequence, cells.head), self.seen.shape, strict=False))
        block = (*lead, cells.query // self.size[0], cells.key // self.size[1])
        return self.whole[block] | (self.seen[block] & MaskMod(self.function).allowed(cells))

    def read(self) -> Tensor:
        """For each block of queries which blocks of keys some sequence and head sees, on the CPU."""
        return self.seen.any(0).any(0).cpu()

    def extent(self, cells: Tile) -> Span:
        if not isinstance(cells.rows, slice):
            return cells.keys
        first, last = cells.rows.start // self.size[0], (cells.rows.stop - 1) // self.size[0]
        blocks = self.known[first : last + 1].any(0).nonzero()
        if not len(blocks):
            return no_keys(cells)
        start = min(max(cells.keys[0], int(blocks[0]) * self.size[1]), cells.keys[1])
        return start, max(start, min(cells.keys[1], (int(blocks[-1]) + 1) * self.size[1]))

    def objections(self, shape: Shape, device: torch.device) -> list[str]:
        found = other_device(self.seen, device)
        if self.lengths != shape[2:]:
            found.append(f"mask: the BlockMask was made for (queries, keys) = {self.lengths}, expected {shape[2:]}")
        for axis, size, given in zip(("batch", "heads"), shape, self.seen.shape, strict=False):
            if given not in (1, size):
                found.append(f"mask: the BlockMask has {axis} {given}, expected 1 or {size}")
        return found or MaskMod(self.function).objections(shape, device)


def from_block_mask(block_mask: BlockMask) -> FlexBlockMask:
    """The same mask as a rule of this library, so that it can be combined with others and asked for.

    Args:
        block_mask: Of `torch.nn.attention.flex_attention`. `attend` takes it as it is, too.

    Raises:
        InvalidType: If it is something else.

    Example:
        >>> import regard, torch
        >>> from torch.nn.attention.flex_attention import create_block_mask
        >>> block_mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 200, 200, device="cpu")
        >>> x = torch.zeros(1, 1, 200, 8)
        >>> regard.weights(x, x, mask=block_mask)[0, 0, 1, :4]
        tensor([0.5000, 0.5000, 0.0000, 0.0000])
    """
    if not isinstance(block_mask, BlockMask):
        raise InvalidType(f"block_mask: expected a BlockMask of FlexAttention, got {type(block_mask).__name__}")
    lengths, size = (tuple(int(each) for each in pair) for pair in (block_mask.seq_lengths, block_mask.BLOCK_SIZE))
    columns = -(-lengths[1] // size[1])
    seen = _blocks(block_mask.kv_num_blocks, block_mask.kv_indices, columns)
    whole = torch.zeros_like(seen)
    if block_mask.full_kv_num_blocks is not None and block_mask.full_kv_indices is not None:
        whole = _blocks(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, columns)
    return FlexBlockMask(seen | whole, whole, size, lengths, block_mask.mask_mod)  # pyright: ignore[reportArgumentType]


def _blocks(count: Tensor, indices: Tensor, columns: int) -> Tensor:
    """Lists of block numbers, of which the first `count` hold, as bools: (batch, heads, rows, columns)."""
    here = torch.arange(indices.shape[-1], device=count.device) < count[..., None]
    found = torch.zeros(*count.shape, columns + 1, dtype=torch.bool, device=count.device)
    return found.scatter(-1, indices.to(torch.int64).where(here, columns), True)[..., :columns]


def to_mask_mod(mask: MaskLike, offset: int = 0) -> MaskModFunction:
    """The mask as a function ``(batch, head, query, key) -> bool``, FlexAttention's `mask_mod`.

    It takes the numbers of one cell, or index tensors of a rectangle of cells that broadcast against each other.

    Args:
        mask: A rule, or what becomes one.
        offset: Query i stands at position i + offset.
    """
    rule = as_mask(mask)
    return lambda batch, head, query, key: _allowed(rule, offset, batch, head, query, key)


def _allowed(rule: Mask, offset: int, *given: Tensor) -> Tensor:
    """What a rule says of cells whose indices are given: sequence, head, query and key."""
    indices = [torch.as_tensor(index) for index in given]
    *at, key = indices
    flat = [index.reshape(-1) for index in at]
    columns = key.reshape(-1, key.shape[-1] if key.ndim else 1).expand(len(flat[2]), -1)
    sequences, heads, queries = flat
    found = rule.allowed(Tile(sequences, heads, queries, (0, 0), offset, columns.device, columns))
    whole = found.expand(*(len(index) for index in flat), columns.shape[1])
    return whole.reshape(torch.broadcast_shapes(*(index.shape for index in indices)))


def to_block_mask(mask: MaskLike, shape: Shape, offset: int | None = None, **options: Any) -> BlockMask:
    """The mask as FlexAttention's `BlockMask`.

    Args:
        mask: A rule, or what becomes one.
        shape: (batch, heads, queries, keys).
        offset: Query i stands at position i + offset; keys − queries if not given.
        options: For torch's `create_block_mask`: its device, ``"cpu"`` if not given, and its BLOCK_SIZE.

    Raises:
        InvalidArgument: If the mask does not fit the shape.
        InvalidType: If shape or offset are no integers, or the mask is none.

    Example:
        >>> import regard
        >>> from regard.ops.masks import to_block_mask
        >>> to_block_mask(regard.Window(64, 0), (1, 1, 512, 512)).sparsity()
        56.25
    """
    options = {"device": "cpu"} | options
    rule, offset = fitting(mask, shape, offset, torch.device(options["device"]))
    return create_block_mask(to_mask_mod(rule, offset), *shape, **options)


def to_dense(
    mask: MaskLike, shape: Shape, offset: int | None = None, device: str | torch.device = "cpu"
) -> Bool[Tensor, "batch heads queries keys"]:
    """The mask cell by cell, (batch, heads, queries, keys), True where a query may attend.

    Args:
        mask: A rule, or what becomes one.
        shape: (batch, heads, queries, keys).
        offset: Query i stands at position i + offset; keys − queries if not given.
        device: Where the tensors of the mask lie.

    Raises:
        InvalidArgument: If the mask does not fit the shape.
        InvalidType: If shape or offset are no integers, or the mask is none.

    Example:
        >>> import regard
        >>> from regard.ops.masks import to_dense
        >>> to_dense(regard.Causal(), (1, 1, 2, 3))[0, 0].tolist()
        [[True, True, False], [True, True, True]]
    """
    rule, offset = fitting(mask, shape, offset, torch.device(device))
    batch, heads, queries, keys = shape
    whole = slice(0, batch), slice(0, heads), slice(0, queries)
    return rule.allowed(Tile(*whole, (0, keys), offset, torch.device(device))).expand(shape)


def fitting(mask: MaskLike, shape: Shape, offset: int | None, device: torch.device) -> tuple[Mask, int]:
    """The rule and the offset, once they fit the shape."""
    if len(shape) != 4 or not all(isinstance(size, int) for size in shape):
        raise InvalidType(f"shape: expected (batch, heads, queries, keys), got {shape!r}")
    if offset is not None and (not isinstance(offset, int) or isinstance(offset, bool)):
        raise InvalidType(f"offset: expected a number of keys (int) or None, got {offset!r}")
    rule = as_mask(mask)
    raise_problems(rule.objections(shape, device), InvalidArgument)
    return rule, shape[3] - shape[2] if offset is None else offset
