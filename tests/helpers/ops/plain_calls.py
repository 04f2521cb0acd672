"""Calls without tensors but query, key and value."""

from __future__ import annotations

from typing import Any

import torch

from helpers.ops.cases import masks
from regard.diagnostics.cases import Shape
from regard.ops.kernels.base import are_builtin
from regard.ops.masks.base import as_mask
from regard.ops.measures import TopK
from regard.ops.scores import ScaledDotProduct, SoftCap
from regard.ops.tree import walk


def _is_plain(mask: Any) -> bool:
    tensors, trees = walk(None if mask is None else as_mask(mask))
    return not tensors and are_builtin(trees)


PLAIN_MASKS = [name for name, mask in masks(1, 2, 9, 12).items() if _is_plain(mask)]
"""Those without tensors and functions."""
PLAIN_SCORES = {"scaled_dot": None, "soft_cap": SoftCap(ScaledDotProduct(), 1.5)}
MEASURES = ("entropy", "received", "lse", "max", "mean_distance", TopK(3))


def tensors(shape: Shape, seed: int, dtype: torch.dtype = torch.float32):
    random = torch.Generator().manual_seed(seed)
    axes = shape.queries, shape.keys, shape.keys
    heads, widths = (shape.heads, shape.kv_heads, shape.kv_heads), (shape.head_dim, shape.head_dim, shape.value_dim)
    return [
        torch.randn(shape.batch, length, count, width, generator=random).to(dtype).transpose(1, 2)
        for count, length, width in zip(heads, axes, widths, strict=True)
    ]
