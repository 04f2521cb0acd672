"""What attention weights say: recordings of them, and what follows from these."""

from __future__ import annotations

from regard.analysis.alignment import Alignment, align, mutual_information
from regard.analysis.graph import SparseWeights, pagerank, to_csr, to_networkx
from regard.analysis.heads import HEAD_SCORES, SEPARATORS, head_scores
from regard.analysis.layers import flow, rollout
from regard.analysis.plots import plot_heads, plot_weights
from regard.analysis.recording import Layer, Recording
from regard.analysis.steps import Step, Trace
from regard.analysis.tables import edges, row_table, save_table
from regard.analysis.trace import trace_layer

__all__ = [
    "HEAD_SCORES",
    "SEPARATORS",
    "Alignment",
    "Layer",
    "Recording",
    "SparseWeights",
    "Step",
    "Trace",
    "align",
    "edges",
    "flow",
    "head_scores",
    "mutual_information",
    "pagerank",
    "plot_heads",
    "plot_weights",
    "rollout",
    "row_table",
    "save_table",
    "to_csr",
    "to_networkx",
    "trace_layer",
]
