"""Masks as index rules, one file an idea."""

from __future__ import annotations

from regard.ops.masks.band import Causal, Window
from regard.ops.masks.base import And, Dense, IndexFunction, IndexRule, Mask, MaskLike, Not, Or, as_mask
from regard.ops.masks.documents import Documents
from regard.ops.masks.flex import Blocks, from_block_mask, to_block_mask, to_dense, to_mask_mod
from regard.ops.masks.neighbours import Neighbours
from regard.ops.masks.of_heads import MaskOfHeads
from regard.ops.masks.padding import Padding
from regard.ops.masks.prefix import Prefix
from regard.ops.masks.spans import Spans, to_spans

__all__ = [
    "And",
    "Blocks",
    "Causal",
    "Dense",
    "Documents",
    "IndexFunction",
    "IndexRule",
    "Mask",
    "MaskLike",
    "MaskOfHeads",
    "Neighbours",
    "Not",
    "Or",
    "Padding",
    "Prefix",
    "Spans",
    "Window",
    "as_mask",
    "from_block_mask",
    "to_block_mask",
    "to_dense",
    "to_mask_mod",
    "to_spans",
]
