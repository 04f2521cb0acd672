"""What all translators have in common: an encoder reads a source, a decoder writes a target and attends to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.checks import Checks
from regard.models.inputs import check_ids, check_lengths
from regard.nn.cache import Cache
from regard.nn.dropout import Dropout
from regard.nn.linear import Linear
from regard.ops import AttentionOutput


class Attentions(NamedTuple):
    """What each layer of a translator attended to: an :class:`~regard.AttentionOutput` per layer, where it has one."""

    encoder: tuple[AttentionOutput, ...]
    decoder: tuple[AttentionOutput, ...]
    cross: tuple[AttentionOutput, ...]


class EncoderDecoderOutput(NamedTuple):
    """What a translator gives."""

    logits: Tensor
    """(batch, target, vocab)"""
    attentions: Attentions | None
    """Views of the weights of all layers, if they were asked for."""


class EncoderDecoder(nn.Module, ABC):
    """A model that translates one sequence of words into another.

    All sequences are filled up on the right. ``src_lengths`` says how many words of each source are real; the target
    needs no mask, since what stands behind a sequence's end cannot be seen from within it.

    Args:
        config: With the vocabularies, ``d_model``, ``dropout``, ``tie_embeddings`` and the special words.
    """

    config: Any
    to_words: nn.Linear
    shortest = 0
    """The fewest real words that a source may have."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.src_embedding = nn.Embedding(config.vocab_size, config.d_model, padding_idx=config.pad_id)
        self.tgt_embedding = (
            self.src_embedding
            if config.tie_embeddings == "all"
            else nn.Embedding(config.target_vocab_size, config.d_model, padding_idx=config.pad_id)
        )
        self.dropout = Dropout(config.dropout)

    @property
    @abstractmethod
    def memory_width(self) -> int:
        """Width of what :meth:`encode` gives."""

    @property
    @abstractmethod
    def attention_layers(self) -> dict[str, Any]:
        """The layers that attend, by kind and number: ``"encoder.0"``, ``"decoder.0"``, ``"cross.0"`` and so on."""

    @abstractmethod
    def new_cache(self) -> Cache:
        """An empty cache for :meth:`decode`."""

    @abstractmethod
    def _encode(self, src: Tensor, src_lengths: Tensor | None) -> tuple[Tensor, tuple[AttentionOutput, ...]]:
        """The memory (batch, source, memory_width), and what each layer attended to."""

    @abstractmethod
    def _decode(
        self, tgt: Tensor, memory: Tensor, src_lengths: Tensor | None, cache: Any
    ) -> tuple[Tensor, tuple[AttentionOutput, ...], tuple[AttentionOutput, ...]]:
        """Hidden states (rows, target, d_model), and what each layer attended to in the target and in the source."""

    def encode(self, src: Tensor, src_lengths: Tensor | None = None) -> Tensor:
        """Map source words to the memory that the decoder attends to.

        Args:
            src: (batch, source), integers.
            src_lengths: (batch,), number of real words of each source. Default: all are real.

        Returns:
            (batch, source, memory_width)

        Raises:
            InvalidArgument: If shapes, dtypes or words do not fit.
            InvalidType: If an argument is not a tensor.
        """
        self._check_source(src, src_lengths)
        return self._encode(src, src_lengths)[0]

    def decode(self, tgt: Tensor, memory: Tensor, src_lengths: Tensor | None = None, *, cache: Any = None) -> Tensor:
        """Map target words, each seeing those before it and the memory, to hidden states.

        Args:
            tgt: (rows, target), integers; with a cache only the words that it does not hold yet.
            memory: (sentences, source, memory_width); rows is a multiple of sentences, those of one side by side.
            src_lengths: (sentences,), as for :meth:`encode`.
            cache: As from :meth:`new_cache`; grows by the words of this call.

        Returns:
            (rows, target, d_model)

        Raises:
            InvalidArgument: If shapes, dtypes or words do not fit.
            InvalidType: If an argument is not a tensor.
        """
        self._check_target(tgt, memory, src_lengths)
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
        self._check_source(src, src_lengths)
        memory, encoder = self._encode(src, src_lengths)
        self._check_target(tgt, memory, src_lengths)
        hidden, decoder, cross = self._decode(tgt, memory, src_lengths, None)
        return hidden, Attentions(encoder, decoder, cross)

    def forward(
        self, src: Tensor, tgt: Tensor, src_lengths: Tensor | None = None, *, attentions: bool = False
    ) -> EncoderDecoderOutput:
        """Tell for every place of the target what word comes next.

        Args:
            src: (batch, source), integers.
            tgt: (batch, target), integers; the first is bos_id.
            src_lengths: (batch,), number of real words of each source. Default: all are real.
            attentions: Whether to give views of the attention weights.

        Returns:
            EncoderDecoderOutput: ``logits`` (batch, target, vocab), ``attentions`` if asked for.

        Raises:
            InvalidArgument: If shapes, dtypes or words do not fit.
            InvalidType: If an argument is not a tensor.
        """
        hidden, found = self.states(src, tgt, src_lengths)
        return EncoderDecoderOutput(self.project(hidden), found if attentions else None)

    def _make_to_words(self, *, bias: bool = False) -> nn.Linear:
        """The final linear map, which may be one with the target's embedding."""
        to_words = Linear(self.config.d_model, self.config.target_vocab_size, bias=bias)
        if self.config.tie_embeddings != "none":
            to_words.weight = self.tgt_embedding.weight
        return to_words

    def _reset_embeddings(self) -> None:
        """Draw embeddings from N(0, 1 / d_model), but for the filling word, which starts at 0."""
        for embedding in dict.fromkeys((self.src_embedding, self.tgt_embedding)):  # which may be one
            nn.init.normal_(embedding.weight, std=self.config.d_model**-0.5)
            with torch.no_grad():
                embedding.weight[self.config.pad_id] = 0

    def _check_source(self, src: Tensor, src_lengths: Tensor | None) -> None:
        with Checks() as checks:
            check_ids(checks, "src", src, self.config.vocab_size)
            check_lengths(checks, "src_lengths", src_lengths, "src", src, self.shortest)

    def _check_target(self, tgt: Tensor, memory: Tensor, src_lengths: Tensor | None) -> None:
        with Checks() as checks:
            valid = check_ids(checks, "tgt", tgt, self.config.target_vocab_size)
            check_lengths(checks, "src_lengths", src_lengths, "memory", memory)
            if not checks.tensor("memory", memory):
                return
            if memory.ndim != 3 or memory.shape[2] != self.memory_width or not len(memory):
                axes = f"(sentences, source, {self.memory_width}) with at least one sentence"
                checks.fail(f"memory: expected shape {axes}, as encode returns it, got {tuple(memory.shape)}")
            elif valid and len(tgt) % len(memory):
                sentences = f"the memory's {len(memory)} sentences"
                checks.fail(f"tgt: expected a multiple of {sentences} as rows, got {len(tgt)}")
