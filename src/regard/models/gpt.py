"""Decoder-only Transformers that tell how a text goes on: the GPT-2 of Radford et al. 2019, and the shape of Llama."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from operator import and_
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from regard.checks import Checks
from regard.models.config import (
    MAX_SIZE,
    Count,
    Epsilon,
    FrozenDict,
    Positive,
    Rate,
    Size,
    TokenId,
    check_below,
    checked,
    validate,
)
from regard.models.inputs import check_ids, check_integers, in_compute_dtype
from regard.models.positions import (
    Positions,
    attention_positions,
    check_layers,
    embedding_positions,
    reset_attention_positions,
)
from regard.nn.attention import MultiHeadAttention
from regard.nn.cache import DecoderCache
from regard.nn.dropout import Dropout
from regard.nn.feed_forward import Activation, FeedForward
from regard.nn.linear import Linear
from regard.nn.transformer_layer import TransformerLayer, TransformerStack
from regard.ops import AttentionOutput
from regard.ops.masks import Padding, Window

Norm = Literal["layer", "rms"]
NORMS: dict[Norm, Callable[..., nn.Module]] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}


@dataclass(frozen=True)
class GptConfig:
    """What a decoder-only Transformer is built from; the defaults are the smallest GPT-2 of the paper.

    Args:
        vocab_size: Number of words.
        d_model: Width of the hidden states.
        num_heads: Number of query heads.
        num_kv_heads: Number of key and value heads. Default: num_heads.
        head_dim: Width of a head. Default: d_model / num_heads.
        num_layers: Number of layers.
        d_ff: Width inside the feed-forward networks.
        activation: ``"gelu_tanh"``, ``"gelu"``, ``"silu"`` or ``"relu"``.
        gated: Whether feed-forward networks have a gate.
        norm: ``"layer"`` or ``"rms"``; it stands before each sublayer, and behind the last layer.
        norm_eps: What is added to the variance.
        attention_bias: Whether attention's projections add a bias.
        attention_out_bias: Whether the output projection does. Default: as attention_bias.
        sliding_window: Number of tokens that each token attends to, itself and those before. Default: all.
        feed_forward_bias: Whether the maps of feed-forward networks do.
        positions: As in :class:`~regard.models.TransformerConfig`.
        max_distance: Distances beyond count as this one, for relative and t5. Default: 16 and 128.
        rotary_base: For rotary positions: the period of the slowest pair is nearly 2π · rotary_base.
        rotary_scaling: For rotary positions beyond those of the first training, as transformers names its keys:
            ``factor`` alone slows all pairs; with ``low_freq_factor``, ``high_freq_factor`` and
            ``original_max_position_embeddings`` only the slow ones, as in Llama 3.1. Default: none.
        max_length: The longest sequence that generation makes; the number of learned positions.
        tie_embeddings: Whether the embeddings are the final linear map, too.
        dropout: Dropped share of embeddings and of what each sublayer gives.
        attention_dropout: Dropped share of attention weights.
        pad_id: The word that fills up sequences; it is never seen. Default: any, as GPT-2 has none.
        bos_id: The word that begins a text. Default: none.
        eos_ids: The words that end a text. Default: none does.

    Raises:
        InvalidArgument: With everything that does not fit.

    Example:
        >>> GptConfig(50257).num_layers, GptConfig.llama(32000, d_model=2048, num_heads=16).norm
        (12, 'rms')
    """

    vocab_size: Size
    d_model: Size = 768
    num_heads: Size = 12
    num_kv_heads: Size | None = None
    head_dim: Size | None = None
    num_layers: Size = 12
    d_ff: Size = 3072
    activation: Activation = "gelu_tanh"
    gated: bool = False
    norm: Norm = "layer"
    norm_eps: Epsilon = 1e-5
    attention_bias: bool = True
    attention_out_bias: bool | None = None
    feed_forward_bias: bool = True
    sliding_window: Size | None = None
    positions: Positions = "learned"
    max_distance: Count | None = None
    rotary_base: Positive = 10000.0
    rotary_scaling: Mapping[str, Positive] | None = None
    max_length: Size = 1024
    tie_embeddings: bool = True
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.1
    pad_id: TokenId = 0
    bos_id: TokenId | None = None
    eos_ids: tuple[TokenId, ...] = ()

    @classmethod
    def llama(cls, vocab_size: int, **changes: Any) -> GptConfig:
        """The shape of Llama: rotary positions, RMS norms, SwiGLU, no biases, nothing tied or dropped.

        Args:
            vocab_size: Number of words.
            changes: Other sizes; the defaults are those of Llama 2 7B.

        Reference: Touvron et al. 2023, "LLaMA: Open and efficient foundation language models", section 2.2.
        """
        shape: dict[str, Any] = {
            "d_model": 4096,
            "num_heads": 32,
            "num_layers": 32,
            "d_ff": 11008,
            "activation": "silu",
            "gated": True,
            "norm": "rms",
            "norm_eps": 1e-6,
            "attention_bias": False,
            "feed_forward_bias": False,
            "positions": "rotary",
            "max_length": 2048,
            "tie_embeddings": False,
            "dropout": 0.0,
            "attention_dropout": 0.0,
        }
        return cls(vocab_size, **{**shape, **changes})

    def __post_init__(self) -> None:
        with Checks() as checks:
            if validate(self, checks):
                object.__setattr__(self, "eos_ids", tuple(self.eos_ids))  # JSON has only lists
                if self.rotary_scaling is not None:
                    object.__setattr__(self, "rotary_scaling", FrozenDict(self.rotary_scaling))
                    _check_scaling(checks, self.rotary_scaling)
                specials = {"pad_id": self.pad_id, "bos_id": self.bos_id, "eos_ids": max(self.eos_ids, default=None)}
                check_below(checks, "vocab_size", self.vocab_size, **specials)
            check_layers(checks, self, self.num_kv_heads, self.head_dim)
            if not checks.problems and self.num_heads * self.head_width > MAX_SIZE:
                checks.fail(f"head_dim: expected at most {MAX_SIZE // self.num_heads}, got {self.head_width}")

    @property
    def head_width(self) -> int:
        """Width of a head."""
        return self.d_model // self.num_heads if self.head_dim is None else self.head_dim

    @property
    def has_attention_out_bias(self) -> bool:
        """Whether the output projection of attention adds a bias."""
        return self.attention_bias if self.attention_out_bias is None else self.attention_out_bias


class GptOutput(NamedTuple):
    """What a GPT gives."""

    logits: Tensor
    """(batch, tokens, vocab)"""
    attentions: tuple[AttentionOutput, ...] | None
    """Views of the weights of all layers, if they were asked for."""


class Gpt(nn.Module):
    """Decoder-only Transformer: every place tells what word comes next, from those before it.

    Matrices are drawn from N(0, 0.02²), those that end a sublayer from N(0, 0.02² / (2 · layers)), and biases start at
    0, as in GPT-2.

    Args:
        config: Sizes and rates.

    Reference:
        Radford et al. 2019, "Language models are unsupervised multitask learners", section 2.3; Touvron et al. 2023,
        "LLaMA: Open and efficient foundation language models".

    Example:
        >>> import torch
        >>> model = Gpt(GptConfig(100, d_model=16, num_heads=4, num_layers=2, d_ff=32)).eval()
        >>> output = model(torch.randint(100, (2, 7)), attentions=True)
        >>> output.logits.shape, output.attentions[0].weights.shape
        (torch.Size([2, 7, 100]), torch.Size([2, 4, 7, 7]))
    """

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.config = checked(config, GptConfig)
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = embedding_positions(config.positions, config.d_model, config.max_length)
        self.dropout = Dropout(config.dropout)
        self.decoder = _layers(config)
        self.to_words = Linear(config.d_model, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.to_words.weight = self.embedding.weight
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights anew, as the class describes."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.ndim > 1:
                ends = name.endswith(("out_proj.weight", "contract.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * self.config.num_layers) if ends else 0.02)
            else:
                nn.init.ones_(parameter)  # of norms
        reset_attention_positions(self)

    @property
    def attention_layers(self) -> dict[str, Any]:
        """The layers that attend: ``"decoder.0"`` and so on."""
        return {f"decoder.{number}": layer.attention for number, layer in enumerate(self.decoder.layers)}

    def states(
        self, words: Tensor, starts: Tensor | None = None, *, cache: DecoderCache | None = None
    ) -> tuple[Tensor, tuple[AttentionOutput, ...]]:
        """What :meth:`hidden` gives, and views of the weights of all layers: for losses on both.

        Arguments and errors are those of :meth:`hidden`.
        """
        checks, before = Checks(), cache.length if cache else 0
        if check_ids(checks, "words", words, self.config.vocab_size) and starts is not None:
            last = before + words.shape[1] - 1
            check_integers(checks, "starts", starts, words.shape[0], 0, last, f"the last position {last}")
        checks.raise_problems()
        starts = None if starts is None else starts.long()  # which are subtracted: bytes would wrap
        embedded = self.positions(self.embedding(words), before if starts is None else before - starts)
        embedded = in_compute_dtype(embedded)
        rules = [] if starts is None else [~Padding(starts)]
        if self.config.sliding_window is not None:
            rules.append(Window(self.config.sliding_window - 1, 0))
        mask = reduce(and_, rules) if rules else None
        return self.decoder(self.dropout(embedded), mask=mask, cache=cache)[:2]

    def hidden(self, words: Tensor, starts: Tensor | None = None, *, cache: DecoderCache | None = None) -> Tensor:
        """What :meth:`forward` maps to logits: for a loss that does without them, and for generation step by step.

        Args:
            words: (batch, tokens), integers; with a cache only the words that it does not hold yet.
            starts: (batch,), where each sequence begins; what stands before fills up, and is not seen. Default: 0.
            cache: As from :meth:`new_cache`; grows by the words of this call.

        Returns:
            (batch, tokens, d_model)

        Raises:
            InvalidArgument: If shapes, dtypes or words do not fit.
            InvalidType: If an argument is not a tensor.
        """
        return self.states(words, starts, cache=cache)[0]

    def project(self, hidden: Tensor) -> Tensor:
        """Map hidden states (..., d_model) to logits (..., vocab)."""
        return self.to_words(hidden)

    def forward(self, words: Tensor, starts: Tensor | None = None, *, attentions: bool = False) -> GptOutput:
        """Tell for every place what word comes next.

        Args:
            words: (batch, tokens), integers.
            starts: (batch,), where each sequence begins; what stands before fills up, and is not seen. Default: 0.
            attentions: Whether to give views of the attention weights.

        Returns:
            GptOutput: ``logits`` (batch, tokens, vocab), ``attentions`` if asked for.

        Raises:
            InvalidArgument: If shapes, dtypes or words do not fit.
            InvalidType: If an argument is not a tensor.
        """
        hidden, found = self.states(words, starts)
        return GptOutput(self.project(hidden), found if attentions else None)

    def new_cache(self) -> DecoderCache:
        """An empty cache for :meth:`hidden`, in which each row has its own keys."""
        return DecoderCache(self.config.num_layers)


def _layers(config: GptConfig) -> TransformerStack:
    """The stack of layers."""
    norm_layer = partial(NORMS[config.norm], eps=config.norm_eps)
    told = attention_positions(
        config.positions,
        config.num_layers,
        num_heads=config.num_heads,
        head_dim=config.head_width,
        causal=True,
        max_distance=config.max_distance,
        rotary_base=config.rotary_base,
        rotary_scaling=config.rotary_scaling,
    )
    layers = [
        TransformerLayer(
            MultiHeadAttention(
                config.d_model,
                config.num_heads,
                num_kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                bias=config.attention_bias,
                out_bias=config.has_attention_out_bias,
                dropout=config.attention_dropout,
                positions=positions,
            ),
            FeedForward(
                config.d_model,
                config.d_ff,
                activation=config.activation,
                gated=config.gated,
                bias=config.feed_forward_bias,
            ),
            norm_first=True,
            dropout=config.dropout,
            norm_layer=norm_layer,
        )
        for positions in told
    ]
    return TransformerStack(layers, causal=True, norm_layer=norm_layer)


def _check_scaling(checks: Checks, scaling: Mapping[str, float]) -> None:
    every = {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
    if set(scaling) not in ({"factor"}, every):
        keys = f"the key 'factor', or all of {', '.join(sorted(every))}"
        checks.fail(f"rotary_scaling: expected {keys}, got {scaling!r}")
    elif len(scaling) > 1 and scaling["high_freq_factor"] <= scaling["low_freq_factor"]:
        checks.fail(f"rotary_scaling: expected high_freq_factor above low_freq_factor, got {scaling!r}")
