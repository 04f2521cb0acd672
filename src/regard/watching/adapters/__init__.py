"""Adapters: functions that state what a module with a softmax of its own computes. One file per family of models."""

from __future__ import annotations

from regard.watching.adapters.inputs import Adapter, AttentionInputs

__all__ = ["Adapter", "AttentionInputs"]
