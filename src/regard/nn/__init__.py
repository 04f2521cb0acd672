"""Layers made of the operation, their losses and their caches."""

from __future__ import annotations

from regard.nn.attention import MultiHeadAttention
from regard.nn.cache import DecoderCache, FixedCache, GrowingCache, LayerCache
from regard.nn.cross_entropy import TokenLoss, linear_cross_entropy
from regard.nn.decoder import Decoder, DecoderLayer
from regard.nn.dropout import Dropout
from regard.nn.encoder import Encoder, EncoderLayer
from regard.nn.feed_forward import FeedForward
from regard.nn.losses import alignment_loss, coverage_loss, divergence_loss, entropy_loss
from regard.nn.positions import LearnedPositions, SinusoidalPositions
from regard.nn.residual import Residual
from regard.nn.self_attention import SelfAttention

__all__ = [
    "Decoder",
    "DecoderCache",
    "DecoderLayer",
    "Dropout",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "FixedCache",
    "GrowingCache",
    "LayerCache",
    "LearnedPositions",
    "MultiHeadAttention",
    "Residual",
    "SelfAttention",
    "SinusoidalPositions",
    "TokenLoss",
    "alignment_loss",
    "coverage_loss",
    "divergence_loss",
    "entropy_loss",
    "linear_cross_entropy",
]
