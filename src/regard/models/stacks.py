"""The stacks of layers that the configuration of a Transformer describes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from regard.models.positions import attention_positions
from regard.nn.attention import MultiHeadAttention
from regard.nn.attention_positions import AttentionPositions
from regard.nn.feed_forward import FeedForward
from regard.nn.transformer_layer import TransformerLayer, TransformerStack

if TYPE_CHECKING:
    from regard.models.transformer import TransformerConfig


def make_attention(config: TransformerConfig, positions: AttentionPositions | None = None) -> MultiHeadAttention:
    """One attention of a Transformer."""
    return MultiHeadAttention(
        config.d_model,
        config.num_heads,
        num_kv_heads=config.num_kv_heads,
        dropout=config.attention_dropout,
        positions=positions,
    )


def make_feed_forward(config: TransformerConfig) -> FeedForward:
    """One feed-forward network of a Transformer."""
    return FeedForward(config.d_model, config.d_ff, activation=config.activation, dropout=config.activation_dropout)


def make_stack(
    config: TransformerConfig, num_layers: int, *, causal: bool, cross_attention: bool = False
) -> TransformerStack:
    """The encoder or the decoder that a config describes."""
    return TransformerStack(
        [
            TransformerLayer(
                make_attention(config, positions),
                make_feed_forward(config),
                cross_attention=make_attention(config) if cross_attention else None,
                norm_first=config.norm == "pre",
                dropout=config.dropout,
            )
            for positions in layer_positions(config, num_layers, causal=causal)
        ],
        causal=causal,
    )


def layer_positions(config: TransformerConfig, layers: int, *, causal: bool) -> Sequence[AttentionPositions | None]:
    """What the self-attention of each layer of a stack is told of distances."""
    return attention_positions(
        config.positions,
        layers,
        num_heads=config.num_heads,
        head_dim=config.d_model // config.num_heads,
        causal=causal,
        max_distance=config.max_distance,
    )
