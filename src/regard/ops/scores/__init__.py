"""Score rules: from a query and a key to one number, one file an idea."""

from __future__ import annotations

from regard.ops.scores.additive import Additive
from regard.ops.scores.base import Score, Sum
from regard.ops.scores.bias import Alibi, Bias, T5RelativeBias
from regard.ops.scores.dot_product import Bilinear, ScaledDotProduct
from regard.ops.scores.modifiers import ScoreOfHeads, Sinks, SoftCap
from regard.ops.scores.named import SCORES, as_score
from regard.ops.scores.relative_key import RelativeKey

__all__ = [
    "SCORES",
    "Additive",
    "Alibi",
    "Bias",
    "Bilinear",
    "RelativeKey",
    "ScaledDotProduct",
    "Score",
    "ScoreOfHeads",
    "Sinks",
    "SoftCap",
    "Sum",
    "T5RelativeBias",
    "as_score",
]
