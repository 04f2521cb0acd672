"""Layers: attention, Transformer layers and stacks, positions, KV caches, and losses."""

from __future__ import annotations

from regard.nn.absolute_positions import AbsolutePositions as AbsolutePositions
from regard.nn.absolute_positions import LearnedPositions as LearnedPositions
from regard.nn.absolute_positions import NoPositions as NoPositions
from regard.nn.absolute_positions import SinusoidalPositions as SinusoidalPositions
from regard.nn.additive_attention import AdditiveAttention as AdditiveAttention
from regard.nn.attention_losses import alignment_loss as alignment_loss
from regard.nn.attention_losses import coverage_loss as coverage_loss
from regard.nn.attention_losses import entropy_loss as entropy_loss
from regard.nn.attention_losses import kl_divergence_loss as kl_divergence_loss
from regard.nn.attention_losses import spectral_entropy_loss as spectral_entropy_loss
from regard.nn.cache import Cache as Cache
from regard.nn.cache import CrossAttentionCache as CrossAttentionCache
from regard.nn.cache import DecoderCache as DecoderCache
from regard.nn.cache import KVCache as KVCache
from regard.nn.cache import LayerCache as LayerCache
from regard.nn.cache import SharedBeamCache as SharedBeamCache
from regard.nn.distillation_losses import grouped_kl_loss as grouped_kl_loss
from regard.nn.distillation_losses import indexer_loss as indexer_loss
from regard.nn.distillation_losses import relation_loss as relation_loss
from regard.nn.distillation_losses import score_loss as score_loss
from regard.nn.dropout import Dropout as Dropout
from regard.nn.feed_forward import FeedForward as FeedForward
from regard.nn.graph_attention import GraphAttention as GraphAttention
from regard.nn.linear_cross_entropy import TokenLoss as TokenLoss
from regard.nn.linear_cross_entropy import linear_cross_entropy as linear_cross_entropy
from regard.nn.multi_head_attention import MultiHeadAttention as MultiHeadAttention
from regard.nn.positions import Positions as Positions
from regard.nn.positions import position_classes as position_classes
from regard.nn.relative_positions import AlibiPositions as AlibiPositions
from regard.nn.relative_positions import AttentionPositions as AttentionPositions
from regard.nn.relative_positions import RelativePositions as RelativePositions
from regard.nn.relative_positions import T5Positions as T5Positions
from regard.nn.rotary_positions import RotaryPositions as RotaryPositions
from regard.nn.rotary_positions import rotary_frequencies as rotary_frequencies
from regard.nn.self_attention import SelfAttention as SelfAttention
from regard.nn.self_attention_2d import SelfAttention2d as SelfAttention2d
from regard.nn.transformer_layer import Residual as Residual
from regard.nn.transformer_layer import StackOutput as StackOutput
from regard.nn.transformer_layer import TransformerLayer as TransformerLayer
from regard.nn.transformer_layer import TransformerStack as TransformerStack
