"""Scores: a number from a query and a key, before the softmax. One file per idea."""

from __future__ import annotations

from regard.ops.scores.additive import Additive as Additive
from regard.ops.scores.base import Score as Score
from regard.ops.scores.base import ScoreLike as ScoreLike
from regard.ops.scores.base import Sum as Sum
from regard.ops.scores.base import as_score as as_score
from regard.ops.scores.bias import Alibi as Alibi
from regard.ops.scores.bias import Bias as Bias
from regard.ops.scores.bias import T5RelativeBias as T5RelativeBias
from regard.ops.scores.dot_product import Bilinear as Bilinear
from regard.ops.scores.dot_product import ScaledDotProduct as ScaledDotProduct
from regard.ops.scores.modifiers import Sinks as Sinks
from regard.ops.scores.modifiers import SoftCap as SoftCap
from regard.ops.scores.relative import RelativeKey as RelativeKey
from regard.ops.scores.relative import RelativeQuery as RelativeQuery
from regard.ops.scores.score_mod import ScoreMod as ScoreMod
