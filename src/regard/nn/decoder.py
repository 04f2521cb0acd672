"""The decoder: causal self-attention, cross-attention to the encoder's memory, feed-forward."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.errors import InvalidArgument, raise_problems
from regard.nn.attention import MultiHeadAttention
from regard.nn.cache import DecoderCache, LayerCache
from regard.nn.encoder import final_norm, stack_objections, width_objections
from regard.nn.feed_forward import FeedForward
from regard.nn.residual import NormOrder, Residual
from regard.ops import AttentionOutput
from regard.ops.masks import Causal, Mask


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention, feed-forward, each in its residual connection.

    Args:
        attention: The self-attention.
        feed_forward: The feed-forward network, of the same width.
        cross_attention: The attention to the memory, of the same width.
        norm: ``"post"`` (the paper's) or ``"pre"``.
        dropout: Dropped share of what each of the three gives.

    Raises:
        InvalidArgument: If the widths differ, norm is neither or dropout no probability.

    Reference:
        Vaswani et al. 2017, section 3.1.

    Example:
        >>> import torch
        >>> attention, cross_attention = MultiHeadAttention(16, 4), MultiHeadAttention(16, 4)
        >>> layer = DecoderLayer(attention, FeedForward(16, 64), cross_attention=cross_attention)
        >>> hidden, attended, crossed = layer(torch.randn(2, 5, 16), torch.randn(2, 7, 16), mask=Causal())
        >>> hidden.shape, crossed.weights.shape
        (torch.Size([2, 5, 16]), torch.Size([2, 4, 5, 7]))
    """

    def __init__(
        self,
        attention: MultiHeadAttention,
        feed_forward: FeedForward,
        *,
        cross_attention: MultiHeadAttention,
        norm: NormOrder = "post",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        d_model = attention.d_model
        raise_problems(width_objections(d_model, feed_forward=feed_forward, cross_attention=cross_attention))
        self.attention = attention
        self.attention_residual = Residual(d_model, norm=norm, dropout=dropout)
        self.cross_attention = cross_attention
        self.cross_attention_residual = Residual(d_model, norm=norm, dropout=dropout)
        self.feed_forward = feed_forward
        self.feed_forward_residual = Residual(d_model, norm=norm, dropout=dropout)

    def forward(
        self,
        hidden: Float[Tensor, "rows tokens d_model"],
        memory: Float[Tensor, "sentences keys d_model"],
        *,
        mask: Mask | Bool[Tensor, "..."] | None = None,
        memory_mask: Mask | Bool[Tensor, "..."] | None = None,
        cache: LayerCache | None = None,
    ) -> tuple[Float[Tensor, "rows tokens d_model"], AttentionOutput, AttentionOutput]:
        """Map hidden to the same shape, and tell the attention to itself and to the memory.

        Args:
            hidden: (rows, tokens, d_model); with a cache only the tokens that it does not hold yet.
            memory: (sentences, keys, d_model); rows is a multiple of sentences, those of one sentence side by side.
            mask: Which tokens each token may attend to: ``Causal()`` where all are computed at once.
            memory_mask: Which keys of the memory may be attended to.
            cache: Grows by the tokens of this call; if it is shared, rows must be sentences.

        Returns:
            hidden (rows, tokens, d_model), and two AttentionOutput. Cross-attention has the rows of one sentence as
            queries of one batch element, so that keys and values of a sentence exist once, however many rows it has.
        """
        _check_rows(hidden, memory)
        attended = self.attention(
            self.attention_residual.enter(hidden), mask=mask, cache=cache.self_attention if cache else None
        )
        hidden = self.attention_residual.leave(hidden, attended.output)
        query = self.cross_attention_residual.enter(hidden)
        crossed = self.cross_attention(
            query.reshape(memory.shape[0], -1, query.shape[2]),  # (sentences, rows of each · tokens, d_model)
            memory,
            mask=memory_mask,
            cache=cache.cross_attention if cache else None,
        )
        hidden = self.cross_attention_residual.leave(hidden, crossed.output.view(query.shape))
        change = self.feed_forward(self.feed_forward_residual.enter(hidden))
        return self.feed_forward_residual.leave(hidden, change), attended, crossed


class Decoder(nn.Module):
    """Layers one after another; behind pre-norm layers stands one more norm.

    Args:
        layers: At least one, all with the same norm and width.

    Raises:
        InvalidArgument: If there is no layer, or with every layer that differs from the first.

    Example:
        >>> import torch
        >>> layer = DecoderLayer(
        ...     MultiHeadAttention(16, 4), FeedForward(16, 64), cross_attention=MultiHeadAttention(16, 4)
        ... )
        >>> hidden, attentions, crosses = Decoder([layer])(torch.randn(2, 5, 16), torch.randn(2, 7, 16))
        >>> hidden.shape, len(attentions), len(crosses)
        (torch.Size([2, 5, 16]), 1, 1)
    """

    def __init__(self, layers: Sequence[DecoderLayer]) -> None:
        super().__init__()
        raise_problems(
            stack_objections([(layer.attention.d_model, layer.attention_residual.order) for layer in layers])
        )
        self.layers = nn.ModuleList(layers)
        self.norm = final_norm(layers[0].attention_residual.order, layers[0].attention.d_model, nn.LayerNorm)

    def forward(
        self,
        hidden: Float[Tensor, "rows tokens d_model"],
        memory: Float[Tensor, "sentences keys d_model"],
        *,
        memory_mask: Mask | Bool[Tensor, "..."] | None = None,
        cache: DecoderCache | None = None,
    ) -> tuple[Float[Tensor, "rows tokens d_model"], tuple[AttentionOutput, ...], tuple[AttentionOutput, ...]]:
        """Map hidden to the same shape, and tell each layer's attention to itself and to the memory.

        Args:
            hidden: (rows, tokens, d_model); with a cache only the tokens that it does not hold yet.
            memory: (sentences, keys, d_model); rows is a multiple of sentences, those of one sentence side by side.
            memory_mask: Which keys of the memory may be attended to.
            cache: Grows by the tokens of this call.

        Returns:
            hidden (rows, tokens, d_model), and two AttentionOutput a layer. With a shared cache, self-attention too has
            the rows of one sentence as queries of one batch element, and the keys of all of them, most of them masked.
        """
        _check_rows(hidden, memory)
        shape, mask = hidden.shape, Causal()
        if cache is not None:
            rows, tokens, _ = shape
            sentences = memory.shape[0]
            mask = cache.extend(sentences, rows // sentences, tokens, hidden.device)
            if cache.shared:
                hidden = hidden.reshape(sentences, -1, shape[2])  # (sentences, rows of each · tokens, d_model)
        attentions, crosses = [], []
        layer_caches = cache.layers if cache else [None] * len(self.layers)
        for layer, layer_cache in zip(self.layers, layer_caches, strict=True):
            hidden, attended, crossed = layer(hidden, memory, mask=mask, memory_mask=memory_mask, cache=layer_cache)
            attentions.append(attended)
            crosses.append(crossed)
        return self.norm(hidden).view(shape), tuple(attentions), tuple(crosses)


def _check_rows(hidden: Tensor, memory: Tensor) -> None:
    """Check that the rows can be dealt out to the sentences of the memory."""
    rows, sentences = len(hidden), len(memory)
    if not sentences or rows % sentences:
        raise InvalidArgument(f"hidden: expected a multiple of the memory's {sentences} sentences as rows, got {rows}")
