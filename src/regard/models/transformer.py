"""The Transformer of Vaswani et al. 2017, for translation."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Any

from pydantic import StrictBool
from torch import Tensor, nn

from regard.models.config import Size, TokenId, TransformerLayerConfig, check_config
from regard.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig, Tying
from regard.models.layers import build_stack, embedding_positions, reset_positions, to_autocast_dtype
from regard.nn.cache import DecoderCache, SharedBeamCache
from regard.nn.feed_forward import FeedForward
from regard.nn.multi_head_attention import MultiHeadAttention
from regard.nn.positions import Positions
from regard.nn.relative_positions import AttentionPositions
from regard.ops import AttentionOutput
from regard.ops.masks import Padding
from regard.validation import config_class


@config_class
class TransformerConfig(TransformerLayerConfig, EncoderDecoderConfig):
    """Configuration of a `Transformer`; the defaults are the base model of the paper.

    The fields of `regard.models.TransformerLayerConfig`, and:

    Args:
        vocab_size: Size of the source vocabulary, or of the vocabulary of both sides.
        tgt_vocab_size: Size of the target vocabulary. Default: vocab_size.
        num_encoder_layers: Number of encoder layers.
        num_decoder_layers: Number of decoder layers.
        max_seq_len: Longest sequence; the number of learned positions.
        tie_embeddings: Which weights are shared. ``"all"``: those of both token embeddings and ``lm_head``;
            ``"decoder"``: those of the target's token embedding and ``lm_head``; ``"none"``.
        scale_embeddings: Whether token embeddings are multiplied by √d_model.
        interleaved_sinusoids: Whether sines and cosines alternate in sinusoidal positions (the paper), or all sines
            come before all cosines (Marian).
        output_bias: Whether ``lm_head`` has a bias.
        pad_id: Padding token id.
        bos_id: First token id of the decoder's input; may be pad_id.
        eos_id: Token id that ends a sequence.

    Raises:
        InvalidArgument: With every field that is out of bounds, unknown or inconsistent.

    Examples:
        >>> TransformerConfig(8000, d_model=256, num_heads=4).num_encoder_layers
        6
    """

    vocab_size: Size = field(kw_only=False)
    tgt_vocab_size: Size | None = None
    num_encoder_layers: Size = 6
    num_decoder_layers: Size = 6
    max_seq_len: Size = 1024
    tie_embeddings: Tying = "all"
    scale_embeddings: StrictBool = True
    interleaved_sinusoids: StrictBool = True
    output_bias: StrictBool = False
    pad_id: TokenId = 0
    bos_id: TokenId = 1
    eos_id: TokenId = 2

    def num_layers_and_heads(self, kind: str) -> tuple[int, int]:
        """Number of layers, and of heads, of ``"encoder"``, ``"decoder"`` or ``"cross"`` attention."""
        return self.num_encoder_layers if kind == "encoder" else self.num_decoder_layers, self.num_heads


class Transformer(EncoderDecoder):
    """Encoder-decoder Transformer.

    Token embeddings start from N(0, 1 / d_model) and are multiplied by √d_model in the forward pass (the row of
    ``pad_id`` starts at 0). Feed-forward networks start as ``nn.Linear`` does, all other matrices from Xavier's uniform
    distribution, with query, key and value as one matrix; their biases start at 0. This is fairseq's initialization.

    Args:
        config: The configuration.

    Reference:
        Vaswani et al. 2017, "Attention is all you need"; Press and Wolf 2017, "Using the output embedding to improve
        language models" (tied embeddings).

    Examples:
        >>> import torch
        >>> model = Transformer(TransformerConfig(100, d_model=16, num_heads=4, d_ff=32)).eval()
        >>> src, tgt = torch.randint(3, 100, (2, 7)), torch.randint(3, 100, (2, 5))
        >>> output = model(src, tgt, src_lengths=torch.tensor([7, 4]), output_attentions=True)
        >>> output.logits.shape, output.attentions.cross[0].weights.shape
        (torch.Size([2, 5, 100]), torch.Size([2, 4, 5, 7]))
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(check_config(config, TransformerConfig))
        self.src_positions = embedding_positions(config)
        self.tgt_positions = embedding_positions(config, causal=True)
        self.encoder = build_stack(config, config.num_encoder_layers)
        self.decoder = build_stack(config, config.num_decoder_layers, causal=True, cross_attention=True)
        self.lm_head = self._build_lm_head(bias=config.output_bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize all weights as the class describes."""
        for module in self.modules():
            if isinstance(module, Positions):
                reset_positions(module)
            elif isinstance(module, (MultiHeadAttention, FeedForward, nn.LayerNorm, nn.RMSNorm)):
                module.reset_parameters()
        nn.init.xavier_uniform_(self.lm_head.weight)
        if self.lm_head.bias is not None:
            nn.init.zeros_(self.lm_head.bias)
        self._reset_embeddings()  # after lm_head, which may share their weights

    @property
    def memory_dim(self) -> int:
        return self.config.d_model

    @property
    def attention_layers(self) -> dict[str, Any]:
        layers = {f"encoder.{number}": layer.self_attention for number, layer in enumerate(self.encoder.layers)}
        layers |= {f"decoder.{number}": layer.self_attention for number, layer in enumerate(self.decoder.layers)}
        return layers | {f"cross.{number}": layer.cross_attention for number, layer in enumerate(self.decoder.layers)}

    def new_cache(self) -> DecoderCache:
        """An empty cache for `decode`."""
        has_positions = any(isinstance(module, AttentionPositions) for module in self.decoder.modules())
        return (DecoderCache if has_positions else SharedBeamCache)(self.config.num_decoder_layers)

    def _encode(
        self, src: Tensor, src_lengths: Tensor | None, output_attentions: bool
    ) -> tuple[Tensor, tuple[AttentionOutput, ...]]:
        embeddings = self._embed(src, self.src_embedding, self.src_positions, 0)
        mask = None if src_lengths is None else Padding(src_lengths)
        return self.encoder(embeddings, mask=mask, output_attentions=output_attentions)[:2]

    def _decode(
        self,
        tgt: Tensor,
        memory: Tensor,
        src_lengths: Tensor | None,
        cache: DecoderCache | None,
        output_attentions: bool,
    ) -> tuple[Tensor, tuple[AttentionOutput, ...], tuple[AttentionOutput, ...]]:
        embeddings = self._embed(tgt, self.tgt_embedding, self.tgt_positions, cache.length if cache else 0)
        memory_mask = None if src_lengths is None else Padding(src_lengths)
        return self.decoder(
            embeddings, memory, memory_mask=memory_mask, cache=cache, output_attentions=output_attentions
        )

    def _embed(self, token_ids: Tensor, embedding: nn.Embedding, positions: nn.Module, offset: int) -> Tensor:
        """(batch, tokens) → (batch, tokens, d_model)."""
        embeddings = embedding(token_ids)
        if self.config.scale_embeddings:
            embeddings = embeddings * math.sqrt(self.config.d_model)
        return self.dropout(to_autocast_dtype(positions(embeddings, offset)))
