"""Decoder-only Transformers: GPT-2 (Radford et al. 2019), Llama (Touvron et al. 2023), and models like them."""

from __future__ import annotations

import math
from dataclasses import field
from functools import reduce
from operator import and_
from typing import Any, Literal, NamedTuple

from pydantic import StrictBool
from torch import Tensor, nn

from regard.checks import Checks
from regard.models.config import (
    Positions,
    Rate,
    Size,
    TokenId,
    TokenIds,
    TransformerLayerConfig,
    check_below,
    check_config,
)
from regard.models.inputs import check_ids, check_integers
from regard.models.layers import LMHead, build_stack, embedding_positions, init_normal, to_autocast_dtype
from regard.nn.cache import DecoderCache
from regard.nn.dropout import Dropout
from regard.nn.feed_forward import Activation
from regard.nn.linear_cross_entropy import TokenLoss
from regard.ops import AttentionOutput
from regard.ops.masks import Mask, Padding, Window
from regard.validation import config_class


@config_class
class GPTConfig(TransformerLayerConfig):
    """Configuration of a `GPT`; the defaults are the smallest GPT-2.

    The fields of `regard.models.TransformerLayerConfig`, and:

    Args:
        vocab_size: Size of the vocabulary.
        num_layers: Number of layers.
        max_seq_len: Longest sequence, prompt included; the number of learned positions.
        sliding_window: Number of tokens that each token attends to, itself included (Mistral). Default: all.
        tie_embeddings: Whether token embeddings and ``lm_head`` share their weights.
        scale_embeddings: Whether token embeddings are multiplied by √d_model (Gemma).
        pad_id: Padding token id. Padding is masked, so any id works; GPT-2 defines none.
        bos_id: Token id at the beginning of a text. Default: none.
        eos_ids: Token ids that end a text. Default: none.
        sample_by: What the texts of the training were, ``"document"`` or ``"line"``; prompts and likelihoods of lines
            begin with the end of the line before. Default: unknown, as in checkpoints of transformers.

    Raises:
        InvalidArgument: With every field that is out of bounds, unknown or inconsistent.

    Examples:
        >>> GPTConfig(50257).num_layers, GPTConfig.llama(32000, d_model=2048, num_heads=16).norm
        (12, 'rms_norm')
    """

    vocab_size: Size = field(kw_only=False)
    d_model: Size = 768
    num_heads: Size = 12
    num_layers: Size = 12
    d_ff: Size = 3072
    activation: Activation = "gelu_tanh"
    norm_first: StrictBool = True
    positions: Positions = "learned"
    attention_dropout: Rate = 0.1
    sliding_window: Size | None = None
    max_seq_len: Size = 1024
    tie_embeddings: StrictBool = True
    scale_embeddings: StrictBool = False
    pad_id: TokenId = 0
    bos_id: TokenId | None = None
    eos_ids: TokenIds = ()
    sample_by: Literal["document", "line"] | None = None

    @classmethod
    def llama(cls, vocab_size: int, **changes: Any) -> GPTConfig:
        """The configuration of Llama: rotary positions, RMS norm, SwiGLU, no biases, untied embeddings, no dropout.

        Args:
            vocab_size: Size of the vocabulary.
            changes: Other fields; the defaults are the sizes of Llama 2 7B.

        Reference: Touvron et al. 2023, "LLaMA: Open and efficient foundation language models", section 2.2.
        """
        fields: dict[str, Any] = {
            "d_model": 4096,
            "num_heads": 32,
            "num_layers": 32,
            "d_ff": 11008,
            "activation": "silu",
            "gated": True,
            "norm": "rms_norm",
            "norm_eps": 1e-6,
            "attention_bias": False,
            "feed_forward_bias": False,
            "positions": "rotary",
            "max_seq_len": 2048,
            "tie_embeddings": False,
            "dropout": 0.0,
            "attention_dropout": 0.0,
        }
        return cls(vocab_size, **{**fields, **changes})

    def check(self, checks: Checks) -> None:
        largest_eos = max(self.eos_ids, default=None)
        check_below(checks, "vocab_size", self.vocab_size, pad_id=self.pad_id, bos_id=self.bos_id, eos_ids=largest_eos)
        super().check(checks)


class GPTOutput(NamedTuple):
    """The output of a `GPT`."""

    logits: Tensor
    """(batch, tokens, vocab_size)"""
    attentions: tuple[AttentionOutput, ...] | None
    """The attention of each layer, with ``output_attentions=True``."""


class GPT(nn.Module):
    """Decoder-only Transformer, which predicts the next token at each position.

    Matrices start from N(0, 0.02²), the last one of each sublayer from N(0, 0.02² / (2 · num_layers)), and biases at 0,
    as in GPT-2.

    Args:
        config: The configuration.

    Reference:
        Radford et al. 2019, "Language models are unsupervised multitask learners", section 2.3; Touvron et al. 2023,
        "LLaMA: Open and efficient foundation language models".

    Examples:
        >>> import torch
        >>> model = GPT(GPTConfig(100, d_model=16, num_heads=4, num_layers=2, d_ff=32)).eval()
        >>> output = model(torch.randint(100, (2, 7)), output_attentions=True)
        >>> output.logits.shape, output.attentions[0].weights.shape
        (torch.Size([2, 7, 100]), torch.Size([2, 4, 7, 7]))
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = check_config(config, GPTConfig)
        self.token_embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = embedding_positions(config, causal=True)
        self.dropout = Dropout(config.dropout)
        self.decoder = build_stack(config, config.num_layers, causal=True)
        self.lm_head = LMHead(config.d_model, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.lm_head.weight = self.token_embedding.weight
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize all weights as the class describes."""
        init_normal(self, residual_std=0.02 / math.sqrt(2 * self.config.num_layers))

    @property
    def attention_layers(self) -> dict[str, Any]:
        """The attention layers by name, ``"decoder.0"`` and so on."""
        return {f"decoder.{number}": layer.self_attention for number, layer in enumerate(self.decoder.layers)}

    def new_cache(self) -> DecoderCache:
        """An empty cache for `forward_features`."""
        return DecoderCache(self.config.num_layers)

    def forward_features(
        self,
        input_ids: Tensor,
        left_padding: Tensor | None = None,
        *,
        cache: DecoderCache | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, tuple[AttentionOutput, ...]]:
        """The last hidden states (batch, tokens, d_model) and, with ``output_attentions``, the attention of each layer.

        Arguments and errors are those of `forward`; with a `cache` from `new_cache`, ``input_ids`` are only
        the tokens that it does not hold yet, and it grows by them.
        """
        cached = cache.length if cache else 0
        with Checks() as checks:
            if check_ids(checks, "input_ids", input_ids, self.config.vocab_size) and left_padding is not None:
                last = cached + input_ids.shape[1] - 1
                batch, limit = input_ids.shape[0], f"the last position {last}"
                check_integers(checks, "left_padding", left_padding, batch, 0, last, limit)
        masks: list[Mask] = []  # the decoder adds the causal mask
        offset = cached
        if left_padding is not None:
            left_padding = left_padding.long()  # uint8 would wrap around below 0
            masks.append(~Padding(left_padding))
            offset = cached - left_padding
        window = self.config.sliding_window
        if window is not None and window < cached + input_ids.shape[1]:
            masks.append(Window(window - 1, 0))
        embeddings = self.token_embedding(input_ids)
        if self.config.scale_embeddings:
            embeddings = embeddings * math.sqrt(self.config.d_model)
        embeddings = to_autocast_dtype(self.positions(embeddings, offset))
        mask = reduce(and_, masks) if masks else None
        hidden, attentions, _ = self.decoder(
            self.dropout(embeddings), mask=mask, cache=cache, output_attentions=output_attentions
        )
        return hidden, attentions

    def loss(self, input_ids: Tensor, labels: Tensor, *, label_smoothing: float = 0.0) -> TokenLoss:
        """Cross-entropy of the next tokens, without storing the logits.

        Args:
            input_ids: As for `forward`.
            labels: (batch, tokens), the token after each, or −100, which does not count.
            label_smoothing: Probability that is spread evenly over the vocabulary.

        Raises:
            InvalidArgument: If shapes, dtypes or ids do not fit.
        """
        hidden, _ = self.forward_features(input_ids)
        return self.lm_head.loss(hidden, labels, label_smoothing=label_smoothing)

    def forward(
        self, input_ids: Tensor, left_padding: Tensor | None = None, *, output_attentions: bool = False
    ) -> GPTOutput:
        """Compute the logits of the next token at each position.

        Args:
            input_ids: (batch, tokens), token ids.
            left_padding: (batch,), number of padding tokens before each sequence, which are masked. Default: 0.
            output_attentions: Whether to return the attention of each layer.

        Raises:
            InvalidArgument: If shapes, dtypes or ids do not fit.
            InvalidType: If an argument is not a tensor.
        """
        hidden, attentions = self.forward_features(input_ids, left_padding, output_attentions=output_attentions)
        return GPTOutput(self.lm_head(hidden), attentions if output_attentions else None)
