"""Measures: what may be asked of the weights, one file an idea."""

from __future__ import annotations

from regard.ops.measures.base import FORBIDDEN, Answer, Block, Entries, Measure, Shape, sunk
from regard.ops.measures.distance import ByDistance, Diagonal, MeanDistance
from regard.ops.measures.mass import Mass
from regard.ops.measures.named import MEASURES, Asked, as_measures
from regard.ops.measures.pooled import BlockMean, Grouped
from regard.ops.measures.received import Pulled, Received
from regard.ops.measures.rows import Entropy, Lse, Max, Strongest
from regard.ops.measures.top import Top, TopK

__all__ = [
    "FORBIDDEN",
    "MEASURES",
    "Answer",
    "Asked",
    "Block",
    "BlockMean",
    "ByDistance",
    "Diagonal",
    "Entries",
    "Entropy",
    "Grouped",
    "Lse",
    "Mass",
    "Max",
    "MeanDistance",
    "Measure",
    "Pulled",
    "Received",
    "Shape",
    "Strongest",
    "Top",
    "TopK",
    "as_measures",
    "sunk",
]
