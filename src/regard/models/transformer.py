"""The Transformer of Vaswani et al. 2017: encoder, decoder, and a linear map to words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from regard.checks import Checks
from regard.models.config import Count, NormOrder, Rate, Size, TokenId, check_translator, checked, validate
from regard.models.encoder_decoder import EncoderDecoder
from regard.models.inputs import in_compute_dtype
from regard.models.positions import IN_ATTENTION, Positions, check_layers, embedding_positions
from regard.models.stacks import make_stack
from regard.nn.attention import MultiHeadAttention
from regard.nn.attention_positions import BucketPositions, RelativePositions
from regard.nn.cache import DecoderCache, SharedBeamCache
from regard.nn.feed_forward import Activation, FeedForward
from regard.nn.positions import LearnedPositions
from regard.ops import AttentionOutput
from regard.ops.masks import Padding

Tying = Literal["all", "decoder", "none"]


@dataclass(frozen=True)
class TransformerConfig:
    """What a Transformer is built from; the defaults are the base model of the paper.

    Args:
        vocab_size: Number of words of the source, or of both sides.
        tgt_vocab_size: Number of words of the target. Default: one vocabulary for both sides.
        d_model: Width of the hidden states.
        num_heads: Number of query heads.
        num_kv_heads: Number of key and value heads. Default: num_heads.
        num_encoder_layers: Number of encoder layers.
        num_decoder_layers: Number of decoder layers.
        d_ff: Width inside the feed-forward networks.
        dropout: Dropped share of embeddings and of what each sublayer gives.
        attention_dropout: Dropped share of attention weights.
        activation_dropout: Dropped share inside the feed-forward networks.
        activation: ``"relu"``, ``"gelu"``, ``"gelu_tanh"`` or ``"silu"``.
        norm: ``"post"`` (the paper's) or ``"pre"``.
        positions: Added to embeddings ``"sinusoidal"`` or ``"learned"``; in self-attention ``"relative"`` (Shaw 2018),
            ``"rotary"``, ``"alibi"`` or ``"t5"``; or ``"none"``.
        max_distance: Distances beyond count as this one, for relative and t5. Default: 16 and 128.
        max_length: Number of learned positions; the longest sequence that generation makes.
        tie_embeddings: ``"all"``: one matrix for both embeddings and the final linear map; ``"decoder"``: one for the
            target embedding and the final map; ``"none"``.
        scale_embeddings: Whether embeddings are multiplied by √d_model when they are read.
        interleaved_sinusoids: False puts all sines before all cosines in sinusoidal positions, as Marian does.
        output_bias: Whether the final linear map adds a bias.
        pad_id: The word that fills up sequences.
        bos_id: The word that the decoder reads first; may be pad_id.
        eos_id: The word that ends a sequence.

    Raises:
        InvalidArgument: With everything that does not fit.

    Example:
        >>> TransformerConfig(8000, d_model=256, num_heads=4).num_encoder_layers
        6
    """

    vocab_size: Size
    tgt_vocab_size: Size | None = None
    d_model: Size = 512
    num_heads: Size = 8
    num_kv_heads: Size | None = None
    num_encoder_layers: Size = 6
    num_decoder_layers: Size = 6
    d_ff: Size = 2048
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.0
    activation_dropout: Rate = 0.0
    activation: Activation = "relu"
    norm: NormOrder = "post"
    positions: Positions = "sinusoidal"
    max_distance: Count | None = None
    max_length: Size = 1024
    tie_embeddings: Tying = "all"
    scale_embeddings: bool = True
    interleaved_sinusoids: bool = True
    output_bias: bool = False
    pad_id: TokenId = 0
    bos_id: TokenId = 1
    eos_id: TokenId = 2

    def __post_init__(self) -> None:
        with Checks() as checks:
            if validate(self, checks):
                check_translator(checks, self)
            check_layers(checks, self, self.num_kv_heads)

    @property
    def target_vocab_size(self) -> int:
        """Number of words of the target."""
        return self.vocab_size if self.tgt_vocab_size is None else self.tgt_vocab_size

    def attention_sizes(self, kind: str) -> tuple[int, int]:
        """The number of layers of one kind of attention, ``"encoder"``, ``"decoder"`` or ``"cross"``, and of heads."""
        return self.num_encoder_layers if kind == "encoder" else self.num_decoder_layers, self.num_heads


class Transformer(EncoderDecoder):
    """Encoder-decoder Transformer for translating one sequence of words into another.

    Embeddings are drawn from N(0, 1 / d_model) and multiplied by √d_model when they are read (the row of ``pad_id``
    starts at 0); feed-forward networks as ``nn.Linear`` draws them, which is smaller than Xavier; all other matrices
    from Xavier's uniform distribution, query, key and value as one; their biases start at 0. So begins fairseq, whose
    results with a norm behind each sublayer are among the best known.

    Args:
        config: Sizes and rates.

    Reference:
        Vaswani et al. 2017, "Attention is all you need"; Press and Wolf 2017, "Using the output embedding to improve
        language models" (tied embeddings).

    Example:
        >>> import torch
        >>> model = Transformer(TransformerConfig(100, d_model=16, num_heads=4, d_ff=32)).eval()
        >>> src, tgt = torch.randint(3, 100, (2, 7)), torch.randint(3, 100, (2, 5))
        >>> output = model(src, tgt, src_lengths=torch.tensor([7, 4]), attentions=True)
        >>> output.logits.shape, output.attentions.cross[0].weights.shape
        (torch.Size([2, 5, 100]), torch.Size([2, 4, 5, 7]))
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(checked(config, TransformerConfig))
        self.src_positions, self.tgt_positions = (
            embedding_positions(
                config.positions, config.d_model, config.max_length, interleaved=config.interleaved_sinusoids
            )
            for _ in range(2)
        )
        self.encoder = make_stack(config, config.num_encoder_layers, causal=False)
        self.decoder = make_stack(config, config.num_decoder_layers, causal=True, cross_attention=True)
        self.to_words = self._make_to_words(bias=config.output_bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights anew, as the class describes."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.LayerNorm):
                module.reset_parameters()
        for module in self.modules():
            if isinstance(module, FeedForward):
                module.reset_parameters()
        self._reset_embeddings()  # after the linear maps, as do all that share weights with these
        for module in self.modules():
            if isinstance(module, (MultiHeadAttention, RelativePositions, BucketPositions)):
                module.reset_parameters()
            elif isinstance(module, LearnedPositions):
                nn.init.normal_(module.table, std=self.config.d_model**-0.5)

    @property
    def memory_width(self) -> int:
        return self.config.d_model

    @property
    def attention_layers(self) -> dict[str, Any]:
        encoders, decoders = self.encoder.layers, self.decoder.layers
        layers = {f"encoder.{number}": layer.attention for number, layer in enumerate(encoders)}
        layers |= {f"decoder.{number}": layer.attention for number, layer in enumerate(decoders)}
        return layers | {f"cross.{number}": layer.cross_attention for number, layer in enumerate(decoders)}

    def new_cache(self) -> DecoderCache:
        """An empty cache for :meth:`decode`."""
        kind = DecoderCache if self.config.positions in IN_ATTENTION else SharedBeamCache
        return kind(self.config.num_decoder_layers)

    def _encode(self, src: Tensor, src_lengths: Tensor | None) -> tuple[Tensor, tuple[AttentionOutput, ...]]:
        embedded = self._embed(src, self.src_embedding, self.src_positions, 0)
        return self.encoder(embedded, mask=None if src_lengths is None else Padding(src_lengths))[:2]

    def _decode(
        self, tgt: Tensor, memory: Tensor, src_lengths: Tensor | None, cache: DecoderCache | None
    ) -> tuple[Tensor, tuple[AttentionOutput, ...], tuple[AttentionOutput, ...]]:
        embedded = self._embed(tgt, self.tgt_embedding, self.tgt_positions, cache.length if cache else 0)
        memory_mask = None if src_lengths is None else Padding(src_lengths)
        return self.decoder(embedded, memory, memory_mask=memory_mask, cache=cache)

    def _embed(self, words: Tensor, embedding: nn.Embedding, positions: nn.Module, offset: int) -> Tensor:
        """(batch, tokens) → (batch, tokens, d_model)."""
        embedded = embedding(words)
        if self.config.scale_embeddings:
            embedded = embedded * math.sqrt(self.config.d_model)
        return self.dropout(in_compute_dtype(positions(embedded, offset)))
