"""Heavy hitters: evict most keys from the cache of a language model, and measure the perplexity.

A language model caches the key and value of each token. Few of them are attended to again, mostly those that received
most attention so far. So each layer and head keeps as many of these heavy hitters as of the last tokens, and evicts the
rest. The baseline keeps only the last tokens, with the same budget. Here keys are evicted once, between the two halves
of each window of the text, and the perplexity is that of the second halves; the paper evicts after each token.

The model is a GPT-2 or Llama folder of transformers; ``regard.models.save_model(folder, model, format="transformers")``
writes one from a GPT of this library.

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
"""Map the attention that each key received, (batch, heads, keys), to the keys to keep, (batch, heads, budget)."""


def recent_only(received: Tensor, budget: int) -> Tensor:
    """The last keys."""
    keys = received.shape[2]
    return torch.arange(keys - budget, keys).expand(*received.shape[:2], -1)


def heavy_hitters(received: Tensor, budget: int) -> Tensor:
    """Half of the budget for the last keys, half for the earlier keys that received most attention; in order."""
    recent = recent_only(received, budget // 2)
    older = received[..., : received.shape[2] - recent.shape[2]]
    return torch.cat([older.topk(budget - recent.shape[2]).indices, recent], 2).sort().values


POLICIES = {"heavy hitters": heavy_hitters, "recent only": recent_only}


def prefill(model: Any, input_ids: Tensor) -> tuple[Any, list[Tensor]]:
    """The cache of (batch, tokens), and what the keys of each layer received, (batch, kv_heads, tokens)."""
    with regard.watch(model, measure=["received"], keep_qk=False) as result:
        cache = model(input_ids, use_cache=True).past_key_values
    kv_heads = [layer.keys.shape[1] for layer in cache.layers]
    received = [layer.measured["received"] for layer in result.layers]
    # sum over the query heads that share a key head
    return cache, [layer.unflatten(1, (heads, -1)).sum(2) for layer, heads in zip(received, kv_heads, strict=True)]


def select_keys(cache: Any, kept: Sequence[Tensor]) -> Any:
    """A copy of the cache with only these keys and values of each layer, (batch, kv_heads, budget)."""
    cache = copy.deepcopy(cache)
    for layer, indices in zip(cache.layers, kept, strict=True):
        layer.keys, layer.values = (
            part.gather(2, indices[..., None].expand(-1, -1, -1, part.shape[3])) for part in (layer.keys, layer.values)
        )
    return cache


def loss_of(model: Any, input_ids: Tensor, cache: Any, first: int) -> Tensor:
    """Cross entropy of each token but the first, (tokens - 1,); `first` is the position of the first token."""
    positions = torch.arange(first, first + input_ids.shape[1])[None]
    logits = model(input_ids, past_key_values=cache, position_ids=positions).logits
    return torch.nn.functional.cross_entropy(logits[0, :-1], input_ids[0, 1:], reduction="none")


@torch.no_grad()
def perplexities(model: Any, input_ids: Tensor, window: int) -> dict[tuple[str, float], float]:
    """The perplexity of the second halves of all windows of a text, (tokens,), by policy and budget."""
    losses: dict[tuple[str, float], list[Tensor]] = {(policy, budget): [] for budget in BUDGETS for policy in POLICIES}
    half = window // 2
    for part in input_ids.unfold(0, window, window):
        cache, received = prefill(model, part[None, :half])
        for (policy, budget), values in losses.items():
            kept = [POLICIES[policy](layer, math.ceil(budget * half)) for layer in received]
            values.append(loss_of(model, part[None, half:], select_keys(cache, kept), half))
    return {key: torch.cat(values).mean().exp().item() for key, values in losses.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the perplexity of a model that evicts most keys.")
    parser.add_argument("model", type=Path, help="model folder of transformers with its tokenizer")
    parser.add_argument("text", type=Path)
    parser.add_argument("--window", type=int, default=512, help="tokens per window")
    arguments = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(arguments.model).eval()
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    input_ids = tokenizer(arguments.text.read_text(), return_tensors="pt").input_ids[0]
    if len(input_ids) < arguments.window:
        parser.error(f"text: expected at least one window of {arguments.window} tokens, got {len(input_ids)}")
    results = perplexities(model, input_ids, arguments.window)
    print(f"{'budget':>8}{'keys':>8}" + "".join(f"{name:>16}" for name in POLICIES))
    for budget in BUDGETS:
        keys = math.ceil(budget * (arguments.window // 2))
        print(f"{budget:8.0%}{keys:8}" + "".join(f"{results[policy, budget]:16.3f}" for policy in POLICIES))


if __name__ == "__main__":
    main()
