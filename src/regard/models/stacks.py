"""The stacks of layers that the configuration of a Transformer describes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from regard.models.positions import attention_positions
from regard.nn.attention import MultiHeadAttention
from regard.nn.attention_positions import AttentionPositions
from regard.nn.decoder import Decoder, DecoderLayer
from regard.nn.encoder import Encoder, EncoderLayer
from regard.nn.feed_forward import FeedForward

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


def make_encoder(config: TransformerConfig) -> Encoder:
    """The encoder that a config describes."""
    return Encoder(
        [
            EncoderLayer(
                make_attention(config, positions),
                make_feed_forward(config),
                norm=config.norm,
                dropout=config.dropout,
            )
            for positions in layer_positions(config, config.num_encoder_layers, causal=False)
        ]
    )


def make_decoder(config: TransformerConfig) -> Decoder:
    """The decoder that a config describes."""
    return Decoder(
        [
            DecoderLayer(
                make_attention(config, positions),
                make_feed_forward(config),
                cross_attention=make_attention(config),
                norm=config.norm,
                dropout=config.dropout,
            )
            for positions in layer_positions(config, config.num_decoder_layers, causal=True)
        ]
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
