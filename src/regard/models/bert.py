"""BERT (Devlin et al. 2019): a bidirectional encoder, and its heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field, Strict, StrictBool
from torch import Tensor, nn
from torch.nn import functional

from regard.checks import Checks
from regard.errors import InvalidArgument, short_repr
from regard.models.config import (
    MAX_SIZE,
    Count,
    Epsilon,
    Labels,
    Positions,
    Rate,
    Size,
    TokenId,
    TransformerLayerConfig,
    check_below,
    check_config,
)
from regard.models.inputs import check_ids, check_labels, check_lengths
from regard.models.layers import LMHead, build_stack, embedding_positions, init_normal, norm_layer, to_autocast_dtype
from regard.native.linear import Linear
from regard.nn.dropout import Dropout
from regard.nn.feed_forward import ACTIVATIONS, Activation
from regard.nn.linear_cross_entropy import IGNORE_INDEX
from regard.ops import AttentionOutput
from regard.ops.masks import Padding
from regard.validation import config_class

Head = Literal["none", "masked_lm", "sequence_classification", "token_classification", "sentence_embedding"]
Pooling = Literal["mean", "cls"]
CLASSIFIERS: tuple[Head, ...] = ("sequence_classification", "token_classification")


@config_class
class BertConfig(TransformerLayerConfig):
    """Configuration of a `Bert`; the defaults are BERT base.

    The fields of `regard.models.TransformerLayerConfig`, and:

    Args:
        vocab_size: Size of the vocabulary.
        num_layers: Number of layers.
        max_seq_len: Longest sequence, special tokens included; the number of learned positions.
        truncation_length: Number of tokens to which `TextEncoder` truncates texts. Default: max_seq_len.
        type_vocab_size: Number of token types (segments); 0 disables token type embeddings.
        head: ``"masked_lm"``: logits over the vocabulary at each position; ``"sequence_classification"``: logits over
            the labels for each text; ``"token_classification"``: for each token; ``"sentence_embedding"``: one vector
            for each text; ``"none"``.
        labels: Names of the classes.
        pooler: Whether the model has BERT's pooler although its head does not need one, as in many checkpoints.
        pooling: Sentence embeddings are the ``"mean"`` of the hidden states, or that of the first token, ``"cls"``.
        normalize_embeddings: Whether sentence embeddings have length 1.
        pad_id: Padding token id.
        model_type: ``"bert"`` or ``"roberta"``: what the model is when it is saved in the format of transformers. Both
            compute the same, but RoBERTa's table of positions begins with unused rows.

    Raises:
        InvalidArgument: With every field that is out of bounds, unknown or inconsistent.

    Examples:
        >>> BertConfig(30522, head="sequence_classification", labels=("bad", "good")).num_layers
        12
    """

    vocab_size: Size = field(kw_only=False)
    d_model: Size = 768
    num_heads: Size = 12
    num_layers: Size = 12
    d_ff: Size = 3072
    activation: Activation = "gelu"
    norm_eps: Epsilon = 1e-12
    positions: Positions = "learned"
    attention_dropout: Rate = 0.1
    max_seq_len: Size = 512
    truncation_length: Annotated[int, Strict(), Field(ge=2, le=MAX_SIZE)] | None = None
    type_vocab_size: Count = 2
    head: Head = "none"
    labels: Labels = ()
    pooler: StrictBool = False
    pooling: Pooling = "mean"
    normalize_embeddings: StrictBool = True
    pad_id: TokenId = 0
    model_type: Literal["bert", "roberta"] = "bert"

    def check(self, checks: Checks) -> None:
        check_below(checks, "vocab_size", self.vocab_size, pad_id=self.pad_id)
        if self.head in CLASSIFIERS and len(self.labels) < 2:
            checks.fail(
                f"labels: expected at least two names for head={short_repr(self.head)}, got {short_repr(self.labels)}"
            )
        if len(set(self.labels)) < len(self.labels):
            checks.fail(f"labels: expected different names, got {short_repr(self.labels)}")
        if self.truncation_length is not None and self.truncation_length > self.max_seq_len:
            expected = f"at most max_seq_len={self.max_seq_len}"
            checks.fail(f"truncation_length: expected {expected}, got {self.truncation_length}")
        super().check(checks)


class BertOutput(NamedTuple):
    """The output of a `Bert`."""

    last_hidden_state: Tensor
    """(batch, tokens, d_model)"""
    logits: Tensor | None
    """(batch, tokens, vocab_size) of ``masked_lm``, (batch, labels) of ``sequence_classification``, (batch, tokens,
    labels) of ``token_classification``; None for other heads."""
    embeddings: Tensor | None
    """(batch, d_model) of ``sentence_embedding``; None for other heads."""
    attentions: tuple[AttentionOutput, ...] | None
    """The attention of each layer, with ``output_attentions=True``."""


class LabelLoss(NamedTuple):
    """The loss of predicting labels: of masked tokens, of texts, or of the tokens of a text."""

    loss: Tensor
    """Mean negative log-likelihood of the labels in nats, with label smoothing; a scalar."""
    nll: Tensor
    """Summed negative log-likelihood without smoothing; a scalar."""
    num_labels: Tensor
    """Number of labels that are not −100."""
    predictions: Tensor | None
    """The index of the highest logit for each of them (num_labels,), with ``output_predictions=True``."""


class Bert(nn.Module):
    """Bidirectional Transformer encoder with a head.

    Sequences are padded on the right. Matrices start from N(0, 0.02²) and biases at 0, as in the code of the paper.

    Args:
        config: The configuration.

    Reference:
        Devlin et al. 2019, "BERT: Pre-training of deep bidirectional Transformers for language understanding"; Reimers
        and Gurevych 2019, "Sentence-BERT" (sentence embeddings).

    Examples:
        >>> import torch
        >>> config = BertConfig(100, d_model=16, num_heads=4, num_layers=2, d_ff=32, head="masked_lm")
        >>> model, input_ids = Bert(config).eval(), torch.randint(100, (2, 7))
        >>> output = model(input_ids, torch.tensor([7, 4]), output_attentions=True)
        >>> output.logits.shape, output.attentions[0].weights.shape
        (torch.Size([2, 7, 100]), torch.Size([2, 4, 7, 7]))
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = check_config(config, BertConfig)
        d_model = config.d_model
        self.token_embedding = nn.Embedding(config.vocab_size, d_model, padding_idx=config.pad_id)
        self.positions = embedding_positions(config)
        self.token_type_embedding = nn.Embedding(config.type_vocab_size, d_model) if config.type_vocab_size else None
        self.embedding_norm = norm_layer(config)(d_model)
        self.dropout = Dropout(config.dropout)
        self.encoder = build_stack(config, config.num_layers)
        has_pooler = config.pooler or config.head == "sequence_classification"
        self.pooler = Linear(d_model, d_model) if has_pooler else None
        self.mlm_head = MaskedLMHead(config, self.token_embedding) if config.head == "masked_lm" else None
        self.classifier = Linear(d_model, len(config.labels)) if config.head in CLASSIFIERS else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize all weights as the class describes."""
        init_normal(self)
        with torch.no_grad():
            self.token_embedding.weight[self.config.pad_id] = 0

    @property
    def attention_layers(self) -> dict[str, Any]:
        """The attention layers by name, ``"encoder.0"`` and so on."""
        return {f"encoder.{number}": layer.self_attention for number, layer in enumerate(self.encoder.layers)}

    def with_head(self, head: Head, labels: Sequence[str] = (), **changes: Any) -> Bert:
        """Copy the encoder into a model with another head, which is initialized unless it is the same.

        Args:
            head: As in `BertConfig`.
            labels: As in `BertConfig`.
            changes: Other fields of the configuration that change no weights, as ``dropout``.

        Raises:
            InvalidArgument: As `BertConfig`, or if a field changes the weights of the encoder.
        """
        other = Bert(replace(self.config, head=head, labels=tuple(labels), **changes))
        own, new = dict(self.named_parameters()), dict(other.named_parameters())
        same = head == self.config.head and tuple(labels) == self.config.labels
        heads = ("pooler", "classifier", "mlm_head")
        shapes = [{n: p.shape for n, p in each.items() if not n.startswith(heads)} for each in (own, new)]
        if shapes[0] != shapes[1]:
            raise InvalidArgument(
                f"changes: expected fields that change no weights of the encoder, got {short_repr(changes)}"
            )
        with torch.no_grad():
            for name, parameter in new.items():
                if name in own and (same or not name.startswith(heads[1:])):
                    parameter.copy_(own[name])
        return other.to(self.token_embedding.weight).train(self.training)  # same device and dtype

    def forward_features(
        self,
        input_ids: Tensor,
        lengths: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        output_attentions: bool = False,
    ) -> tuple[Tensor, tuple[AttentionOutput, ...]]:
        """The last hidden states (batch, tokens, d_model) and, with ``output_attentions``, the attention of each layer.

        Arguments and errors are those of `forward`.
        """
        config = self.config
        checks = Checks()
        valid = check_ids(checks, "input_ids", input_ids, config.vocab_size)
        check_lengths(checks, "lengths", lengths, "input_ids", input_ids)
        if token_type_ids is not None and self.token_type_embedding is None:
            checks.fail("token_type_ids: expected None, because type_vocab_size is 0; leave them out")
        elif token_type_ids is not None:
            types_valid = check_ids(checks, "token_type_ids", token_type_ids, config.type_vocab_size, "type_vocab_size")
            if valid and types_valid:
                checks.tensor("token_type_ids", token_type_ids, shapes={"of input_ids": input_ids.shape})
        checks.raise_problems()
        embeddings = self.token_embedding(input_ids)
        if self.token_type_embedding is not None:
            types = self.token_type_embedding
            embeddings = embeddings + (types.weight[0] if token_type_ids is None else types(token_type_ids))
        embeddings = to_autocast_dtype(self.embedding_norm(self.positions(embeddings)))
        mask = None if lengths is None else Padding(lengths)
        hidden, attentions, _ = self.encoder(self.dropout(embeddings), mask=mask, output_attentions=output_attentions)
        return hidden, attentions

    def forward_head(self, hidden: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The logits or embeddings of the head, as in `BertOutput`; the hidden states if there is no head."""
        config = self.config
        if self.mlm_head is not None:
            return self.mlm_head(hidden)
        if config.head == "sentence_embedding":
            embeddings = hidden[:, 0] if config.pooling == "cls" else _mean(hidden, lengths)
            return functional.normalize(embeddings, dim=-1) if config.normalize_embeddings else embeddings
        if self.classifier is None:
            return hidden
        if config.head == "sequence_classification":
            assert self.pooler is not None
            hidden = self.pooler(hidden[:, 0]).tanh()
        return self.classifier(self.dropout(hidden))

    def forward(
        self,
        input_ids: Tensor,
        lengths: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        output_attentions: bool = False,
    ) -> BertOutput:
        """Encode texts and apply the head.

        Args:
            input_ids: (batch, tokens), token ids; checkpoints expect ``[CLS]`` before and ``[SEP]`` after a text.
            lengths: (batch,), number of tokens of each text without padding. Default: no padding.
            token_type_ids: (batch, tokens), the segment of each token. Default: 0.
            output_attentions: Whether to return the attention of each layer.

        Raises:
            InvalidArgument: If shapes, dtypes or ids do not fit.
            InvalidType: If an argument is not a tensor.
        """
        hidden, attentions = self.forward_features(
            input_ids, lengths, token_type_ids, output_attentions=output_attentions
        )
        output = None if self.config.head == "none" else self.forward_head(hidden, lengths)
        is_embedding = self.config.head == "sentence_embedding"
        return BertOutput(
            last_hidden_state=hidden,
            logits=None if is_embedding else output,
            embeddings=output if is_embedding else None,
            attentions=attentions if output_attentions else None,
        )

    def loss(
        self,
        input_ids: Tensor,
        lengths: Tensor | None,
        labels: Tensor,
        *,
        label_smoothing: float = 0.0,
        output_predictions: bool = False,
    ) -> LabelLoss:
        """Cross-entropy of the labels, with logits at their positions only.

        Args:
            input_ids: As for `forward`; for the head ``masked_lm``, some of them masked.
            lengths: As for `forward`.
            labels: Ids of tokens or classes, or −100, which does not count: (batch,) for the head
                ``sequence_classification``, else (batch, tokens).
            label_smoothing: Probability that is spread evenly over the vocabulary or the classes.
            output_predictions: Whether to return the predicted labels.

        Raises:
            InvalidArgument: If the head predicts no labels, or shapes, dtypes or ids do not fit.
        """
        head = self.config.head
        if head not in ("masked_lm", *CLASSIFIERS):
            raise InvalidArgument(f"head: expected 'masked_lm' or a classifier, got {short_repr(head)}")
        hidden, _ = self.forward_features(input_ids, lengths)
        size = self.config.vocab_size if head == "masked_lm" else len(self.config.labels)
        with Checks() as checks:
            check_labels(checks, labels, hidden.shape[: 1 if head == "sequence_classification" else 2], size)
        is_labeled = labels != IGNORE_INDEX
        if self.mlm_head is not None:
            hidden, labels = self.mlm_head.transform(hidden[is_labeled]), labels[is_labeled]
            loss = self.mlm_head.decoder.loss(hidden, labels, label_smoothing=label_smoothing)
            predictions = self.mlm_head.decoder(hidden).argmax(-1) if output_predictions else None
            return LabelLoss(*loss, predictions)
        logits, labels = self.forward_head(hidden, lengths)[is_labeled].float(), labels[is_labeled]
        loss = functional.cross_entropy(logits, labels, label_smoothing=label_smoothing)
        nll = functional.cross_entropy(logits.detach(), labels, reduction="sum")
        return LabelLoss(loss, nll, is_labeled.sum(), logits.argmax(-1) if output_predictions else None)


class MaskedLMHead(nn.Module):
    """Logits over the vocabulary at each position: norm(activation(h W + b)) Eᵀ + c, with E the token embeddings."""

    def __init__(self, config: BertConfig, token_embedding: nn.Embedding) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        self.dense = Linear(config.d_model, config.d_model)
        self.norm = norm_layer(config)(config.d_model)
        self.decoder = LMHead(config.d_model, config.vocab_size)
        self.decoder.weight = token_embedding.weight

    def transform(self, hidden: Tensor) -> Tensor:
        """The input of the last map, (..., d_model)."""
        return self.norm(self.activation(self.dense(hidden)))

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden states (..., d_model) to logits (..., vocab_size)."""
        return self.decoder(self.transform(hidden))


def _mean(hidden: Tensor, lengths: Tensor | None) -> Tensor:
    """The mean of the hidden states over tokens without padding, (batch, d_model)."""
    if lengths is None:
        return hidden.mean(1)
    is_token = torch.arange(hidden.shape[1], device=hidden.device) < lengths[:, None]  # (batch, tokens)
    return (hidden * is_token[:, :, None]).sum(1) / lengths.clamp(min=1)[:, None]
