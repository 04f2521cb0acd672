"""Calls without tensors but query, key and value."""

from __future__ import annotations

import torch

from regard.diagnostics.cases import Shape
from regard.ops.measures import TopK
from regard.ops.scores import ScaledDotProduct, SoftCap

PLAIN_MASKS = {"none", "causal", "window", "past", "future", "prefix", "not", "not causal"}
"""Those without tensors."""
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
