"""Eviction by dense attention: what `EvictingCache` keeps and what the model computes then, without any cache."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch.nn.functional import pad
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GptOssConfig,
    LlamaConfig,
)

LAYERS, HEADS, KV_HEADS, PROMPT, NEW = 2, 4, 2, 20, 5
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
SIZES |= {"vocab_size": 99, "initializer_range": 0.3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SHARED = SIZES | {"num_key_value_heads": KV_HEADS}
CONFIGS = {
    "llama": LlamaConfig(**SHARED),
    "gpt2": GPT2Config(**SIZES),
    "gemma2": Gemma2Config(**SHARED, head_dim=8, sliding_window=64, layer_types=["full_attention"] * LAYERS),
    "gemma3": Gemma3TextConfig(
        **SHARED, head_dim=8, sliding_window=8, layer_types=["sliding_attention", "full_attention"]
    ),
    "gpt_oss": GptOssConfig(
        **SHARED, head_dim=8, num_local_experts=2, num_experts_per_tok=1, layer_types=["full_attention"] * LAYERS
    ),
}


def make(name="llama", implementation="sdpa"):
    torch.manual_seed(0)
    config = deepcopy(CONFIGS[name])
    return AutoModelForCausalLM.from_config(config, attn_implementation=implementation).eval()


def tokens(batch=2, length=PROMPT + NEW, padding=False):
    """Ids, and their mask with padding on the left of the first sequence."""
    torch.manual_seed(1)
    ids, mask = torch.randint(3, 99, (batch, length)), torch.ones(batch, length).long()
    if padding:
        mask[0, :6] = 0
    return ids, mask


def read(model, cache, ids, mask=None, chunks=(PROMPT,)):
    """Logits of all tokens, read in chunks and then one by one, and the positions that each pass leaves."""
    logits, kept, start = [], [], 0
    sizes = [*chunks, *[1] * (ids.shape[1] - sum(chunks))]
    with torch.no_grad():
        for size in sizes:
            stop = start + size
            options = {}
            if mask is not None:
                options["attention_mask"] = mask[:, :stop]
                options["position_ids"] = (mask[:, :stop].cumsum(1) - 1).clamp(min=0)[:, start:]
            logits.append(model(ids[:, start:stop], past_key_values=cache, **options).logits)
            kept.append([layer.positions for layer in cache.layers])
            start = stop
    return torch.cat(logits, 1), kept


ALLOWED: dict[int, torch.Tensor] = {}
WEIGHTS: dict[int, torch.Tensor] = {}


def restricted(module, query, key, value, attention_mask, scaling, **options):
    """Dense attention to the keys in `ALLOWED`, (batch, heads, queries, keys), which keeps its weights."""
    group = query.shape[1] // key.shape[1]
    scores = query @ key.repeat_interleave(group, 1).mT * scaling
    scores = scores.masked_fill(~ALLOWED[module.layer_idx].repeat_interleave(group, 1), torch.finfo(torch.float32).min)
    WEIGHTS[module.layer_idx] = scores.softmax(-1)
    return (scores.softmax(-1) @ value.repeat_interleave(group, 1)).transpose(1, 2), WEIGHTS[module.layer_idx]


AttentionInterface.register("restricted", restricted)


def neighbors(scores, size=5):
    return pad(scores, (size // 2, size // 2)).unfold(-1, size, 1).mean(-1)


def dense_policy(policy, total, weights, alive, counts, window):
    """What a policy keeps, one head after the other: (kv_heads, tokens) bool.

    Args:
        policy: Its name.
        total: (kv_heads, tokens) all that was received until now.
        weights: (heads, queries, tokens) of the new queries.
        alive: (kv_heads, tokens) what could be attended to.
        counts: How many tokens each head keeps.
        window: How many of the last tokens.
    """
    queries, length = weights.shape[1:]
    by_head = weights.unflatten(0, (KV_HEADS, -1))
    kept = torch.zeros_like(alive)
    for head, count in enumerate(counts):
        present = alive[head].nonzero()[:, 0].tolist()
        last = {"h2o": count // 2, "snapkv": min(window or 0, count), "tova": 0}[policy]
        recent, older = present[len(present) - last :], present[: len(present) - last]
        if policy == "h2o":
            score = total[head]
        elif policy == "tova":
            score = weights[:, -1].mean(0)
        else:
            older = [place for place in present if place < length - min(window, queries)]
            score = torch.zeros(length)
            score[older] = neighbors(by_head[head, :, -window:].sum((0, 1))[older])
            older = [place for place in older if place not in recent]
        best = sorted(older, key=lambda place: -score[place])[: count - last]
        kept[head, recent + best] = True
    return kept


def reference(model, ids, mask, policy, counts, window, chunks=(PROMPT,)):
    """The logits and the kept positions, by dense attention to all tokens in each step, without any cache."""
    model = deepcopy(model)
    model.set_attn_implementation("restricted")
    batch, start = len(ids), 0
    alive = {layer: mask.bool()[:, None, :0].expand(-1, KV_HEADS, -1) for layer in range(LAYERS)}
    total = {layer: torch.zeros(batch, KV_HEADS, 0) for layer in range(LAYERS)}
    rows = {layer: torch.zeros(batch, KV_HEADS, 0, 0, dtype=torch.bool) for layer in range(LAYERS)}
    logits, kept = [], []
    for size in [*chunks, *[1] * (ids.shape[1] - sum(chunks))]:
        stop = start + size
        for layer in range(LAYERS):
            alive[layer] = torch.cat([alive[layer], mask.bool()[:, None, start:stop].expand(-1, KV_HEADS, -1)], 2)
            causal = torch.ones(size, stop, dtype=torch.bool).tril(start)
            new = alive[layer][:, :, None] & causal
            rows[layer] = ALLOWED[layer] = torch.cat([pad(rows[layer], (0, size)), new], 2)
        positions = (mask[:, :stop].cumsum(1) - 1).clamp(min=0)
        with torch.no_grad():
            logits.append(model(ids[:, :stop], position_ids=positions, use_cache=False).logits[:, start:])
        for layer in range(LAYERS):
            total[layer] = pad(total[layer], (0, size))
            for row in range(batch):
                weights = WEIGHTS[layer][row, :, start:] * mask[row, start:stop, None]
                total[layer][row] += weights.unflatten(0, (KV_HEADS, -1)).sum((1, 2))
                if policy == "snapkv" and size == 1:
                    continue
                of_layer = counts(layer, stop)
                if min(of_layer) < alive[layer].shape[2]:
                    alive[layer][row] = dense_policy(
                        policy, total[layer][row], weights, alive[layer][row], of_layer, window
                    )
        kept.append([alive[layer].clone() for layer in range(LAYERS)])
        start = stop
    return torch.cat(logits, 1), kept
