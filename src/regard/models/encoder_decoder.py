"""The base class of translators: an encoder reads the source, a decoder predicts the target and attends to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from regard.checks import Checks
from regard.models.config import check_below
from regard.models.inputs import check_ids, check_lengths
from regard.models.layers import LMHead
from regard.nn.cache import Cache
from regard.nn.dropout import Dropout
from regard.nn.linear_cross_entropy import TokenLoss
from regard.ops import AttentionOutput
from regard.validation import Config

Tying = Literal["all", "decoder", "none"]


class EncoderDecoderConfig(Config):
    """Base class for the configurations of translators, which have a vocabulary for each side."""

    vocab_size: int
    tgt_vocab_size: int | None
    d_model: int
    dropout: float
    tie_embeddings: Tying
    pad_id: int
    bos_id: int
    eos_id: int

    @property
    def decoder_vocab_size(self) -> int:
        """Size of the target vocabulary."""
        return self.vocab_size if self.tgt_vocab_size is None else self.tgt_vocab_size

    def check(self, checks: Checks) -> None:
        """Check that embeddings can be tied as the configuration says, and that special token ids fit both sides."""
        super().check(checks)
        source, target = self.vocab_size, self.decoder_vocab_size
        if self.tie_embeddings == "all" and source != target:
            sizes = f"vocab_size={source} and tgt_vocab_size={target}"
            checks.fail(
                f"tie_embeddings: expected 'decoder' or 'none' for {sizes}, got 'all', which needs one vocabulary"
            )
        name = "vocab_size" if source <= target else "tgt_vocab_size"
        check_below(checks, name, min(source, target), pad_id=self.pad_id, bos_id=self.bos_id, eos_id=self.eos_id)
        if self.eos_id in (self.pad_id, self.bos_id):
            others = f"pad_id={self.pad_id} and bos_id={self.bos_id}"
            checks.fail(f"eos_id: expected another id than {others}, got {self.eos_id}")


class Attentions(NamedTuple):
    """The attention of each layer of a translator, by kind; empty for a kind that the model does not have."""

    encoder: tuple[AttentionOutput, ...]
    decoder: tuple[AttentionOutput, ...]
    cross: tuple[AttentionOutput, ...]


class EncoderDecoderOutput(NamedTuple):
    """The output of a translator."""

    logits: Tensor
    """(batch, target, vocab_size)"""
    attentions: Attentions | None
    """The attention of each layer, with ``output_attentions=True``."""


class EncoderDecoder(nn.Module, ABC):
    """A model that maps a source sequence to a target sequence.

    Sequences are padded on the right, and ``src_lengths`` are the lengths of the sources without padding. The target
    needs no mask, because the decoder is causal.

    Args:
        config: An `EncoderDecoderConfig`.
    """

    config: Any
    lm_head: LMHead
    min_source_length = 0
    """Smallest allowed value in ``src_lengths``."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.src_embedding = nn.Embedding(config.vocab_size, config.d_model, padding_idx=config.pad_id)
        self.tgt_embedding = (
            self.src_embedding
            if config.tie_embeddings == "all"
            else nn.Embedding(config.decoder_vocab_size, config.d_model, padding_idx=config.pad_id)
        )
        self.dropout = Dropout(config.dropout)

    @property
    @abstractmethod
    def memory_dim(self) -> int:
        """Size of the hidden states that `encode` returns."""

    @property
    @abstractmethod
    def attention_layers(self) -> dict[str, Any]:
        """The attention layers by name: ``"encoder.0"``, ``"decoder.0"``, ``"cross.0"`` and so on."""

    @abstractmethod
    def new_cache(self) -> Cache:
        """An empty cache for `decode`."""

    @abstractmethod
    def _encode(
        self, src: Tensor, src_lengths: Tensor | None, output_attentions: bool
    ) -> tuple[Tensor, tuple[AttentionOutput, ...]]:
        """The memory (batch, source, memory_dim), and the attention of each encoder layer, if requested."""

    @abstractmethod
    def _decode(
        self, tgt: Tensor, memory: Tensor, src_lengths: Tensor | None, cache: Any, output_attentions: bool
    ) -> tuple[Tensor, tuple[AttentionOutput, ...], tuple[AttentionOutput, ...]]:
        """Hidden states (rows, target, d_model), and both attentions of each decoder layer, if requested."""

    def encode(self, src: Tensor, src_lengths: Tensor | None = None) -> Tensor:
        """Compute the memory that the decoder attends to, (batch, source, memory_dim).

        Arguments and errors are those of `forward`.
        """
        self._check_source(src, src_lengths)
        return self._encode(src, src_lengths, output_attentions=False)[0]

    def decode(self, tgt: Tensor, memory: Tensor, src_lengths: Tensor | None = None, *, cache: Any = None) -> Tensor:
        """Compute the hidden states of the decoder, (rows, target, d_model), which ``lm_head`` maps to logits.

        Errors are those of `forward`.

        Args:
            tgt: (rows, target), token ids; with a cache only the tokens that it does not hold yet.
            memory: (sentences, source, memory_dim). The number of rows is a multiple of the number of sentences; rows
                of one sentence are adjacent.
            src_lengths: (sentences,), as for `encode`.
            cache: As from `new_cache`; it grows by the tokens of this call.
        """
        self._check_target(tgt, memory, src_lengths)
        return self._decode(tgt, memory, src_lengths, cache, output_attentions=False)[0]

    def forward_features(
        self, src: Tensor, tgt: Tensor, src_lengths: Tensor | None = None, *, output_attentions: bool = False
    ) -> tuple[Tensor, Attentions]:
        """The last hidden states (batch, target, d_model) and, with ``output_attentions``, the attention of each layer.

        Arguments and errors are those of `forward`.
        """
        self._check_source(src, src_lengths)
        memory, encoder = self._encode(src, src_lengths, output_attentions)
        self._check_target(tgt, memory, src_lengths)
        hidden, decoder, cross = self._decode(tgt, memory, src_lengths, None, output_attentions)
        return hidden, Attentions(encoder, decoder, cross)

    def loss(
        self,
        src: Tensor,
        tgt: Tensor,
        src_lengths: Tensor | None,
        labels: Tensor,
        *,
        label_smoothing: float = 0.0,
        output_attentions: bool = False,
    ) -> tuple[TokenLoss, Attentions]:
        """Cross-entropy of the next tokens of the target, without storing the logits; and the attention of each layer.

        Args:
            src: As for `forward`.
            tgt: As for `forward`.
            src_lengths: As for `forward`.
            labels: (batch, target), the token after each of ``tgt``, or pad_id, which does not count.
            label_smoothing: Probability that is spread evenly over the vocabulary.
            output_attentions: Whether to return the attention of each layer; without it there is none.

        Raises:
            InvalidArgument: If shapes, dtypes or ids do not fit.
        """
        hidden, attentions = self.forward_features(src, tgt, src_lengths, output_attentions=output_attentions)
        options = {"label_smoothing": label_smoothing, "ignore_index": self.config.pad_id}
        return self.lm_head.loss(hidden, labels, **options), attentions

    def forward(
        self, src: Tensor, tgt: Tensor, src_lengths: Tensor | None = None, *, output_attentions: bool = False
    ) -> EncoderDecoderOutput:
        """Compute the logits of the next token at each position of the target.

        Args:
            src: (batch, source), token ids.
            tgt: (batch, target), token ids; the first is bos_id.
            src_lengths: (batch,), number of tokens of each source without padding. Default: no padding.
            output_attentions: Whether to return the attention of each layer.

        Raises:
            InvalidArgument: If shapes, dtypes or ids do not fit.
            InvalidType: If an argument is not a tensor.
        """
        hidden, attentions = self.forward_features(src, tgt, src_lengths, output_attentions=output_attentions)
        return EncoderDecoderOutput(self.lm_head(hidden), attentions if output_attentions else None)

    def _build_lm_head(self, *, bias: bool = False) -> LMHead:
        """The map to logits, which may share the weights of the target's embedding."""
        lm_head = LMHead(self.config.d_model, self.config.decoder_vocab_size, bias=bias)
        if self.config.tie_embeddings != "none":
            lm_head.weight = self.tgt_embedding.weight
        return lm_head

    def _reset_embeddings(self) -> None:
        """Draw token embeddings from N(0, 1 / d_model), except for padding, which starts at 0."""
        for embedding in dict.fromkeys((self.src_embedding, self.tgt_embedding)):  # may be the same module
            nn.init.normal_(embedding.weight, std=self.config.d_model**-0.5)
            with torch.no_grad():
                embedding.weight[self.config.pad_id] = 0

    def _check_source(self, src: Tensor, src_lengths: Tensor | None) -> None:
        with Checks() as checks:
            check_ids(checks, "src", src, self.config.vocab_size)
            check_lengths(checks, "src_lengths", src_lengths, "src", src, self.min_source_length)

    def _check_target(self, tgt: Tensor, memory: Tensor, src_lengths: Tensor | None) -> None:
        with Checks() as checks:
            valid = check_ids(checks, "tgt", tgt, self.config.decoder_vocab_size)
            check_lengths(checks, "src_lengths", src_lengths, "memory", memory)
            if not checks.tensor("memory", memory):
                return
            if memory.ndim != 3 or memory.shape[2] != self.memory_dim or not len(memory):
                axes = f"(sentences, source, {self.memory_dim}) with at least one sentence"
                checks.fail(f"memory: expected shape {axes}, as encode returns it, got {tuple(memory.shape)}")
            elif valid and len(tgt) % len(memory):
                sentences = f"the memory's {len(memory)} sentences"
                checks.fail(f"tgt: expected a multiple of {sentences} as rows, got {len(tgt)}")
