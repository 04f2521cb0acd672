"""Record calls of torch's `flex_attention`.

The function itself cannot be intercepted, because it is ordinary Python code, which models also compile. All of its
calls end in one higher-order operator, which can; while a watch is open, nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._higher_order_ops.flex_attention import flex_attention as operator
from torch.nn.attention import flex_attention
from torch.nn.attention.flex_attention import noop_mask
from torch.utils.weak import WeakIdKeyDictionary

from regard.errors import InvalidArgument
from regard.ops.masks import FlexBlockMask
from regard.ops.masks.convert import from_tables
from regard.ops.request import make_request
from regard.ops.scores import ScaledDotProduct, Score, ScoreMod
from regard.ops.tile import KeyRange, Tile
from regard.watching.call import AttentionCall
from regard.watching.transformers_attention import cast_as_autocast
from regard.watching.unsupported import label

if TYPE_CHECKING:
    from regard.watching.listener import Listener

OPERATOR = operator
"""The operator in which calls of `flex_attention` end."""

WITHOUT_SCORE_MOD = getattr(flex_attention, "_identity", None)
"""What the operator gets as the `score_mod` of a call without one, in this version of torch."""

MAX_CELLS_AT_ONCE = 2**22
"""Cells of a mask that are computed at once."""


class FlexAttentionRecorder:
    """Records calls of `flex_attention`. It reads each `BlockMask` once."""

    def __init__(self) -> None:
        self._masks = WeakIdKeyDictionary()  # by the table of key blocks: the mask_mod, the rule, and if it is causal

    def record(self, listener: Listener, args: Sequence[Any], result: Any) -> Any:
        """Record a call, and return its result.

        Args:
            listener: The listener.
            args: Those of the operator.
            result: The output, (batch, heads, queries, value_dim), and what else the operator returns.

        Raises:
            InvalidArgument: If its `score_mod` or its `BlockMask` cannot be read; it names the module.
        """
        module = listener.forward.modules[-1]
        if listener.ignores(module):
            return result
        query, key, value, score_mod, tables, scale, _, of_score, of_mask = args
        query, key, value = cast_as_autocast(query, key, value)
        key, value = (part.expand(len(query), -1, -1, -1) for part in (key, value))
        try:
            batch, heads, queries, _ = query.shape
            rule, is_causal = self._read_mask(tables, of_mask, (batch, heads, queries, key.shape[2]))
            offset = key.shape[2] - queries
            score = _score(_bind(score_mod, of_score))
            request = make_request(query, key, mask=rule, score=score, scale=float(scale), offset=offset)
        except InvalidArgument as error:
            raise InvalidArgument(f"{label(listener.module_names[id(module)], module)}: {error}") from error
        call = AttentionCall(request, offset, value=value, has_assumed_positions=True)
        listener.attention_kind(module, is_causal)  # decides it
        listener.record_unchangeable(module, call, tables[3], separate_layers=True)
        if call.output_gradient is None:
            return result
        output, *rest = result
        return (call.output_gradient.follow(output, lambda gradient: gradient), *rest)

    def _read_mask(
        self, tables: Sequence[Any], captured: Sequence[Tensor], shape: tuple[int, int, int, int]
    ) -> tuple[FlexBlockMask | None, bool]:
        """The rule of a `BlockMask`, given as a tuple, None if it allows all keys; and whether it is causal."""
        mask_mod = tables[-1]
        if mask_mod is noop_mask and tables[-2] >= shape[3] and tables[-3] >= shape[2]:  # without a BlockMask
            return None, False
        known = self._masks.get(tables[3])
        if known is None or known[0] is not mask_mod:
            rule = from_tables(tables[:2], tables[-3:-1], tables[2:6], _bind(mask_mod, captured))
            self._masks[tables[3]] = known = mask_mod, rule, _check_blocks(rule, shape)
        return known[1:]


def _score(score_mod: Callable[..., Tensor]) -> Score:
    return ScaledDotProduct() if score_mod is WITHOUT_SCORE_MOD else ScoreMod(ScaledDotProduct(), score_mod)


def _bind(function: Callable[..., Tensor], captured: Sequence[Tensor]) -> Callable[..., Tensor]:
    """A function of a cell, where a compiler passes the tensors that it captures as further arguments."""
    return (lambda *cell: function(*cell, *captured)) if captured else function


def _check_blocks(rule: FlexBlockMask, shape: tuple[int, int, int, int]) -> bool:
    """Whether a mask is causal: no query may attend to a key after its position.

    Raises:
        InvalidArgument: If its blocks are not those that its `mask_mod` allows. Compiled attention follows the blocks,
            and attention that is not compiled the function.
    """
    offset, is_causal = shape[3] - shape[2], True
    for tile in _tiles(shape, rule.full.device):
        allowed, by_function = rule.allowed(tile), rule.of_cells(tile)
        if not torch.equal(*torch.broadcast_tensors(allowed, by_function)):
            raise InvalidArgument(
                "the blocks of its BlockMask are not those that its mask_mod allows, so flex_attention attends to "
                "other keys if it is not compiled, as in a watch; make the BlockMask with a mask_mod for its blocks"
            )
        is_causal = is_causal and not bool((by_function & (tile.kv_idx > tile.q_idx + offset)).any())
    return is_causal


def _tiles(shape: tuple[int, int, int, int], device: torch.device) -> Iterator[Tile]:
    """All cells, in tiles of some rows of one entry of the batch."""
    batch, heads, queries, keys = shape
    step = max(1, MAX_CELLS_AT_ONCE // (heads * keys))
    for entry in range(batch):
        for start in range(0, queries, step):
            rows = slice(start, min(start + step, queries))
            yield Tile(slice(entry, entry + 1), slice(0, heads), rows, KeyRange(0, keys), 0, device)
