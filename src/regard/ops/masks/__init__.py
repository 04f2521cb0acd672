"""Masks as index rules, one file an idea."""

from __future__ import annotations

from regard.ops.masks.base import And, DenseMask, Mask, MaskLike, MaskMod, MaskModFunction, Not, Or, as_mask
from regard.ops.masks.convert import FlexBlockMask, from_block_mask, to_block_mask, to_dense, to_mask_mod
from regard.ops.masks.documents import Documents
from regard.ops.masks.neighbours import Neighbours
from regard.ops.masks.of_heads import MaskOfHeads
from regard.ops.masks.padding import Padding
from regard.ops.masks.prefix import Prefix
from regard.ops.masks.spans import Spans, to_spans
from regard.ops.masks.window import Causal, Window

__all__ = [
    "And",
    "Causal",
    "DenseMask",
    "Documents",
    "FlexBlockMask",
    "Mask",
    "MaskLike",
    "MaskMod",
    "MaskModFunction",
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
