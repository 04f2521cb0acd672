"""A small attention, for tests of what torch does with programs."""

from __future__ import annotations

import torch
from torch import nn

from regard.ops import attend
from regard.ops.masks import Causal, Padding
from regard.ops.measures import TopK
from regard.ops.scores import ScaledDotProduct, Sinks, SoftCap

TOKENS = 19


def tensors(dtype=torch.float32, count=3):
    random = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, TOKENS, 4, generator=random).to(dtype).requires_grad_() for _ in range(count)]


class Attention(nn.Module):
    """A module with rules that learn, to be exported."""

    def __init__(self):
        super().__init__()
        self.sinks = nn.Parameter(torch.randn(2))

    def forward(self, query, key, value, lengths):
        score = Sinks(SoftCap(ScaledDotProduct(), 2.0), self.sinks)
        mask = Causal() & Padding(lengths)
        att = attend(query, key, value, mask=mask, score=score, measure=["entropy", TopK(3)], kernel="blockwise")
        return att.output, att.measured["entropy"], att.measured["topk"].indices
