"""What watching costs where a model computes its own softmax, compared with the same model that returns its weights.

Adapters: BLOOM, GPT-J and DeBERTa of transformers, with ``output_attentions=True`` as the baseline. Dense capture: the
slow path of a small GPT, which returns its weights in the baseline. All have random weights in float32 and the width of
BERT base, and read one text without gradients. Memory of glibc is kept as in `watching`.

Run: ``python benchmarks/own_softmax.py``; for a quick check: ``--lengths 128 --layers 2``.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import torch
from timing import Run, relative_time, report
from torch import Tensor, nn
from transformers import BloomConfig, BloomModel, DebertaConfig, DebertaModel, GPTJConfig, GPTJModel

from watching import MEASURES, ROUNDS, SEED, VOCAB, forward, keep_freed_memory, watched

WIDTH, HEADS = 768, 12


class SlowAttention(nn.Module):
    """Causal self-attention as nanoGPT writes it where SDPA is missing."""

    def __init__(self) -> None:
        super().__init__()
        self.n_head, self.c_attn, self.c_proj = HEADS, nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        batch, tokens, width = x.shape
        query, key, value = (
            part.view(batch, tokens, self.n_head, -1).transpose(1, 2) for part in self.c_attn(x).split(width, 2)
        )
        scores = query @ key.transpose(-2, -1) * (width // self.n_head) ** -0.5
        scores = scores.masked_fill(torch.ones(tokens, tokens).tril() == 0, float("-inf"))
        weights = scores.softmax(-1)
        return self.c_proj((weights @ value).transpose(1, 2).contiguous().view(batch, tokens, width)), weights


class SmallGPT(nn.Module):
    """Blocks of attention and an MLP, as in nanoGPT."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.tokens, self.attention = nn.Embedding(VOCAB, WIDTH), nn.ModuleList(SlowAttention() for _ in range(layers))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, input_ids: Tensor, output_attentions: bool = False) -> tuple[Tensor, list[Tensor]]:
        x, kept = self.tokens(input_ids), []
        for attention, mlp in zip(self.attention, self.mlp, strict=True):
            output, weights = attention(self.norm(x))
            kept += [weights] if output_attentions else []
            x = x + output
            x = x + mlp(x)
        return x, kept


def bloom(layers: int, tokens: int) -> nn.Module:
    return BloomModel(BloomConfig(vocab_size=VOCAB, hidden_size=WIDTH, n_layer=layers, n_head=HEADS))


def gptj(layers: int, tokens: int) -> nn.Module:
    sizes = {"n_embd": WIDTH, "n_layer": layers, "n_head": HEADS, "n_positions": tokens}
    return GPTJModel(GPTJConfig(vocab_size=VOCAB, rotary_dim=WIDTH // HEADS, **sizes))


def deberta(layers: int, tokens: int) -> nn.Module:
    relative = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_position_embeddings": tokens}
    return DebertaModel(DebertaConfig(vocab_size=VOCAB, num_hidden_layers=layers, type_vocab_size=0, **relative))


MODELS: dict[str, Callable[[int, int], nn.Module]] = {
    "BLOOM, adapter": bloom,
    "GPT-J, adapter": gptj,
    "DeBERTa, adapter": deberta,
    "small GPT, dense capture": lambda layers, _: SmallGPT(layers),
}


def times(name: str, layers: int, tokens: int) -> dict[str, list[float]]:
    """A model reads one text."""
    model, input_ids = MODELS[name](layers, tokens).eval(), torch.randint(3, VOCAB, (1, tokens))
    unwatched, with_weights = forward(model, input_ids), forward(model, input_ids, output_attentions=True)
    options: dict[str, dict[str, Any]] = {"no measures": {}, "entropy and received": {"measure": MEASURES}}
    variants: dict[str, Run] = {each: watched(model, unwatched, **given) for each, given in options.items()}
    variants["unwatched, without weights"] = unwatched
    return {
        f"time relative to the model with output_attentions=True: {name}, {each}, {tokens}": relative_time(
            run, with_weights, ROUNDS
        )
        for each, run in variants.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="*", default=[128, 512, 1024], help="tokens that a model reads")
    parser.add_argument("--layers", type=int, default=6, help="layers of each model")
    arguments = parser.parse_args()
    torch.manual_seed(SEED)
    memory_kept = keep_freed_memory()
    ratios: dict[str, list[float]] = {}
    with warnings.catch_warnings(action="ignore"):  # that weights are dense
        for tokens in arguments.lengths:
            for name in MODELS:
                ratios |= times(name, arguments.layers, tokens)
    report("own_softmax", ratios, SEED, layers=arguments.layers, memory_kept=memory_kept)


if __name__ == "__main__":
    main()
