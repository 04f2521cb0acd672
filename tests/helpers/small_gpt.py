"""A small GPT whose attention computes its own softmax where it has no fused kernel, as teaching code is written."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard.ops.masks import Causal
from regard.watching.adapters import AttentionInputs

IDS = torch.randint(50, (2, 20), generator=torch.Generator().manual_seed(0))


class CausalSelfAttention(nn.Module):
    """Masked scaled dot-product attention with one projection for query, key and value."""

    mask: Tensor

    def __init__(self, width: int, n_head: int, block_size: int, flash: bool = False) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.n_head, self.flash = n_head, flash
        self.register_buffer("mask", torch.ones(block_size, block_size, dtype=torch.bool).tril())

    def forward(self, x: Tensor) -> Tensor:
        parts = self.c_attn(x).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for part in parts)
        if self.flash:
            y = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            y = self.weights(query, key) @ value
        return self.c_proj(y.transpose(1, 2).flatten(2))

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        """The dense weights."""
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        tokens = query.shape[2]
        return nn.functional.softmax(scores.masked_fill(~self.mask[:tokens, :tokens], float("-inf")), dim=-1)


class SmallGPT(nn.Module):
    """Blocks of attention with a residual connection."""

    def __init__(self, layers: int = 2, width: int = 32, n_head: int = 4, flash: bool = False) -> None:
        super().__init__()
        self.wte = nn.Embedding(50, width)
        self.h = nn.ModuleList(CausalSelfAttention(width, n_head, 64, flash) for _ in range(layers))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids)
        for attention in self.h:
            x = x + attention(x)
        return x @ self.wte.weight.mT


def small_gpt(**options: Any) -> SmallGPT:
    """One whose weights differ from cell to cell, always the same."""
    torch.manual_seed(0)
    model = SmallGPT(**options)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


def adapter(module: CausalSelfAttention, arguments: Any, output: Any) -> AttentionInputs:
    """What `CausalSelfAttention` computes."""
    parts = module.c_attn(arguments["x"]).chunk(3, -1)
    query, key, value = (part.unflatten(-1, (module.n_head, -1)).transpose(1, 2) for part in parts)
    return AttentionInputs(
        query=query,
        key=key,
        mask=Causal(),
        value=value,
        to_heads=lambda gradient: (gradient @ module.c_proj.weight).unflatten(-1, (module.n_head, -1)).transpose(1, 2),
    )
