"""Attention to an encoder by a softmax of its own, before or after self-attention, in steps of a hand-written cache."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import regard

pytestmark = pytest.mark.filterwarnings("ignore:.*dense weights were recorded at the softmax")

HEADS, WIDTH = 2, 4


class Attention(nn.Module):
    num_heads = HEADS

    def __init__(self, is_dense, is_causal):
        super().__init__()
        self.is_dense, self.is_causal, self.past = is_dense, is_causal, None
        self.project = nn.ModuleList(nn.Linear(HEADS * WIDTH, HEADS * WIDTH) for _ in range(3))

    def forward(self, x, source):
        query, key, value = (
            project(each).unflatten(2, (HEADS, WIDTH)).transpose(1, 2)
            for project, each in zip(self.project, (x, source, source), strict=True)
        )
        if self.is_causal:
            past = self.past or (key[:, :, :0], value[:, :, :0])
            self.past = key, value = [torch.cat(each, 2) for each in zip(past, (key, value), strict=True)]
        hidden = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).triu(key.shape[2] - query.shape[2] + 1)
        hidden &= self.is_causal
        if not self.is_dense:
            return functional.scaled_dot_product_attention(query, key, value, ~hidden).transpose(1, 2).flatten(2)
        scores = (query @ key.mT / WIDTH**0.5).masked_fill(hidden, -torch.inf)
        return (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)


class Block(nn.Module):
    def __init__(self, order, dense):
        super().__init__()
        self.order = order
        self.attn, self.cross_attn = Attention("attn" in dense, True), Attention("cross_attn" in dense, False)

    def forward(self, x, source):
        for name in self.order:
            x = x + (self.attn(x, x) if name == "attn" else self.cross_attn(x, source))
        return x


class Decoder(nn.Module):
    def __init__(self, order, dense):
        super().__init__()
        self.blocks = nn.ModuleList(Block(order, dense) for _ in range(2))

    def reset(self):
        for block in self.blocks:
            block.attn.past = None

    def forward(self, x, source):
        for block in self.blocks:
            x = block(x, source)
        return x


@pytest.mark.parametrize("dense", [("attn", "cross_attn"), ("cross_attn",), ("attn",)])
@pytest.mark.parametrize("order", [("cross_attn", "attn"), ("attn", "cross_attn"), ("cross_attn",)])
def test_steps_are_rows_of_one_matrix(order, dense):
    torch.manual_seed(0)
    model, x, source = Decoder(order, dense), torch.randn(2, 8, HEADS * WIDTH), torch.randn(2, 5, HEADS * WIDTH)
    with regard.watch(model) as expected, torch.no_grad():
        model(x, source)
    for steps in ([3, 1, 2, 1, 1], [1] * 8, [8]):
        model.reset()
        with regard.watch(model, ["entropy"], positions="last") as result, torch.no_grad():
            for part in x.split(steps, 1):
                model(part, source)
        assert len(result.recordings) == 1
        assert [layer.name for layer in result.layers] == [layer.name for layer in expected.layers]
        for layer, other in zip(result.layers, expected.layers, strict=True):
            torch.testing.assert_close(layer.weights.dense(), other.weights.dense())
            torch.testing.assert_close(layer.measured["entropy"], other.weights.measure("entropy")["entropy"])


def test_a_cache_that_starts_again_is_another_recording():
    model = Decoder(("cross_attn", "attn"), ("attn", "cross_attn"))
    with regard.watch(model, positions="last") as result, torch.no_grad():
        for _ in range(2):
            model.reset()
            source = torch.randn(1, 5, HEADS * WIDTH)
            for part in torch.randn(1, 4, HEADS * WIDTH).split(1, 1):
                model(part, source)
    assert [recording.layers[0].weights.shape[2] for recording in result.recordings] == [4, 4]
