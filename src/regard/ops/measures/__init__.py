"""Measures: quantities computed from the weights in one pass. One file per idea."""

from __future__ import annotations

from regard.ops.measures.base import Block as Block
from regard.ops.measures.base import Measure as Measure
from regard.ops.measures.base import MeasureLike as MeasureLike
from regard.ops.measures.base import as_measures as as_measures
from regard.ops.measures.distance import Diagonal as Diagonal
from regard.ops.measures.distance import DistanceHistogram as DistanceHistogram
from regard.ops.measures.distance import MeanDistance as MeanDistance
from regard.ops.measures.divergence import KLDivergence as KLDivergence
from regard.ops.measures.entropy import Entropy as Entropy
from regard.ops.measures.entropy import LogSumExp as LogSumExp
from regard.ops.measures.mass import Mass as Mass
from regard.ops.measures.pooling import BlockMean as BlockMean
from regard.ops.measures.pooling import GroupPool as GroupPool
from regard.ops.measures.received import Received as Received
from regard.ops.measures.received import TransposedProduct as TransposedProduct
from regard.ops.measures.topk import Max as Max
from regard.ops.measures.topk import MaxResult as MaxResult
from regard.ops.measures.topk import TopK as TopK
from regard.ops.measures.topk import TopKResult as TopKResult
