"""Layers made of the operation, their losses and their caches."""

from __future__ import annotations

from regard.nn.additive_attention import AdditiveAttention
from regard.nn.attention import MultiHeadAttention
from regard.nn.attention_positions import (
    AlibiPositions,
    AttentionPositions,
    BucketPositions,
    RelativePositions,
    RotaryPositions,
    rotary_frequencies,
)
from regard.nn.cache import Cache, CrossAttentionCache, DecoderCache, KVCache, LayerCache, SharedBeamCache
from regard.nn.cross_entropy import TokenLoss, linear_cross_entropy
from regard.nn.dropout import Dropout
from regard.nn.feed_forward import FeedForward
from regard.nn.graph_attention import GraphAttention
from regard.nn.losses import alignment_loss, coverage_loss, divergence_loss, entropy_loss
from regard.nn.positions import LearnedPositions, NoPositions, SinusoidalPositions
from regard.nn.self_attention import SelfAttention
from regard.nn.self_attention_2d import SelfAttention2d
from regard.nn.transformer_layer import Residual, StackOutput, TransformerLayer, TransformerStack

__all__ = [
    "AdditiveAttention",
    "AlibiPositions",
    "AttentionPositions",
    "BucketPositions",
    "Cache",
    "CrossAttentionCache",
    "DecoderCache",
    "Dropout",
    "FeedForward",
    "GraphAttention",
    "KVCache",
    "LayerCache",
    "LearnedPositions",
    "MultiHeadAttention",
    "NoPositions",
    "RelativePositions",
    "Residual",
    "RotaryPositions",
    "SelfAttention",
    "SelfAttention2d",
    "SharedBeamCache",
    "SinusoidalPositions",
    "StackOutput",
    "TokenLoss",
    "TransformerLayer",
    "TransformerStack",
    "alignment_loss",
    "coverage_loss",
    "divergence_loss",
    "entropy_loss",
    "linear_cross_entropy",
    "rotary_frequencies",
]
