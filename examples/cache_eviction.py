"""Heavy hitters: a language model forgets most of what it has read, and what does that cost?

To go on with a text, a language model keeps key and value of each token that it has read. Few of them are ever looked
at: those that have received most attention so far are those that will be looked at. So half of a budget goes to these
heavy hitters, in each layer and head their own, and half to the last tokens; the rest is forgotten. Beside it the whole
budget goes to the last tokens. Here this is done once, between the two halves of each window of the text, and the
perplexity is that of the second halves; the paper does it after each token.

A model is a folder as transformers saves it, GPT-2 or Llama; ``regard.models.save_model(folder, model,
format="transformers")`` makes one of a GPT of this library.

Run: ``python examples/cache_eviction.py FOLDER text.txt``

Reference: Zhang et al. 2023, "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models".
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

import regard

BUDGETS = (1.0, 0.5, 0.25, 0.12)
Policy = Callable[[Tensor, int], Tensor]
"""From what each key received, (batch, heads, keys), to the numbers of those that stay, (batch, heads, budget)."""


def recent_only(received: Tensor, budget: int) -> Tensor:
    """The last keys."""
    keys = received.shape[2]
    return torch.arange(keys - budget, keys).expand(*received.shape[:2], -1)


def heavy_hitters(received: Tensor, budget: int) -> Tensor:
    """For one half the last keys, for the other those before them that received most; in their order."""
    recent = recent_only(received, budget // 2)
    older = received[..., : received.shape[2] - recent.shape[2]]
    return torch.cat([older.topk(budget - recent.shape[2]).indices, recent], 2).sort().values


POLICIES = {"heavy hitters": heavy_hitters, "recent only": recent_only}


def read(model: Any, words: Tensor) -> tuple[Any, list[Tensor]]:
    """The cache of some words, (batch, words), and for each layer what its keys received, (batch, kv_heads, words)."""
    with regard.watch(model, measure=["received"], keep_qk=False) as result:
        cache = model(words, use_cache=True).past_key_values
    shared = [layer.keys.shape[1] for layer in cache.layers]  # heads of queries may share one of keys
    received = [layer.measured["received"] for layer in result.layers]
    return cache, [each.unflatten(1, (heads, -1)).sum(2) for each, heads in zip(received, shared, strict=True)]


def evicted(cache: Any, kept: Sequence[Tensor]) -> Any:
    """A cache with some keys of each layer and head, and their values, alone."""
    cache = copy.deepcopy(cache)
    for layer, numbers in zip(cache.layers, kept, strict=True):
        layer.keys, layer.values = (
            part.gather(2, numbers[..., None].expand(-1, -1, -1, part.shape[3])) for part in (layer.keys, layer.values)
        )
    return cache


def loss_of(model: Any, words: Tensor, cache: Any, first: int) -> Tensor:
    """The cross entropies of words, (batch, words), each but the first, where a cache is of those before."""
    positions = torch.arange(first, first + words.shape[1])[None]
    logits = model(words, past_key_values=cache, position_ids=positions).logits
    return torch.nn.functional.cross_entropy(logits[0, :-1], words[0, 1:], reduction="none")


@torch.no_grad()
def perplexities(model: Any, words: Tensor, window: int) -> dict[tuple[str, float], float]:
    """The perplexity of the second halves of all windows of a text, (words,), by policy and budget."""
    losses: dict[tuple[str, float], list[Tensor]] = {(name, share): [] for share in BUDGETS for name in POLICIES}
    half = window // 2
    for part in words.unfold(0, window, window):
        cache, received = read(model, part[None, :half])
        for (name, share), found in losses.items():
            kept = [POLICIES[name](each, math.ceil(share * half)) for each in received]
            found.append(loss_of(model, part[None, half:], evicted(cache, kept), half))
    return {which: torch.cat(found).mean().exp().item() for which, found in losses.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Print what a language model loses that forgets most of its keys.")
    parser.add_argument("model", type=Path, help="a folder of transformers, with its tokenizer")
    parser.add_argument("text", type=Path)
    parser.add_argument("--window", type=int, default=512, help="tokens read at once")
    arguments = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(arguments.model).eval()
    words = AutoTokenizer.from_pretrained(arguments.model)(arguments.text.read_text(), return_tensors="pt").input_ids[0]
    if len(words) < arguments.window:
        parser.error(f"the text has {len(words)} tokens, fewer than one window of {arguments.window}")
    found = perplexities(model, words, arguments.window)
    print(f"{'budget':>8}{'keys':>8}" + "".join(f"{name:>16}" for name in POLICIES))
    for share in BUDGETS:
        keys = math.ceil(share * (arguments.window // 2))
        print(f"{share:8.0%}{keys:8}" + "".join(f"{found[name, share]:16.3f}" for name in POLICIES))


if __name__ == "__main__":
    main()
