"""What models are built from: stacks of layers, position encodings, and the map to logits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor, nn

from regard.models.config import Norm, Positions, TransformerLayerConfig
from regard.nn.absolute_positions import LearnedPositions, NoPositions, SinusoidalPositions
from regard.nn.feed_forward import FeedForward
from regard.nn.linear import Linear
from regard.nn.linear_cross_entropy import TokenLoss, linear_cross_entropy
from regard.nn.multi_head_attention import MultiHeadAttention
from regard.nn.relative_positions import (
    AlibiPositions,
    AttentionPositions,
    RelativePositions,
    RotaryPositions,
    T5Positions,
    rotary_frequencies,
)
from regard.nn.transformer_layer import NormLayer, TransformerLayer, TransformerStack

NORMS: Mapping[Norm, type[nn.Module]] = MappingProxyType({"layer_norm": nn.LayerNorm, "rms_norm": nn.RMSNorm})
POSITIONS_IN_ATTENTION: tuple[Positions, ...] = ("relative", "rotary", "alibi", "t5")
DEFAULT_MAX_DISTANCE = {"relative": 16, "t5": 128}


def norm_layer(config: TransformerLayerConfig) -> NormLayer:
    """The norm of a configuration, called with a size."""
    return partial(NORMS[config.norm], eps=config.norm_eps)


def build_stack(
    config: TransformerLayerConfig, num_layers: int, *, causal: bool = False, cross_attention: bool = False
) -> TransformerStack:
    """Build the encoder or the decoder of a configuration."""

    def attention(positions: AttentionPositions | None = None) -> MultiHeadAttention:
        return MultiHeadAttention(
            config.d_model,
            config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            bias=config.attention_bias,
            out_bias=config.attention_out_bias,
            dropout=config.attention_dropout,
            positions=positions,
        )

    layers = [
        TransformerLayer(
            attention(positions),
            FeedForward(
                config.d_model,
                config.d_ff,
                activation=config.activation,
                gated=config.gated,
                bias=config.feed_forward_bias,
                dropout=config.activation_dropout,
            ),
            cross_attention=attention() if cross_attention else None,
            norm_first=config.norm_first,
            dropout=config.dropout,
            norm_layer=norm_layer(config),
        )
        for positions in attention_positions(config, num_layers, causal=causal)
    ]
    return TransformerStack(layers, causal=causal, norm_layer=norm_layer(config))


def embedding_positions(
    config: TransformerLayerConfig, max_seq_len: int, *, interleaved: bool = True
) -> SinusoidalPositions | LearnedPositions | NoPositions:
    """The positions that are added to embeddings."""
    if config.positions == "learned":
        return LearnedPositions(config.d_model, max_seq_len)
    if config.positions == "sinusoidal":
        return SinusoidalPositions(config.d_model, interleaved=interleaved)
    return NoPositions()


def attention_positions(
    config: TransformerLayerConfig, num_layers: int, *, causal: bool
) -> Sequence[AttentionPositions | None]:
    """The positions in the self-attention of each layer of a stack.

    Relative embeddings differ between layers, as in Shaw et al. 2018; other positions are one module for all layers.
    """
    max_distance = config.max_distance
    if max_distance is None:
        max_distance = DEFAULT_MAX_DISTANCE.get(config.positions, 0)
    shared: AttentionPositions | None = None
    if config.positions == "relative":
        return [RelativePositions(config.resolved_head_dim, max_distance) for _ in range(num_layers)]
    if config.positions == "rotary":
        frequencies = rotary_frequencies(config.resolved_head_dim, config.rotary_base)
        shared = RotaryPositions(scale_rope_frequencies(frequencies, config.rotary_scaling or {}))
    elif config.positions == "alibi":
        shared = AlibiPositions(config.num_heads)
    elif config.positions == "t5":
        shared = T5Positions(config.num_heads, bidirectional=not causal, max_distance=max_distance)
    return [shared] * num_layers


def scale_rope_frequencies(frequencies: Sequence[float], scaling: Mapping[str, float]) -> list[float]:
    """Lower the frequencies of rotary positions, for sequences longer than those of pretraining.

    With ``factor`` alone, all are divided by it. With the other keys, frequencies with a period below
    original / high_freq_factor stay, those with a period above original / low_freq_factor are divided, and between
    them the two are interpolated.

    Reference: Grattafiori et al. 2024, "The Llama 3 herd of models"; the rule is that of its code.

    Examples:
        >>> scale_rope_frequencies([1.0, 0.01], {"factor": 4.0})
        [0.25, 0.0025]
    """
    factor = scaling.get("factor", 1.0)
    if "low_freq_factor" not in scaling:
        return [frequency / factor for frequency in frequencies]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    scaled = []
    for frequency in frequencies:
        turns = scaling["original_max_position_embeddings"] * frequency / (2 * math.pi)
        unscaled = min(max((turns - low) / (high - low), 0.0), 1.0)  # share of the original frequency
        scaled.append((1 - unscaled) * frequency / factor + unscaled * frequency)
    return scaled


class LMHead(Linear):
    """The linear map from hidden states to logits over the vocabulary: logits = h Wᵀ, plus a bias if there is one."""

    def loss(
        self, hidden: Tensor, labels: Tensor, *, label_smoothing: float = 0.0, ignore_index: int = -100
    ) -> TokenLoss:
        """The cross-entropy of hidden states (..., d_model) and labels (...), without storing the logits.

        Arguments and errors are those of `regard.nn.linear_cross_entropy`.
        """
        return linear_cross_entropy(
            hidden.flatten(0, -2),
            self.weight,
            labels.flatten(),
            bias=self.bias,
            label_smoothing=label_smoothing,
            ignore_index=ignore_index,
        )


def init_normal(model: nn.Module, std: float = 0.02, *, residual_std: float | None = None) -> None:
    """Draw every matrix from N(0, std²); set biases to 0 and norms to 1.

    Positions in self-attention start as their classes describe.

    Args:
        model: The model.
        std: The standard deviation.
        residual_std: That of the last matrix of each sublayer. Default: std.
    """
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif parameter.ndim == 1:
            nn.init.ones_(parameter)
        elif residual_std is not None and name.endswith(("out_proj.weight", "fc2.weight")):
            nn.init.normal_(parameter, std=residual_std)
        else:
            nn.init.normal_(parameter, std=std)
    for module in model.modules():
        if isinstance(module, (RelativePositions, T5Positions)):
            module.reset_parameters()


def reset_buffers(model: nn.Module) -> None:
    """Compute the buffers that checkpoints do not store, on the CPU, in a model that was built on the meta device."""
    with torch.device("cpu"):
        for module in model.modules():
            if isinstance(module, (SinusoidalPositions, RotaryPositions, AlibiPositions)):
                module.reset_buffers()


def to_autocast_dtype(embeddings: Tensor) -> Tensor:
    """Cast embeddings to the dtype of autocast if it is enabled, because ``nn.Embedding`` does not."""
    if torch.is_autocast_enabled(embeddings.device.type):
        return embeddings.to(torch.get_autocast_dtype(embeddings.device.type))
    return embeddings
