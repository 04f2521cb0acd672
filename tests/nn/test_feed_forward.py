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
    feed_forward = FeedForward(8, 32, activation=activation)
    parts = nn.Sequential(feed_forward.fc1, module, feed_forward.fc2)
    x = torch.randn(2, 5, 8)
    torch.testing.assert_close(feed_forward(x), parts(x))


def test_a_gate_multiplies():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    reference = LlamaMLP(LlamaConfig(hidden_size=8, intermediate_size=32, num_attention_heads=2))
    feed_forward, x = FeedForward(8, 32, activation="silu", gated=True, bias=False), torch.randn(2, 5, 8)
    feed_forward.fc1.weight.data = torch.cat([reference.gate_proj.weight, reference.up_proj.weight]).detach()
    feed_forward.fc2.weight.data = reference.down_proj.weight.detach()
    torch.testing.assert_close(feed_forward(x), reference(x))


def test_all_problems_are_in_one_error():
    with pytest.raises(InvalidArgument) as caught:
        FeedForward(0, -4, activation="rely", dropout=2.0)  # pyright: ignore[reportArgumentType]
    for part in (
        "d_model: expected an int of at least 1, got 0",
        "d_ff: expected an int of at least 1, got -4",
        "activation: expected one of relu, gelu, gelu_tanh, silu, got 'rely', did you mean 'relu'?",
        "dropout: expected a finite number of at least 0 and below 1, got 2.0",
    ):
        assert part in str(caught.value)
