"""Score rules: from a query and a key to one number, one file an idea."""

from __future__ import annotations

from regard.ops.scores.additive import Additive
from regard.ops.scores.base import Score, Sum
from regard.ops.scores.biases import Alibi, Bias, Buckets
from regard.ops.scores.changed import ScoreOfHeads, Sinks, SoftCap
from regard.ops.scores.named import SCORES, as_score
from regard.ops.scores.products import General, ScaledDot
from regard.ops.scores.relative import Relative

__all__ = [
    "SCORES",
    "Additive",
    "Alibi",
    "Bias",
    "Buckets",
    "General",
    "Relative",
    "ScaledDot",
    "Score",
    "ScoreOfHeads",
    "Sinks",
    "SoftCap",
    "Sum",
    "as_score",
]
