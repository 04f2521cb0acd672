"""The operation: pure functions on tensors."""

from __future__ import annotations

from regard.ops.attend import Attended, attend, weights
from regard.ops.dropout import dropout
from regard.ops.masks import Causal, Documents, IndexRule, Mask, MaskLike, Neighbours, Padding, Prefix, Window
from regard.ops.matrix import WeightMatrix
from regard.ops.measures import (
    Block,
    BlockMean,
    ByDistance,
    Diagonal,
    Entropy,
    Grouped,
    Lse,
    Mass,
    Max,
    MeanDistance,
    Measure,
    Received,
    TopK,
)
from regard.ops.rotary import rotary
from regard.ops.scores import (
    Additive,
    Alibi,
    Bias,
    Buckets,
    General,
    Relative,
    ScaledDot,
    Score,
    Sinks,
    SoftCap,
)
from regard.ops.view import ScoreMatrix

__all__ = [
    "Additive",
    "Alibi",
    "Attended",
    "Bias",
    "Block",
    "BlockMean",
    "Buckets",
    "ByDistance",
    "Causal",
    "Diagonal",
    "Documents",
    "Entropy",
    "General",
    "Grouped",
    "IndexRule",
    "Lse",
    "Mask",
    "MaskLike",
    "Mass",
    "Max",
    "MeanDistance",
    "Measure",
    "Neighbours",
    "Padding",
    "Prefix",
    "Received",
    "Relative",
    "ScaledDot",
    "Score",
    "ScoreMatrix",
    "Sinks",
    "SoftCap",
    "TopK",
    "WeightMatrix",
    "Window",
    "attend",
    "dropout",
    "rotary",
    "weights",
]
