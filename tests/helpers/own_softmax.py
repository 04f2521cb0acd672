"""Modules that compute attention with a softmax of their own, and keep its weights."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

import regard

BATCH, HEADS, TOKENS, WIDTH = 2, 3, 7, 4


class SlowAttention(nn.Module):
    """Causal self-attention as small GPTs write it where SDPA is missing; it keeps its weights."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.num_heads, self.dropout = HEADS, dropout
        self.project, self.out = nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH), nn.Linear(HEADS * WIDTH, HEADS * WIDTH)

    def forward(self, x):
        batch, tokens, width = x.shape
        query, key, value = (
            part.view(batch, tokens, HEADS, -1).transpose(1, 2) for part in self.project(x).split(width, 2)
        )
        scores = query @ key.transpose(-2, -1) / WIDTH**0.5
        scores = scores.masked_fill(torch.ones(tokens, tokens).tril() == 0, float("-inf"))
        self.weights = functional.softmax(scores, dim=-1)
        dropped = functional.dropout(self.weights, self.dropout, self.training)
        return self.out((dropped @ value).transpose(1, 2).contiguous().view(batch, tokens, width))


def entropy_of(weights):
    """Of each row, with a gradient where weights are 0."""
    return -(weights * weights.clamp(min=1e-30).log()).sum(-1)


class Calls(nn.Module):
    """Attention through a given function of its input, which returns the output and the weights."""

    num_heads = HEADS

    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, *args):
        output, self.weights = self.call(*args)
        return output


class Outer(nn.Module):
    def __init__(self, *parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x


def inputs(*shape):
    return torch.randn(*(shape or (BATCH, TOKENS, HEADS * WIDTH)))


def watched(model, *args, **options):
    with regard.watch(model, **options) as result:
        model(*args)
    return result


def project(x):
    """Query, key and value, (batch, tokens, heads, width)."""
    return (part.view(*x.shape[:2], HEADS, -1) for part in (x, x.flip(2), 2 * x))
