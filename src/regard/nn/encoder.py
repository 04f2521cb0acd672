"""The encoder: self-attention and feed-forward, layer upon layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from regard.nn.attention import MultiHeadAttention
from regard.nn.feed_forward import FeedForward
from regard.nn.residual import NormOrder, Residual
from regard.ops import Attended

if TYPE_CHECKING:
    from regard.ops.masks import Mask


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, each in its residual connection.

    Args:
        attention: The self-attention.
        feed_forward: The feed-forward network, of the same width.
        norm: ``"post"`` (the paper's) or ``"pre"``.
        dropout: Dropped share of what each of the two gives.

    Reference:
        Vaswani et al. 2017, section 3.1.

    Example:
        >>> import torch
        >>> layer = EncoderLayer(MultiHeadAttention(16, 4), FeedForward(16, 64))
        >>> hidden, attended = layer(torch.randn(2, 5, 16))
        >>> hidden.shape, attended.weights.shape
        (torch.Size([2, 5, 16]), torch.Size([2, 4, 5, 5]))
    """

    def __init__(
        self,
        attention: MultiHeadAttention,
        feed_forward: FeedForward,
        *,
        norm: NormOrder = "post",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.attention_residual = Residual(attention.d_model, norm=norm, dropout=dropout)
        self.feed_forward = feed_forward
        self.feed_forward_residual = Residual(attention.d_model, norm=norm, dropout=dropout)

    def forward(self, hidden: Tensor, *, mask: Mask | Tensor | None = None) -> tuple[Tensor, Attended]:
        """Map hidden (batch, tokens, d_model) to the same shape, and tell the attention."""
        attended = self.attention(self.attention_residual.enter(hidden), mask=mask)
        hidden = self.attention_residual.leave(hidden, attended.output)
        change = self.feed_forward(self.feed_forward_residual.enter(hidden))
        return self.feed_forward_residual.leave(hidden, change), attended


class Encoder(nn.Module):
    """Layers one after another; behind pre-norm layers stands one more norm.

    Args:
        layers: At least one, all with the same norm.

    Example:
        >>> import torch
        >>> encoder = Encoder([EncoderLayer(MultiHeadAttention(16, 4), FeedForward(16, 64)) for _ in range(2)])
        >>> hidden, attentions = encoder(torch.randn(2, 5, 16))
        >>> hidden.shape, len(attentions)
        (torch.Size([2, 5, 16]), 2)
    """

    def __init__(self, layers: Sequence[EncoderLayer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = final_norm(layers[0].attention_residual)

    def forward(self, hidden: Tensor, *, mask: Mask | Tensor | None = None) -> tuple[Tensor, tuple[Attended, ...]]:
        """Map hidden (batch, tokens, d_model) to the same shape, and tell the attention of each layer."""
        attentions = []
        for layer in self.layers:
            hidden, attended = layer(hidden, mask=mask)
            attentions.append(attended)
        return self.norm(hidden), tuple(attentions)


def final_norm(residual: Residual) -> nn.Module:
    """What stands behind the last layer: a norm where the layers end in a bare sum."""
    return nn.LayerNorm(list(residual.norm.normalized_shape)) if residual.order == "pre" else nn.Identity()
