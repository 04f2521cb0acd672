"""The operation: pure functions on tensors."""

from __future__ import annotations

from regard.ops.attend import Attended, attend, weights
from regard.ops.dropout import dropout
from regard.ops.masks import Causal, Mask, Padding, Window
from regard.ops.matrix import ScoreMatrix, WeightMatrix
from regard.ops.measures import Block, Entropy, Lse, Measure, Received, TopK
from regard.ops.scores import ScaledDot, Score

__all__ = [
    "Attended",
    "Block",
    "Causal",
    "Entropy",
    "Lse",
    "Mask",
    "Measure",
    "Padding",
    "Received",
    "ScaledDot",
    "Score",
    "ScoreMatrix",
    "TopK",
    "WeightMatrix",
    "Window",
    "attend",
    "dropout",
    "weights",
]
