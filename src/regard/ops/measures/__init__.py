"""Measures: what may be asked of the weights, one file an idea."""

from __future__ import annotations

from regard.ops.measures.base import FORBIDDEN, Answer, Block, Entries, Measure, Shape, sunk
from regard.ops.measures.distance import Diagonal, DistanceHistogram, MeanDistance
from regard.ops.measures.entropy import Entropy, LogSumExp, Max, MaxResult
from regard.ops.measures.mass import Mass
from regard.ops.measures.named import MEASURES, MeasureLike, as_measures
from regard.ops.measures.pooling import BlockMean, GroupPool
from regard.ops.measures.received import Received, TransposedProduct
from regard.ops.measures.topk import TopK, TopKResult

__all__ = [
    "FORBIDDEN",
    "MEASURES",
    "Answer",
    "Block",
    "BlockMean",
    "Diagonal",
    "DistanceHistogram",
    "Entries",
    "Entropy",
    "GroupPool",
    "LogSumExp",
    "Mass",
    "Max",
    "MaxResult",
    "MeanDistance",
    "Measure",
    "MeasureLike",
    "Received",
    "Shape",
    "TopK",
    "TopKResult",
    "TransposedProduct",
    "as_measures",
    "sunk",
]
