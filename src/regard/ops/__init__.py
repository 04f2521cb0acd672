"""The operation: pure functions on tensors."""

from __future__ import annotations

from regard.ops.attend import AttentionOutput, attend, weights
from regard.ops.dropout import dropout
from regard.ops.masks import Causal, Documents, Mask, MaskLike, MaskMod, Neighbours, Padding, Prefix, Window
from regard.ops.matrix import ScoreMatrix
from regard.ops.measures import (
    Block,
    BlockMean,
    Diagonal,
    DistanceHistogram,
    Entropy,
    GroupPool,
    LogSumExp,
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
    Bilinear,
    RelativeKey,
    ScaledDotProduct,
    Score,
    Sinks,
    SoftCap,
    T5RelativeBias,
)
from regard.ops.weight_matrix import WeightMatrix

__all__ = [
    "Additive",
    "Alibi",
    "AttentionOutput",
    "Bias",
    "Bilinear",
    "Block",
    "BlockMean",
    "Causal",
    "Diagonal",
    "DistanceHistogram",
    "Documents",
    "Entropy",
    "GroupPool",
    "LogSumExp",
    "Mask",
    "MaskLike",
    "MaskMod",
    "Mass",
    "Max",
    "MeanDistance",
    "Measure",
    "Neighbours",
    "Padding",
    "Prefix",
    "Received",
    "RelativeKey",
    "ScaledDotProduct",
    "Score",
    "ScoreMatrix",
    "Sinks",
    "SoftCap",
    "T5RelativeBias",
    "TopK",
    "WeightMatrix",
    "Window",
    "attend",
    "dropout",
    "rotary",
    "weights",
]
