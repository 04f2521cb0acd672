"""The feed-forward network."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regard.errors import InvalidArgument
from regard.nn import FeedForward


@pytest.mark.parametrize(
    ("activation", "module"),
    [("relu", nn.ReLU()), ("gelu", nn.GELU()), ("gelu_tanh", nn.GELU(approximate="tanh")), ("silu", nn.SiLU())],
)
def test_equals_its_parts(activation, module):
    ours = FeedForward(8, 32, activation=activation)
    parts = nn.Sequential(ours.fc1, module, ours.fc2)
    x = torch.randn(2, 5, 8)
    torch.testing.assert_close(ours(x), parts(x))


def test_a_gate_multiplies():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    theirs = LlamaMLP(LlamaConfig(hidden_size=8, intermediate_size=32, num_attention_heads=2))
    ours, x = FeedForward(8, 32, activation="silu", gated=True, bias=False), torch.randn(2, 5, 8)
    ours.fc1.weight.data = torch.cat([theirs.gate_proj.weight, theirs.up_proj.weight]).detach()
    ours.fc2.weight.data = theirs.down_proj.weight.detach()
    torch.testing.assert_close(ours(x), theirs(x))


def test_all_objections_come_at_once():
    with pytest.raises(InvalidArgument) as caught:
        FeedForward(0, -4, activation="rely", dropout=2.0)  # pyright: ignore[reportArgumentType]
    for part in (
        "d_model: expected an int of at least 1, got 0",
        "d_ff: expected an int of at least 1, got -4",
        "activation: expected one of relu, gelu, gelu_tanh, silu, got 'rely', did you mean 'relu'?",
        "dropout: expected a finite number of at least 0 and below 1, got 2.0",
    ):
        assert part in str(caught.value)
