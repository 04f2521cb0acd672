"""What attention weights say: recordings of them, and what follows from these."""

from __future__ import annotations

from regard.analysis.graph import SparseWeights, pagerank, to_csr, to_networkx
from regard.analysis.layers import flow, rollout
from regard.analysis.recording import Layer, Recording
from regard.analysis.steps import Step, Trace
from regard.analysis.trace import trace_layer

__all__ = [
    "Layer",
    "Recording",
    "SparseWeights",
    "Step",
    "Trace",
    "flow",
    "pagerank",
    "rollout",
    "to_csr",
    "to_networkx",
    "trace_layer",
]
