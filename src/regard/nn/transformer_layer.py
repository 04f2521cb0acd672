"""Transformer layers: attention and feed-forward networks in residual connections, and stacks of such layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.checks import Checks, describe
from regard.errors import InvalidType, short_repr
from regard.nn.cache import DecoderCache, LayerCache
from regard.nn.dropout import Dropout
from regard.nn.feed_forward import Activation, FeedForward
from regard.nn.from_torch import State, TorchLayer, layer_options, with_weights
from regard.nn.multi_head_attention import MultiHeadAttention
from regard.ops import AttentionOutput
from regard.ops.masks import Causal, Mask, as_mask

NormLayer = Callable[[int], nn.Module]
"""Makes a norm of a size: ``nn.LayerNorm``, ``nn.RMSNorm``, or one of these with another ``eps``."""


class Residual(nn.Module):
    """Residual connection with norm and dropout around a sublayer f.

    Post-norm is norm(x + dropout(f(x))), as in the paper; pre-norm is x + dropout(f(norm(x))), which trains deep stacks
    without warm-up. Call `pre_norm`, run the sublayer, then call `add_and_norm`: attention returns more than a tensor.

    Args:
        d_model: Size of the hidden states.
        norm_first: Whether the norm comes before the sublayer.
        dropout: Dropout rate for the output of the sublayer.
        norm_layer: Makes the norm. Default: ``nn.LayerNorm``.

    Raises:
        InvalidType: If norm_first is not a bool or dropout is not a number.
        InvalidArgument: If dropout is not in [0, 1).

    Reference: Vaswani et al. 2017, sections 3.1 and 5.4 (post-norm); Xiong et al. 2020, "On Layer Normalization in the
    Transformer Architecture" (pre-norm).

    Examples:
        >>> import torch
        >>> residual, x = Residual(8), torch.ones(2, 5, 8)
        >>> residual.add_and_norm(x, torch.tanh(residual.pre_norm(x))).shape
        torch.Size([2, 5, 8])
    """

    def __init__(
        self, d_model: int, *, norm_first: bool = False, dropout: float = 0.0, norm_layer: NormLayer = nn.LayerNorm
    ) -> None:
        super().__init__()
        if not isinstance(norm_first, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidType(f"norm_first: expected True or False, got {short_repr(norm_first)}")
        self.norm_first = norm_first
        self.norm = norm_layer(d_model)
        self.dropout = Dropout(dropout)

    def pre_norm(self, x: Float[Tensor, "*axes d_model"]) -> Float[Tensor, "*axes d_model"]:
        """The input of the sublayer."""
        return self.norm(x) if self.norm_first else x

    def add_and_norm(
        self, x: Float[Tensor, "*axes d_model"], output: Float[Tensor, "*axes d_model"]
    ) -> Float[Tensor, "*axes d_model"]:
        """Add the output of the sublayer to its input."""
        total = x + self.dropout(output)
        return total if self.norm_first else self.norm(total)


class TransformerLayer(nn.Module):
    """Self-attention, cross-attention if there is one, and a feed-forward network, each in a residual connection.

    Args:
        self_attention: The self-attention.
        feed_forward: The feed-forward network, of the same size.
        cross_attention: The attention to the memory, of the same size. Default: none, as in an encoder or a GPT.
        norm_first: Whether norms come before the sublayers (pre-norm) or after (post-norm, as in the paper).
        dropout: Dropout rate for the output of each sublayer.
        norm_layer: Makes the norms. Default: ``nn.LayerNorm``.

    Raises:
        InvalidType: If norm_first is not a bool or dropout is not a number.
        InvalidArgument: If the sizes differ, or dropout is not in [0, 1).

    Reference: Vaswani et al. 2017, section 3.1.

    Examples:
        >>> import torch
        >>> from regard.nn import FeedForward, MultiHeadAttention
        >>> attention, cross_attention = MultiHeadAttention(16, 4), MultiHeadAttention(16, 4)
        >>> layer = TransformerLayer(attention, FeedForward(16, 64), cross_attention=cross_attention)
        >>> hidden, attended, cross = layer(torch.randn(2, 5, 16), torch.randn(2, 7, 16), mask=Causal())
        >>> hidden.shape, attended.weights.shape, cross.weights.shape
        (torch.Size([2, 5, 16]), torch.Size([2, 4, 5, 5]), torch.Size([2, 4, 5, 7]))
    """

    def __init__(
        self,
        self_attention: MultiHeadAttention,
        feed_forward: FeedForward,
        *,
        cross_attention: MultiHeadAttention | None = None,
        norm_first: bool = False,
        dropout: float = 0.0,
        norm_layer: NormLayer = nn.LayerNorm,
    ) -> None:
        super().__init__()
        d_model = self_attention.d_model
        with Checks() as checks:
            for name, part in (("feed_forward", feed_forward), ("cross_attention", cross_attention)):
                if part is not None and part.d_model != d_model:
                    checks.fail(f"{name}: expected d_model={d_model}, as self_attention has, got {part.d_model}")
        residual = partial(Residual, d_model, norm_first=norm_first, dropout=dropout, norm_layer=norm_layer)
        self.self_attention, self.self_attention_residual = self_attention, residual()
        self.cross_attention = cross_attention
        if cross_attention is not None:
            self.cross_attention_residual = residual()
        self.feed_forward, self.feed_forward_residual = feed_forward, residual()

    @classmethod
    def from_torch(
        cls,
        source: TorchLayer | State,
        *,
        num_heads: int | None = None,
        dropout: float | None = None,
        activation: Activation | None = None,
        norm_first: bool | None = None,
        layer_norm_eps: float | None = None,
    ) -> Self:
        """Make the layer that equals an ``nn.TransformerEncoderLayer`` or an ``nn.TransformerDecoderLayer``.

        Weights are copied as in `MultiHeadAttention.from_torch`, and the same holds for calls; torch's ``src_mask`` or
        ``tgt_mask`` is ``attn_mask``, its ``memory_mask`` is ``memory_attn_mask``.

        Args:
            source: The layer, with ``batch_first=True``, or its state dict.
            num_heads: For a state dict: the number of heads. With a layer, this and the other options are None.
            dropout: For a state dict: the dropout rate of the whole layer. Default: 0.
            activation: For a state dict: the activation, by Regard's name. Default: ``"relu"``.
            norm_first: For a state dict: whether norms come before the sublayers. Default: False.
            layer_norm_eps: For a state dict: added to the variance by the norms. Default: 1e-5.

        Raises:
            InvalidType: If source is neither, or a part or a method of the layer has been replaced.
            InvalidArgument: If the layer has an option that this one lacks (``batch_first=False``, an activation that
                is not in `FeedForward`, different dropout rates), or a parameter of the state dict is missing, unknown
                or has a wrong shape.

        Examples:
            >>> import torch
            >>> torch_layer = torch.nn.TransformerEncoderLayer(16, 4, 64, batch_first=True).eval()
            >>> x = torch.randn(2, 5, 16)
            >>> padding = torch.arange(5) >= torch.tensor([[5], [3]])
            >>> hidden, attention, _ = TransformerLayer.from_torch(torch_layer)(x, key_padding_mask=padding)
            >>> torch.allclose(hidden[0], torch_layer(x)[0], atol=1e-5)
            True
        """
        given = {"num_heads": num_heads, "dropout": dropout, "activation": activation}
        parts, state = layer_options(source, **given, norm_first=norm_first, layer_norm_eps=layer_norm_eps)

        def make() -> Self:
            cross_attention = None if parts.cross_attention is None else MultiHeadAttention(**parts.cross_attention)
            attention, feed_forward = MultiHeadAttention(**parts.self_attention), FeedForward(**parts.feed_forward)
            return cls(attention, feed_forward, cross_attention=cross_attention, **parts.options)

        layer = with_weights(make, state, parts.names)
        return layer.train(source.training) if isinstance(source, nn.Module) else layer

    def forward(
        self,
        hidden: Float[Tensor, "rows tokens d_model"],
        memory: Float[Tensor, "sentences keys d_model"] | None = None,
        *,
        mask: Mask | Bool[Tensor, "..."] | None = None,
        memory_mask: Mask | Bool[Tensor, "..."] | None = None,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        memory_attn_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> tuple[Float[Tensor, "rows tokens d_model"], AttentionOutput, AttentionOutput | None]:
        """Compute the layer.

        Args:
            hidden: (rows, tokens, d_model); with a cache only the tokens that it does not hold yet.
            memory: (sentences, keys, d_model), for cross-attention. The number of rows is a multiple of the number of
                sentences; rows of one sentence are adjacent.
            mask: Which tokens each token may attend to: True where it may.
            memory_mask: Which keys of the memory may be attended to: True where they may.
            attn_mask: As in `MultiHeadAttention.forward`, where True forbids; torch's ``src_mask`` or ``tgt_mask``.
            key_padding_mask: As there; torch's ``src_key_padding_mask`` or ``tgt_key_padding_mask``.
            memory_attn_mask: The same for the memory; torch's ``memory_mask``.
            memory_key_padding_mask: The same for the memory; torch's ``memory_key_padding_mask``.
            cache: Grows by the tokens of this call; if it is shared, there is one row for each sentence.

        Returns:
            The hidden states (rows, tokens, d_model), the self-attention, and the cross-attention or None, in which the
            rows of a sentence are queries of one batch entry, so its keys and values exist once.

        Raises:
            InvalidArgument: If there is a memory and no cross-attention, or the reverse, or the rows cannot be divided
                among the sentences, or a mask has a wrong shape.
        """
        check_memory(hidden, memory, needs_memory=self.cross_attention is not None)
        attention = self.self_attention(
            self.self_attention_residual.pre_norm(hidden),
            mask=mask,
            attn_mask=attn_mask,
            key_padding_mask=key_padding_mask,
            cache=cache.self_attention if cache else None,
        )
        hidden = self.self_attention_residual.add_and_norm(hidden, attention.output)
        cross_attention = None
        if self.cross_attention is not None and memory is not None:
            query = self.cross_attention_residual.pre_norm(hidden)
            cross_attention = self.cross_attention(
                query.reshape(memory.shape[0], -1, query.shape[2]),  # (sentences, rows of each · tokens, d_model)
                memory,
                mask=memory_mask,
                attn_mask=memory_attn_mask,
                key_padding_mask=memory_key_padding_mask,
                cache=cache.cross_attention if cache else None,
            )
            hidden = self.cross_attention_residual.add_and_norm(hidden, cross_attention.output.view(query.shape))
        output = self.feed_forward(self.feed_forward_residual.pre_norm(hidden))
        return self.feed_forward_residual.add_and_norm(hidden, output), attention, cross_attention


class StackOutput(NamedTuple):
    """The hidden states (rows, tokens, d_model), and the self- and cross-attention of each layer, if requested."""

    hidden: Tensor
    attentions: tuple[AttentionOutput, ...]
    cross_attentions: tuple[AttentionOutput, ...]


class TransformerStack(nn.Module):
    """Layers one after another; after pre-norm layers comes one more norm.

    With ``activation_checkpointing = True``, training stores only the inputs of each layer, and computes it again for
    its gradients, with the same dropout.

    Args:
        layers: At least one, all of the same size and with the same norm order.
        causal: Whether tokens attend only to themselves and to earlier ones, as in a decoder.
        norm_layer: Makes the last norm. Default: ``nn.LayerNorm``.

    Raises:
        InvalidArgument: If there is no layer, or layers differ.

    Examples:
        >>> import torch
        >>> from regard.nn import FeedForward, MultiHeadAttention
        >>> layers = [TransformerLayer(MultiHeadAttention(16, 4), FeedForward(16, 64)) for _ in range(2)]
        >>> output = TransformerStack(layers, causal=True)(torch.randn(2, 5, 16), output_attentions=True)
        >>> output.hidden.shape, len(output.attentions), len(output.cross_attentions)
        (torch.Size([2, 5, 16]), 2, 0)
    """

    def __init__(
        self, layers: Sequence[TransformerLayer], *, causal: bool = False, norm_layer: NormLayer = nn.LayerNorm
    ) -> None:
        super().__init__()
        kinds = [(layer.self_attention.d_model, layer.self_attention_residual.norm_first) for layer in layers]
        with Checks() as checks:
            checks.that(len(kinds) > 0, "layers: expected at least one layer, got none")
            for number, (d_model, norm_first) in enumerate(kinds):
                if (d_model, norm_first) != kinds[0]:
                    first = f"d_model={kinds[0][0]} and norm_first={kinds[0][1]}, as layers[0] has"
                    checks.fail(f"layers[{number}]: expected {first}, got {d_model} and {norm_first}")
        self.layers = nn.ModuleList(layers)
        self.causal = causal
        self.activation_checkpointing = False
        d_model, norm_first = kinds[0]
        self.norm = norm_layer(d_model) if norm_first else nn.Identity()

    def forward(
        self,
        hidden: Float[Tensor, "rows tokens d_model"],
        memory: Float[Tensor, "sentences keys d_model"] | None = None,
        *,
        mask: Mask | Bool[Tensor, "..."] | None = None,
        memory_mask: Mask | Bool[Tensor, "..."] | None = None,
        cache: DecoderCache | None = None,
        output_attentions: bool = False,
    ) -> StackOutput:
        """Compute all layers.

        Args:
            hidden: (rows, tokens, d_model); with a cache only the tokens that it does not hold yet.
            memory: As in `TransformerLayer`.
            mask: Which tokens each token may attend to; a causal stack adds its own mask.
            memory_mask: Which keys of the memory may be attended to.
            cache: For a causal stack; it grows by the tokens of this call. With a shared cache, self-attention has the
                rows of a sentence as queries of one batch entry, with the keys of all of them, most of them masked.
            output_attentions: Whether to return the attention of each layer, which keeps its queries, keys and values
                in memory until the caller drops it. Default: no.

        Raises:
            InvalidArgument: As `TransformerLayer`.
        """
        shape = hidden.shape
        check_memory(hidden, memory, needs_memory=isinstance(self.layers[0].cross_attention, nn.Module))
        if self.causal:
            rule: Mask | Tensor | None = Causal()
            if cache is not None:
                sentences = shape[0] if memory is None else memory.shape[0]
                rule = cache.advance(sentences, shape[0] // sentences, shape[1], hidden.device)
                if cache.shares_beams:
                    hidden = hidden.reshape(sentences, -1, shape[2])  # (sentences, rows of each · tokens, d_model)
            if rule is not None:
                mask = rule if mask is None else as_mask(rule) & as_mask(mask)
        attentions: list[AttentionOutput] = []
        cross_attentions: list[AttentionOutput] = []
        is_checkpointed = self.activation_checkpointing and torch.is_grad_enabled()
        layer_caches = [None] * len(self.layers) if cache is None else cache.layers
        for layer, layer_cache in zip(self.layers, layer_caches, strict=True):
            call = partial(checkpoint, layer, use_reentrant=False) if is_checkpointed else layer
            hidden, attention, cross_attention = call(
                hidden, memory, mask=mask, memory_mask=memory_mask, cache=layer_cache
            )
            if output_attentions:
                attentions.append(attention)
                cross_attentions += [] if cross_attention is None else [cross_attention]
        return StackOutput(self.norm(hidden).view(shape), tuple(attentions), tuple(cross_attentions))


def check_memory(hidden: Tensor, memory: Tensor | None, *, needs_memory: bool) -> None:
    """Check that there is a memory for cross-attention, and that the rows can be divided among its sentences."""
    with Checks() as checks:
        if memory is None:
            checks.that(not needs_memory, "memory: expected a tensor for cross-attention, got None")
        elif not needs_memory:
            checks.fail(f"memory: expected None without cross-attention, got {describe(memory)}")
        elif not len(memory) or len(hidden) % len(memory):
            checks.fail(f"hidden: expected a multiple of {len(memory)} rows, the memory's batch, got {len(hidden)}")
