"""Traces of small layers and models with random weights."""

from __future__ import annotations

import torch
from torch import nn

import regard
from regard.models import GPT, Bert, BertConfig, GPTConfig, RNNSearch, RNNSearchConfig, Transformer, TransformerConfig
from regard.pipelines.tracing import trace_forward, trace_model_layer
from regard.tracing import trace_layer
from regard.tracing.trace import Trace

SOURCE = ["▁The", "▁animal", "▁was", "▁ti", "red", ".", "</s>"]
TARGET = ["▁Das", "▁Tier", "▁war", "▁müde", ".", "</s>"]
SIZES = {"d_model": 32, "num_heads": 4, "d_ff": 16, "dropout": 0.0}


def randomized(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4, generator=generator)
    return model.eval()


def translator(name: str, source: list[str] = SOURCE, target: list[str] = TARGET, **changes) -> Trace:
    """A layer of a Transformer."""
    config = TransformerConfig(30, num_encoder_layers=2, num_decoder_layers=2, **{**SIZES, **changes})
    return _translation(randomized(Transformer(config)), name, source, target)


def _translation(model: nn.Module, name: str, source: list[str], target: list[str]) -> Trace:
    src, tgt = (torch.arange(3, 3 + len(tokens))[None] % 30 for tokens in (source, target))
    shifted = ["<s>", *target[:-1]]
    axes = {"encoder": (source, source), "decoder": (target, shifted), "cross": (target, source)}
    return trace_model_layer(model, name, (src, tgt), axes, f"{name} & more")


def recurrent() -> Trace:
    model = randomized(RNNSearch(RNNSearchConfig(30, d_model=16, hidden_size=12)))
    return _translation(model, "cross.0", SOURCE, TARGET)


def forward(kind: str, model: nn.Module, layer: str | None = None) -> Trace:
    return trace_forward(randomized(model), kind, range(3, 3 + len(SOURCE)), SOURCE, "a text", layer)


def layer(**options) -> Trace:
    attention = randomized(regard.nn.MultiHeadAttention(16, 4, **options))
    return trace_layer(attention, torch.randn(1, 5, 16, generator=torch.Generator().manual_seed(1)))


def self_attention() -> Trace:
    return trace_layer(randomized(regard.nn.SelfAttention(3)), torch.ones(1, 2, 3), mask=torch.eye(2).bool())


TRACES = {
    "four words": regard.trace,
    "causal": lambda: regard.trace([[1.0, -2.0], [0.5, 3.0]], mask=regard.Causal(), tokens=["a", "b"]),
    "layer": layer,
    "layer without bias": lambda: layer(bias=False, num_kv_heads=2),
    "self-attention": self_attention,
    "encoder.0": lambda: translator("encoder.0", norm_first=True),
    "encoder.1": lambda: translator("encoder.1"),
    "decoder.0": lambda: translator("decoder.0", positions="learned", norm_first=True),
    "cross.1": lambda: translator("cross.1", norm_first=True),
    "recurrent": recurrent,
    **{
        positions: lambda positions=positions: translator("decoder.1", positions=positions, num_kv_heads=2)
        for positions in ("relative", "rotary", "alibi", "t5", "none")
    },
    "bert": lambda: forward("encoder", Bert(BertConfig(30, num_layers=1, **SIZES))),
    "gpt": lambda: forward("decoder", GPT(GPTConfig(30, num_layers=1, **SIZES))),
    "llama": lambda: forward("decoder", GPT(GPTConfig.llama(30, num_layers=1, **SIZES)), "decoder.0"),
}
