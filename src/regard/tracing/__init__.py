"""Step-by-step calculations of attention layers."""

from __future__ import annotations

from regard.tracing.attention import trace_layer
from regard.tracing.trace import Step, Trace

__all__ = ["Step", "Trace", "trace_layer"]
