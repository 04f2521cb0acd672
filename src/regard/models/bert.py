"""BERT (Devlin et al. 2019): an encoder that reads in both directions, and the heads that make answers of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.checks import Checks
from regard.models.config import (
    MAX_SIZE,
    Count,
    Epsilon,
    NormOrder,
    Range,
    Rate,
    Size,
    TokenId,
    check_below,
    checked,
    validate,
)
from regard.models.inputs import check_ids, check_lengths, in_compute_dtype
from regard.models.positions import (
    Positions,
    attention_positions,
    check_layers,
    embedding_positions,
    reset_attention_positions,
)
from regard.nn.attention import MultiHeadAttention
from regard.nn.dropout import Dropout
from regard.nn.feed_forward import ACTIVATIONS, Activation, FeedForward
from regard.nn.linear import Linear
from regard.nn.transformer_layer import TransformerLayer, TransformerStack
from regard.ops import AttentionOutput
from regard.ops.masks import Padding

Head = Literal["none", "masked_words", "classes", "token_classes", "embedding"]
Pooling = Literal["mean", "first"]


@dataclass(frozen=True)
class BertConfig:
    """What a BERT is built from; the defaults are the base model of the paper.

    Args:
        vocab_size: Number of words.
        d_model: Width of the hidden states.
        num_heads: Number of heads.
        num_layers: Number of layers.
        d_ff: Width inside the feed-forward networks.
        activation: ``"gelu"``, ``"gelu_tanh"``, ``"silu"`` or ``"relu"``.
        norm: ``"post"`` (the paper's) or ``"pre"``.
        norm_eps: What is added to the variance.
        positions: As in :class:`~regard.models.TransformerConfig`.
        max_distance: Distances beyond count as this one, for relative and t5. Default: 16 and 128.
        max_length: The longest sequence, the words that begin and end it counted.
        cut_length: A `Reader` cuts longer texts to so many words. Default: max_length.
        num_types: Number of kinds of segments; 0: embeddings tell none.
        dropout: Dropped share of embeddings, of what each sublayer gives, and before classes.
        attention_dropout: Dropped share of attention weights.
        head: What is made of the hidden states. ``"masked_words"``: logits of the words that stand at each place;
            ``"classes"``: logits of the classes of a text; ``"token_classes"``: of each word; ``"embedding"``: one
            vector a text; ``"none"``: the hidden states themselves.
        labels: The names of the classes.
        pooler: Whether there is a map of the first hidden state even where no head needs it, as checkpoints have it.
        pooling: The embedding is the ``"mean"`` of the hidden states, or the ``"first"`` one.
        normalised: Whether embeddings have length 1.
        pad_id: The word that fills up sequences.

    Raises:
        InvalidArgument: With everything that does not fit.

    Example:
        >>> BertConfig(30522, head="classes", labels=("bad", "good")).num_layers
        12
    """

    vocab_size: Size
    d_model: Size = 768
    num_heads: Size = 12
    num_layers: Size = 12
    d_ff: Size = 3072
    activation: Activation = "gelu"
    norm: NormOrder = "post"
    norm_eps: Epsilon = 1e-12
    positions: Positions = "learned"
    max_distance: Count | None = None
    max_length: Size = 512
    cut_length: Annotated[int, Range(2, MAX_SIZE)] | None = None
    num_types: Count = 2
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.1
    head: Head = "none"
    labels: tuple[str, ...] = ()
    pooler: bool = False
    pooling: Pooling = "mean"
    normalised: bool = True
    pad_id: TokenId = 0

    def __post_init__(self) -> None:
        with Checks() as checks:
            if validate(self, checks):
                object.__setattr__(self, "labels", tuple(self.labels))  # JSON has only lists
                check_below(checks, "vocab_size", self.vocab_size, pad_id=self.pad_id)
                if self.head in ("classes", "token_classes") and len(self.labels) < 2:
                    checks.fail(f"labels: expected at least two names for head={self.head!r}, got {self.labels}")
                if len(set(self.labels)) < len(self.labels):
                    checks.fail(f"labels: expected different names, got {self.labels}")
                if self.cut_length is not None and self.cut_length > self.max_length:
                    checks.fail(f"cut_length: expected at most max_length={self.max_length}, got {self.cut_length}")
            check_layers(checks, self)


class BertOutput(NamedTuple):
    """What a BERT gives."""

    output: Tensor
    """What the head makes: logits (batch, tokens, vocab), (batch, classes) or (batch, tokens, classes); embeddings
    (batch, d_model); without a head the hidden states."""
    hidden: Tensor
    """(batch, tokens, d_model)"""
    attentions: tuple[AttentionOutput, ...] | None
    """Views of the weights of all layers, if they were asked for."""


class Bert(nn.Module):
    """Transformer encoder that reads a text in both directions, with a head that makes an answer of what it read.

    Sequences are filled up on the right. Matrices are drawn from N(0, 0.02²) and biases start at 0, as in the code of
    the paper.

    Args:
        config: Sizes, rates, and the head.

    Reference:
        Devlin et al. 2019, "BERT: Pre-training of deep bidirectional Transformers for language understanding"; Reimers
        and Gurevych 2019, "Sentence-BERT" (embeddings).

    Example:
        >>> import torch
        >>> config = BertConfig(100, d_model=16, num_heads=4, num_layers=2, d_ff=32, head="masked_words")
        >>> output = Bert(config).eval()(torch.randint(100, (2, 7)), torch.tensor([7, 4]), attentions=True)
        >>> output.output.shape, output.attentions[0].weights.shape
        (torch.Size([2, 7, 100]), torch.Size([2, 4, 7, 7]))
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = checked(config, BertConfig)
        self.embedding = nn.Embedding(config.vocab_size, config.d_model, padding_idx=config.pad_id)
        self.positions = embedding_positions(config.positions, config.d_model, config.max_length)
        self.types = nn.Embedding(config.num_types, config.d_model) if config.num_types else None
        norm_layer = partial(nn.LayerNorm, eps=config.norm_eps)
        self.embedding_norm = norm_layer(config.d_model)
        self.dropout = Dropout(config.dropout)
        told = attention_positions(
            config.positions,
            config.num_layers,
            num_heads=config.num_heads,
            head_dim=config.d_model // config.num_heads,
            causal=False,
            max_distance=config.max_distance,
        )
        layers = [
            TransformerLayer(
                MultiHeadAttention(
                    config.d_model, config.num_heads, dropout=config.attention_dropout, positions=positions
                ),
                FeedForward(config.d_model, config.d_ff, activation=config.activation),
                norm_first=config.norm == "pre",
                dropout=config.dropout,
                norm_layer=norm_layer,
            )
            for positions in told
        ]
        self.encoder = TransformerStack(layers, norm_layer=norm_layer)
        pooled = config.pooler or config.head == "classes"
        self.pooler = Linear(config.d_model, config.d_model) if pooled else None
        self.words = MaskedWords(config, self.embedding) if config.head == "masked_words" else None
        classified = config.head in ("classes", "token_classes")
        self.to_classes = Linear(config.d_model, len(config.labels)) if classified else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights anew, as the class describes."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)
            else:
                nn.init.ones_(parameter)  # of norms
        reset_attention_positions(self)
        with torch.no_grad():
            self.embedding.weight[self.config.pad_id] = 0

    @property
    def attention_layers(self) -> dict[str, Any]:
        """The layers that attend: ``"encoder.0"`` and so on."""
        return {f"encoder.{number}": layer.attention for number, layer in enumerate(self.encoder.layers)}

    def with_head(self, head: Head, labels: Sequence[str] = (), **changes: Any) -> Bert:
        """A model with a copy of this one's encoder, under a head that is drawn anew unless this one has the same.

        Args:
            head: As in :class:`BertConfig`.
            labels: As in :class:`BertConfig`.
            changes: Of further fields of the configuration that have no weights, as ``dropout``.

        Raises:
            InvalidArgument: With everything that does not fit.
        """
        other = Bert(replace(self.config, head=head, labels=tuple(labels), **changes))
        own = dict(self.named_parameters())
        same = head == self.config.head and tuple(labels) == self.config.labels
        with torch.no_grad():
            for name, parameter in other.named_parameters():
                if name in own and (same or not name.startswith(("to_classes", "words"))):
                    parameter.copy_(own[name])
        return other.to(self.embedding.weight).train(self.training)  # its device and dtype

    def states(
        self, words: Tensor, lengths: Tensor | None = None, types: Tensor | None = None
    ) -> tuple[Tensor, tuple[AttentionOutput, ...]]:
        """The hidden states (batch, tokens, d_model), and views of the weights of all layers: for losses on both.

        Arguments and errors are those of :meth:`forward`.
        """
        checks, num_types = Checks(), self.config.num_types
        valid = check_ids(checks, "words", words, self.config.vocab_size)
        check_lengths(checks, "lengths", lengths, "words", words)
        if types is not None and self.types is None:
            checks.fail("types: expected None, because the model has num_types=0, got a value; leave it out")
        elif types is not None and check_ids(checks, "types", types, num_types, "num_types") and valid:
            checks.tensor("types", types, shapes={"of words": words.shape})
        checks.raise_problems()
        embedded = self.embedding(words)
        if self.types is not None:  # the first kind where none is told
            embedded = embedded + (self.types.weight[0] if types is None else self.types(types))
        embedded = in_compute_dtype(self.embedding_norm(self.positions(embedded)))
        return self.encoder(self.dropout(embedded), mask=None if lengths is None else Padding(lengths))[:2]

    def answer(self, hidden: Tensor, lengths: Tensor | None = None) -> Tensor:
        """What the head makes of hidden states (batch, tokens, d_model); see :class:`BertOutput`."""
        config = self.config
        if self.words is not None:
            return self.words(hidden)
        if config.head == "embedding":
            found = hidden[:, 0] if config.pooling == "first" else _mean(hidden, lengths)
            return functional.normalize(found, dim=-1) if config.normalised else found
        if self.to_classes is None:
            return hidden
        if config.head == "classes":
            assert self.pooler is not None
            hidden = self.pooler(hidden[:, 0]).tanh()
        return self.to_classes(self.dropout(hidden))

    def forward(
        self,
        words: Tensor,
        lengths: Tensor | None = None,
        types: Tensor | None = None,
        *,
        attentions: bool = False,
    ) -> BertOutput:
        """Read texts, and answer as the head does.

        Args:
            words: (batch, tokens), integers; checkpoints expect ``[CLS]`` before and ``[SEP]`` behind a text.
            lengths: (batch,), number of real words of each text. Default: all are real.
            types: (batch, tokens), which segment each word is of, from 0. Default: all of the first.
            attentions: Whether to give views of the attention weights.

        Returns:
            BertOutput: ``output``, ``hidden``, and ``attentions`` if asked for.

        Raises:
            InvalidArgument: If shapes, dtypes or words do not fit.
            InvalidType: If an argument is not a tensor.
        """
        hidden, found = self.states(words, lengths, types)
        return BertOutput(self.answer(hidden, lengths), hidden, found if attentions else None)


class MaskedWords(nn.Module):
    """Which words stand at places: norm(activation(h W + b)) Eᵀ + c with E the embeddings.

    Args:
        config: The model's.
        embedding: Its embeddings, with which the final map shares its weights.
    """

    def __init__(self, config: BertConfig, embedding: nn.Embedding) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        self.transform = Linear(config.d_model, config.d_model)
        self.norm = nn.LayerNorm(config.d_model, eps=config.norm_eps)
        self.to_words = Linear(config.d_model, config.vocab_size)
        self.to_words.weight = embedding.weight

    def before_words(self, hidden: Tensor) -> Tensor:
        """What the final map is given, (..., d_model): for a loss that does without its logits."""
        return self.norm(self.activation(self.transform(hidden)))

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden states (..., d_model) to logits (..., vocab)."""
        return self.to_words(self.before_words(hidden))


def _mean(hidden: Tensor, lengths: Tensor | None) -> Tensor:
    """The mean of the real hidden states, (batch, d_model)."""
    if lengths is None:
        return hidden.mean(1)
    real = torch.arange(hidden.shape[1], device=hidden.device) < lengths[:, None]  # (batch, tokens)
    return (hidden * real[:, :, None]).sum(1) / lengths.clamp(min=1)[:, None]
