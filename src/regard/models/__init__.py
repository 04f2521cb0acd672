"""Whole models: one file a paper."""

from __future__ import annotations

from regard.models.checkpoint import load_model, save_model
from regard.models.transformer import Attentions, Transformer, TransformerConfig, TransformerOutput

__all__ = ["Attentions", "Transformer", "TransformerConfig", "TransformerOutput", "load_model", "save_model"]
