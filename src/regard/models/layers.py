"""What models are built from: stacks of layers, position encodings, and the map to logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor, nn

from regard.errors import InvalidArgument, InvalidType
from regard.models.config import Norm, TransformerLayerConfig
from regard.native.linear import Linear
from regard.nn.absolute_positions import NoPositions
from regard.nn.feed_forward import FeedForward
from regard.nn.linear_cross_entropy import IGNORE_INDEX, TokenLoss, linear_cross_entropy
from regard.nn.multi_head_attention import MultiHeadAttention
from regard.nn.positions import Positions, position_classes
from regard.nn.relative_positions import AttentionPositions
from regard.nn.transformer_layer import NormLayer, TransformerLayer, TransformerStack

NORMS: Mapping[Norm, type[nn.Module]] = MappingProxyType({"layer_norm": nn.LayerNorm, "rms_norm": nn.RMSNorm})


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


def has_attention_positions(config: TransformerLayerConfig) -> bool:
    """Whether the positions of a configuration are inside attention."""
    return issubclass(position_classes()[config.positions], AttentionPositions)


def embedding_positions(config: TransformerLayerConfig, *, causal: bool = False) -> Positions:
    """The positions that are added to embeddings."""
    cls = position_classes()[config.positions]
    return NoPositions() if issubclass(cls, AttentionPositions) else cls.from_config(config, causal=causal)


def attention_positions(
    config: TransformerLayerConfig, num_layers: int, *, causal: bool
) -> Sequence[AttentionPositions | None]:
    """The positions in the self-attention of each layer of a stack: one module, unless layers differ in them."""
    cls = position_classes()[config.positions]
    if not issubclass(cls, AttentionPositions):
        return [None] * num_layers
    if cls.is_shared:
        return [cls.from_config(config, causal=causal)] * num_layers
    return [cls.from_config(config, causal=causal) for _ in range(num_layers)]


class LMHead(Linear):
    """The linear map from hidden states to logits over the vocabulary: logits = h Wᵀ, plus a bias if there is one."""

    def loss(
        self, hidden: Tensor, labels: Tensor, *, label_smoothing: float = 0.0, ignore_index: int = IGNORE_INDEX
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
        if isinstance(module, AttentionPositions):
            reset_positions(module)


def reset_positions(module: Positions) -> None:
    """Initialize the parameters of positions, if they have any, as their class describes.

    Raises:
        InvalidArgument: If a class of positions in attention does not say how.
    """
    reset = getattr(module, "reset_parameters", None)
    if reset is not None:
        reset()
    elif isinstance(module, AttentionPositions) and next(module.parameters(), None) is not None:
        raise InvalidArgument(
            f"{type(module).__name__}: expected reset_parameters(), which sets its parameters, got none"
        )


def reset_buffers(model: nn.Module) -> None:
    """Compute the buffers that checkpoints do not store, on the CPU, in a model that was built on the meta device.

    Raises:
        InvalidType: If a class does not say how to compute one of its buffers.
    """
    with torch.device("cpu"):
        for module in model.modules():
            if isinstance(module, Positions):
                reset = getattr(module, "reset_buffers", None)
                if reset is not None:
                    reset()
    for module in model.modules():
        missing = [name for name, buffer in module.named_buffers(recurse=False) if buffer.is_meta]
        if missing:
            expected = f"a method reset_buffers that computes {', '.join(missing)}, which checkpoints do not store"
            raise InvalidType(f"{type(module).__name__}: expected {expected}, got none")


def to_autocast_dtype(embeddings: Tensor) -> Tensor:
    """Cast embeddings to the dtype of autocast if it is enabled, because ``nn.Embedding`` does not."""
    if torch.is_autocast_enabled(embeddings.device.type):
        return embeddings.to(torch.get_autocast_dtype(embeddings.device.type))
    return embeddings
