"""Masks: which keys each query may attend to. One file per idea."""

from __future__ import annotations

from regard.ops.masks.base import And as And
from regard.ops.masks.base import DenseMask as DenseMask
from regard.ops.masks.base import Mask as Mask
from regard.ops.masks.base import MaskLike as MaskLike
from regard.ops.masks.base import MaskMod as MaskMod
from regard.ops.masks.base import MaskModFunction as MaskModFunction
from regard.ops.masks.base import Not as Not
from regard.ops.masks.base import Or as Or
from regard.ops.masks.base import as_mask as as_mask
from regard.ops.masks.convert import FlexBlockMask as FlexBlockMask
from regard.ops.masks.convert import from_block_mask as from_block_mask
from regard.ops.masks.convert import to_block_mask as to_block_mask
from regard.ops.masks.convert import to_dense as to_dense
from regard.ops.masks.convert import to_mask_mod as to_mask_mod
from regard.ops.masks.documents import Documents as Documents
from regard.ops.masks.neighbors import Neighbors as Neighbors
from regard.ops.masks.padding import Padding as Padding
from regard.ops.masks.prefix import Prefix as Prefix
from regard.ops.masks.spans import Spans as Spans
from regard.ops.masks.spans import to_spans as to_spans
from regard.ops.masks.window import Causal as Causal
from regard.ops.masks.window import Window as Window
