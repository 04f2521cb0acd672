"""The Transformer of Vaswani et al. 2017: encoder, decoder, and a linear map to words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from regard.errors import InvalidType, refuse
from regard.models.config import field_objections, size_objections, two_sided_objections
from regard.models.inputs import length_objections, memory_objections, type_objections, word_objections
from regard.models.positions import (
    IN_ATTENTION,
    Positions,
    embedding_positions,
    position_objections,
)
from regard.models.stacks import make_decoder, make_encoder
from regard.nn.attention import MultiHeadAttention, head_objections
from regard.nn.attention_positions import BucketPositions, RelativePositions
from regard.nn.cache import DecoderCache
from regard.nn.dropout import Dropout, dropout_objections
from regard.nn.feed_forward import Activation, choice_objections
from regard.nn.positions import LearnedPositions
from regard.nn.residual import NormOrder
from regard.ops import Attended, Padding

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

    vocab_size: int
    tgt_vocab_size: int | None = None
    d_model: int = 512
    num_heads: int = 8
    num_kv_heads: int | None = None
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    d_ff: int = 2048
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    activation: Activation = "relu"
    norm: NormOrder = "post"
    positions: Positions = "sinusoidal"
    max_distance: int | None = None
    max_length: int = 1024
    tie_embeddings: Tying = "all"
    scale_embeddings: bool = True
    interleaved_sinusoids: bool = True
    output_bias: bool = False
    pad_id: int = 0
    bos_id: int = 1
    eos_id: int = 2

    def __post_init__(self) -> None:
        refuse(field_objections(self))
        sizes = ("vocab_size", "tgt_vocab_size", "num_encoder_layers", "num_decoder_layers", "d_model", "d_ff")
        objections = size_objections(self, *sizes, "max_length")
        kv_heads = self.num_heads if self.num_kv_heads is None else self.num_kv_heads
        heads = head_objections(self.d_model, self.num_heads, kv_heads)
        objections += [objection for objection in heads if objection not in objections]
        objections += dropout_objections(
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            activation_dropout=self.activation_dropout,
        )
        objections += choice_objections("activation", self.activation, get_args(Activation))
        objections += choice_objections("norm", self.norm, get_args(NormOrder))
        objections += choice_objections("tie_embeddings", self.tie_embeddings, get_args(Tying))
        if not objections:
            head_dim = self.d_model // self.num_heads
            objections += position_objections(
                self.positions, d_model=self.d_model, head_dim=head_dim, max_distance=self.max_distance
            )
        refuse(objections + two_sided_objections(self))

    @property
    def target_vocab_size(self) -> int:
        """Number of words of the target."""
        return self.vocab_size if self.tgt_vocab_size is None else self.tgt_vocab_size

    def attention_sizes(self, kind: str) -> tuple[int, int]:
        """The number of layers of one kind of attention, ``"encoder"``, ``"decoder"`` or ``"cross"``, and of heads."""
        return self.num_encoder_layers if kind == "encoder" else self.num_decoder_layers, self.num_heads


class Attentions(NamedTuple):
    """What each layer of a Transformer attended to: one :class:`~regard.ops.Attended` a layer."""

    encoder: tuple[Attended, ...]
    decoder: tuple[Attended, ...]
    cross: tuple[Attended, ...]


class TransformerOutput(NamedTuple):
    """What a Transformer gives."""

    logits: Tensor
    """(batch, target, vocab)"""
    attentions: Attentions | None
    """Views of the weights of all layers, if they were asked for."""


class Transformer(nn.Module):
    """Encoder-decoder Transformer for translating one sequence of words into another.

    All sequences are filled up on the right. ``src_lengths`` says how many words of each source are real; the target
    needs no mask, since the decoder is causal and what stands behind a sequence's end cannot be seen from within it.

    Embeddings are drawn from N(0, 1 / d_model) and multiplied by √d_model when they are read (the row of ``pad_id``
    starts at 0); all other matrices from Xavier's uniform distribution, each of query, key and value on its own; biases
    start at 0. This is how tensor2tensor, the paper's own code, begins.

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
        super().__init__()
        self.config = config
        self.src_embedding = nn.Embedding(config.vocab_size, config.d_model, padding_idx=config.pad_id)
        tied = config.tie_embeddings == "all"
        self.tgt_embedding = (
            self.src_embedding
            if tied
            else nn.Embedding(config.target_vocab_size, config.d_model, padding_idx=config.pad_id)
        )
        self.src_positions, self.tgt_positions = (
            embedding_positions(
                config.positions, config.d_model, config.max_length, interleaved=config.interleaved_sinusoids
            )
            for _ in range(2)
        )
        self.dropout = Dropout(config.dropout)
        self.encoder = make_encoder(config)
        self.decoder = make_decoder(config)
        self.to_words = nn.Linear(config.d_model, config.target_vocab_size, bias=config.output_bias)
        if config.tie_embeddings != "none":
            self.to_words.weight = self.tgt_embedding.weight
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
        for module in self.modules():  # after the linear maps, with which these share weights
            if isinstance(module, (MultiHeadAttention, RelativePositions, BucketPositions)):
                module.reset_parameters()
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=self.config.d_model**-0.5)
                with torch.no_grad():
                    module.weight[self.config.pad_id] = 0
            elif isinstance(module, LearnedPositions):
                nn.init.normal_(module.table, std=self.config.d_model**-0.5)

    def encode(self, src: Tensor, src_lengths: Tensor | None = None) -> Tensor:
        """Map source words to the memory that the decoder attends to.

        Args:
            src: (batch, source), integers.
            src_lengths: (batch,), number of real words of each source. Default: all are real.

        Returns:
            (batch, source, d_model)

        Raises:
            InvalidArgument: If shapes, dtypes or words do not fit.
            InvalidType: If an argument is no tensor.
        """
        return self._encode(src, src_lengths)[0]

    def decode(
        self, tgt: Tensor, memory: Tensor, src_lengths: Tensor | None = None, *, cache: DecoderCache | None = None
    ) -> Tensor:
        """Map target words, each seeing those before it and the memory, to hidden states.

        Args:
            tgt: (rows, target), integers; with a cache only the words that it does not hold yet.
            memory: (sentences, source, d_model); rows is a multiple of sentences, those of one sentence side by side.
            src_lengths: (sentences,), as for :meth:`encode`.
            cache: As from :meth:`new_cache`; grows by the words of this call.

        Returns:
            (rows, target, d_model)

        Raises:
            InvalidArgument: If shapes, dtypes or words do not fit.
            InvalidType: If an argument is no tensor.
        """
        return self._decode(tgt, memory, src_lengths, cache)[0]

    def project(self, hidden: Tensor) -> Tensor:
        """Map hidden states (..., d_model) to logits (..., vocab)."""
        return self.to_words(hidden)

    def hidden(self, src: Tensor, tgt: Tensor, src_lengths: Tensor | None = None) -> Tensor:
        """What :meth:`forward` maps to logits, (batch, target, d_model): for a loss that does without them.

        Arguments and errors are those of :meth:`forward`.
        """
        return self.states(src, tgt, src_lengths)[0]

    def states(self, src: Tensor, tgt: Tensor, src_lengths: Tensor | None = None) -> tuple[Tensor, Attentions]:
        """What :meth:`hidden` gives, and views of the weights of all layers: for losses on both.

        Arguments and errors are those of :meth:`forward`.
        """
        memory, encoder = self._encode(src, src_lengths)
        hidden, decoder, cross = self._decode(tgt, memory, src_lengths, None)
        return hidden, Attentions(encoder, decoder, cross)

    def forward(
        self, src: Tensor, tgt: Tensor, src_lengths: Tensor | None = None, *, attentions: bool = False
    ) -> TransformerOutput:
        """Tell for every place of the target what word comes next.

        Args:
            src: (batch, source), integers.
            tgt: (batch, target), integers; the first is bos_id.
            src_lengths: (batch,), number of real words of each source. Default: all are real.
            attentions: Whether to give views of the attention weights.

        Returns:
            TransformerOutput: ``logits`` (batch, target, vocab), ``attentions`` if asked for.

        Raises:
            InvalidArgument: If shapes, dtypes or words do not fit.
            InvalidType: If an argument is no tensor.
        """
        hidden, found = self.states(src, tgt, src_lengths)
        return TransformerOutput(self.project(hidden), found if attentions else None)

    def new_cache(self) -> DecoderCache:
        """An empty cache for :meth:`decode`."""
        return DecoderCache(self.config.num_decoder_layers, shared=self.config.positions not in IN_ATTENTION)

    def _encode(self, src: Tensor, src_lengths: Tensor | None) -> tuple[Tensor, tuple[Attended, ...]]:
        refuse(type_objections("src", src) + type_objections("src_lengths", src_lengths, optional=True), InvalidType)
        refuse(word_objections("src", src, self.config.vocab_size) + length_objections(src_lengths, src.shape))
        embedded = self._embed(src, self.src_embedding, self.src_positions, 0)
        return self.encoder(embedded, mask=None if src_lengths is None else Padding(src_lengths))

    def _decode(
        self, tgt: Tensor, memory: Tensor, src_lengths: Tensor | None, cache: DecoderCache | None
    ) -> tuple[Tensor, tuple[Attended, ...], tuple[Attended, ...]]:
        types = type_objections("tgt", tgt) + type_objections("memory", memory)
        refuse(types + type_objections("src_lengths", src_lengths, optional=True), InvalidType)
        words = word_objections("tgt", tgt, self.config.target_vocab_size)
        refuse(words + memory_objections(tgt, memory, self.config.d_model, src_lengths))
        embedded = self._embed(tgt, self.tgt_embedding, self.tgt_positions, cache.length if cache else 0)
        memory_mask = None if src_lengths is None else Padding(src_lengths)
        return self.decoder(embedded, memory, memory_mask=memory_mask, cache=cache)

    def _embed(self, words: Tensor, embedding: nn.Embedding, positions: nn.Module, offset: int) -> Tensor:
        """(batch, tokens) → (batch, tokens, d_model), under autocast in its dtype, as all that follows."""
        embedded = embedding(words)
        if self.config.scale_embeddings:
            embedded = embedded * math.sqrt(self.config.d_model)
        embedded = positions(embedded, offset)
        if torch.is_autocast_enabled(words.device.type):
            embedded = embedded.to(torch.get_autocast_dtype(words.device.type))
        return self.dropout(embedded)
