"""Which calls the passes can compute: the kinds of steps that they have, for a machine without Triton, too."""

from __future__ import annotations

import torch

from regard.ops.kernels.step_support import StepSupport
from regard.ops.masks import Mask
from regard.ops.measures import Measure
from regard.ops.scores import Score

MASK_KINDS = frozenset({"window", "ranges", "same_document", "dense", "and", "or", "not"})
SCORE_KINDS = frozenset(
    {"dot_product", "add_bias", "add_distances", "add_relative_key", "add_relative_query", "soft_cap"}
)
FUSED_KINDS = frozenset({"entropy", "lse", "max", "mean_distance", "mass", "diagonal"})
SWEPT_KINDS = frozenset({"select", "histogram", "topk", "divergence"})
COLUMN_KINDS = frozenset({"received", "transposed"})
POOL_KINDS = frozenset({"block_mean", "group_pool"})
DTYPES = torch.float32, torch.bfloat16, torch.float16

MAX_TOPK = 16
"""With more keys per row, sorting takes longer than all else."""

MAX_MASK_STEPS = 32
"""With more, a mask takes longer than all else, and long to compile."""

SUPPORT = StepSupport(
    {Mask: MASK_KINDS, Score: SCORE_KINDS, Measure: FUSED_KINDS | SWEPT_KINDS | COLUMN_KINDS | POOL_KINDS},
    frozenset(DTYPES),
    MAX_TOPK,
    MAX_MASK_STEPS,
    MAX_MASK_STEPS,
)
