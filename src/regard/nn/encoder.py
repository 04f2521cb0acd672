"""The encoder: self-attention and feed-forward, layer upon layer."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.errors import raise_problems
from regard.nn.attention import MultiHeadAttention
from regard.nn.cache import DecoderCache, LayerCache
from regard.nn.feed_forward import FeedForward
from regard.nn.residual import MakeNorm, NormOrder, Residual
from regard.ops import AttentionOutput
from regard.ops.masks import Mask


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, each in its residual connection.

    Args:
        attention: The self-attention.
        feed_forward: The feed-forward network, of the same width.
        norm: ``"post"`` (the paper's) or ``"pre"``.
        dropout: Dropped share of what each of the two gives.
        make_norm: Makes a norm of a width. Default: ``nn.LayerNorm``.

    Raises:
        InvalidArgument: If the widths differ, norm is neither or dropout no probability.

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
        make_norm: MakeNorm = nn.LayerNorm,
    ) -> None:
        super().__init__()
        d_model = attention.d_model
        raise_problems(width_objections(d_model, feed_forward=feed_forward))
        self.attention = attention
        self.attention_residual = Residual(d_model, norm=norm, dropout=dropout, make_norm=make_norm)
        self.feed_forward = feed_forward
        self.feed_forward_residual = Residual(d_model, norm=norm, dropout=dropout, make_norm=make_norm)

    def forward(
        self,
        hidden: Float[Tensor, "batch tokens d_model"],
        *,
        mask: Mask | Bool[Tensor, "..."] | None = None,
        cache: LayerCache | None = None,
    ) -> tuple[Float[Tensor, "batch tokens d_model"], AttentionOutput]:
        """Map hidden (batch, tokens, d_model) to the same shape, and tell the attention.

        With a cache, hidden has only the tokens that it does not hold yet, and the cache grows by these.
        """
        attended = self.attention(
            self.attention_residual.enter(hidden), mask=mask, cache=cache.self_attention if cache else None
        )
        hidden = self.attention_residual.leave(hidden, attended.output)
        change = self.feed_forward(self.feed_forward_residual.enter(hidden))
        return self.feed_forward_residual.leave(hidden, change), attended


class Encoder(nn.Module):
    """Layers one after another; behind pre-norm layers stands one more norm.

    Args:
        layers: At least one, all with the same norm and width.
        make_norm: Makes the norm behind pre-norm layers. Default: ``nn.LayerNorm``.

    Raises:
        InvalidArgument: If there is no layer, or with every layer that differs from the first.

    Example:
        >>> import torch
        >>> encoder = Encoder([EncoderLayer(MultiHeadAttention(16, 4), FeedForward(16, 64)) for _ in range(2)])
        >>> hidden, attentions = encoder(torch.randn(2, 5, 16))
        >>> hidden.shape, len(attentions)
        (torch.Size([2, 5, 16]), 2)
    """

    def __init__(self, layers: Sequence[EncoderLayer], *, make_norm: MakeNorm = nn.LayerNorm) -> None:
        super().__init__()
        raise_problems(
            stack_objections([(layer.attention.d_model, layer.attention_residual.order) for layer in layers])
        )
        self.layers = nn.ModuleList(layers)
        self.norm = final_norm(layers[0].attention_residual.order, layers[0].attention.d_model, make_norm)

    def forward(
        self,
        hidden: Float[Tensor, "batch tokens d_model"],
        *,
        mask: Mask | Bool[Tensor, "..."] | None = None,
        cache: DecoderCache | None = None,
    ) -> tuple[Float[Tensor, "batch tokens d_model"], tuple[AttentionOutput, ...]]:
        """Map hidden (batch, tokens, d_model) to the same shape, and tell the attention of each layer.

        Under a causal mask the layers are a decoder without cross-attention, as a GPT's, and may have a cache: then
        hidden has only the tokens that it does not hold yet, and the cache grows by these.
        """
        attentions = []
        for layer, layer_cache in zip(self.layers, cache.layers if cache else [None] * len(self.layers), strict=True):
            hidden, attended = layer(hidden, mask=mask, cache=layer_cache)
            attentions.append(attended)
        return self.norm(hidden), tuple(attentions)


def width_objections(d_model: int, **parts: MultiHeadAttention | FeedForward) -> list[str]:
    """Say which parts of a layer have not the width of its self-attention."""
    return [
        f"{name} must have the width of attention, d_model={d_model}, but has d_model={part.d_model}"
        for name, part in parts.items()
        if part.d_model != d_model
    ]


def stack_objections(layers: Sequence[tuple[int, str]]) -> list[str]:
    """Say why layers of these widths and norms cannot stand one behind another."""
    if not layers:
        return ["layers must hold at least one layer, but is empty"]
    return [
        f"layers[{index}] has d_model={layer[0]} and norm={layer[1]!r}, but layers[0] d_model={layers[0][0]} and "
        f"norm={layers[0][1]!r}: they must be equal"
        for index, layer in enumerate(layers)
        if layer != layers[0]
    ]


def final_norm(order: NormOrder, d_model: int, make_norm: MakeNorm) -> nn.Module:
    """What stands behind the last layer: a norm where the layers end in a bare sum."""
    return make_norm(d_model) if order == "pre" else nn.Identity()
