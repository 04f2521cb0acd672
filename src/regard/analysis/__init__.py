"""What attention weights say: analyses of recordings."""

from __future__ import annotations

from regard.analysis.alignment import Alignment, align, mutual_information
from regard.analysis.graph import SparseWeights, pagerank, to_csr, to_networkx
from regard.analysis.head_scores import (
    HEAD_SCORES,
    SEPARATOR_TOKENS,
    SPECTRAL_SCORES,
    as_score_tensors,
    head_scores,
    rank_heads,
)
from regard.analysis.hodge import HodgeParts, hodge
from regard.analysis.plots import plot_head_scores, plot_weights
from regard.analysis.relevance import relevance
from regard.analysis.rollout import flow, rollout
from regard.analysis.segments import segment_attention
from regard.analysis.tables import edge_table, row_table, save_table
from regard.analysis.weighted_values import WeightedValues, weighted_values
from regard.analysis.word_weights import WordWeights, word_weights

__all__ = [
    "HEAD_SCORES",
    "SEPARATOR_TOKENS",
    "SPECTRAL_SCORES",
    "Alignment",
    "HodgeParts",
    "SparseWeights",
    "WeightedValues",
    "WordWeights",
    "align",
    "as_score_tensors",
    "edge_table",
    "flow",
    "head_scores",
    "hodge",
    "mutual_information",
    "pagerank",
    "plot_head_scores",
    "plot_weights",
    "rank_heads",
    "relevance",
    "rollout",
    "row_table",
    "save_table",
    "segment_attention",
    "to_csr",
    "to_networkx",
    "weighted_values",
    "word_weights",
]
