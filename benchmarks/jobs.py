"""The functions of regard.jobs against the way of transformers, which is eager attention.

contacts: ESM-2 of 12 layers of 20 heads, width 480 (the sizes of esm2_t12_35M), predicts the contacts of a protein.
word_timestamps: Whisper base (6 + 6 layers of 8 heads, width 512) finds the times of tokens in 30 seconds.
eviction: a Llama of 4 layers of 16 heads, width 1,024, reads a prompt and keeps half of its keys by the policy H2O.
indexer: the loss of a lightning indexer (4 heads of 32) against the sum of 8 heads of 64, causal, forward and backward.
monitor: a training step of a Llama of 4 layers of 8 heads, width 512, and the numbers of its heads.

All have random weights in float32, and the two of a pair run in turn. Memory is the peak above that before, in
processes of their own. Where eager attention would need more memory than `--max-gigabytes`, only ours runs.

Run: ``python benchmarks/jobs.py``; for a quick check:
``--residues 64 --new 4 --prompt 64 --indexed 64 --step 64 --rounds 1``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from memory import in_subprocess, peak_megabytes
from timing import Run, relative_time, report, seconds
from transformers import (
    DynamicCache,
    EsmConfig,
    EsmModel,
    LlamaConfig,
    LlamaForCausalLM,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

import regard
from watching import keep_freed_memory

SEED = 0
LAYERS, HEADS = 12, 20


def contacts(residues: int) -> dict[str, Run]:
    """Ours, and eager `predict_contacts`."""
    config = EsmConfig(
        vocab_size=33,
        hidden_size=480,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=1920,
        pad_token_id=1,
        mask_token_id=32,
        position_embedding_type="rotary",
    )
    model = EsmModel(config, add_pooling_layer=False).eval()
    eager = deepcopy(model)
    eager.set_attn_implementation("eager")
    ids = torch.cat([torch.tensor([0]), torch.randint(4, 24, (residues,)), torch.tensor([2])])[None]

    def dense() -> torch.Tensor:
        with torch.no_grad():
            return eager.predict_contacts(ids, torch.ones_like(ids))

    return {"regard": lambda: regard.jobs.contacts(model, ids), "eager": dense}


def word_timestamps(new: int) -> dict[str, Run]:
    """Ours, and transformers alone."""
    config = WhisperConfig(
        d_model=512,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=2048,
    )
    model = WhisperForConditionalGeneration(config).eval()
    settings: Any = model.generation_config
    settings.alignment_heads = [[3, 1], [4, 2], [4, 3], [4, 7], [5, 1], [5, 2], [5, 4], [5, 6]]  # as many as base has
    settings.suppress_tokens = settings.begin_suppress_tokens = settings.max_length = None
    eager: Any = deepcopy(model)
    features = torch.randn(1, 80, 3000)
    call: dict[str, Any] = {"attention_mask": torch.ones(1, 3000).long(), "max_new_tokens": new, "min_new_tokens": new}

    def ours() -> object:
        with regard.jobs.word_timestamps(model):
            return model.generate(features, return_token_timestamps=True, **call)

    return {"regard": ours, "eager": lambda: eager.generate(features, return_token_timestamps=True, **call)}


def eviction(tokens: int) -> dict[str, Run]:
    """Ours, and the sums of the weights that eager attention returns."""
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=4,
        num_attention_heads=16,
        num_key_value_heads=8,
        max_position_embeddings=2**16,
    )
    model = LlamaForCausalLM(config).eval()
    eager = deepcopy(model)
    eager.set_attn_implementation("eager")
    ids, half = torch.randint(1000, (1, tokens)), tokens // 2

    def ours() -> object:
        cache = regard.jobs.EvictingCache(model, "h2o", half)
        with torch.no_grad():
            return model(ids, past_key_values=cache, logits_to_keep=1).logits, cache

    def dense() -> object:
        cache: Any = DynamicCache()
        with torch.no_grad():
            output = eager(ids, past_key_values=cache, logits_to_keep=1, output_attentions=True)
            for layer, weights in zip(cache.layers, output.attentions, strict=True):
                received = weights.sum(2).unflatten(1, (config.num_key_value_heads, -1)).sum(2)
                received[..., tokens - half // 2 :] = torch.inf
                index = received.topk(half).indices.sort().values[..., None].expand(-1, -1, -1, 64)
                layer.keys, layer.values = layer.keys.gather(2, index), layer.values.gather(2, index)
        return output.logits, cache

    return {"regard": ours, "eager": dense}


def indexer(tokens: int) -> dict[str, Run]:
    """Ours, and the sum of dense weights."""
    query, key = torch.randn(2, 1, 8, tokens, 64).unbind()
    parts = torch.randn(1, 4, tokens, 32), torch.randn(1, tokens, 32), torch.randn(1, 4, tokens)
    leaves = [part.requires_grad_() for part in parts]

    def ours() -> object:
        weights = regard.weights(query, key, mask=regard.Causal())
        return torch.autograd.grad(regard.nn.indexer_loss(weights, *leaves), leaves)

    def dense() -> object:
        later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        target = (query @ key.mT / 8).masked_fill(later, -torch.inf).softmax(-1).mean(1)
        scores = (leaves[0] @ leaves[1][:, None].mT).relu()
        index = torch.einsum("bhqk,bhq->bqk", scores, leaves[2]).masked_fill(later, -1e30)
        loss = torch.nn.functional.kl_div(index.log_softmax(-1), target, reduction="sum") / tokens
        return torch.autograd.grad(loss, leaves)

    return {"regard": ours, "eager": dense}


def monitor(tokens: int) -> dict[str, Run]:
    """Ours, and the same numbers of the weights that eager attention returns; scores are no part of them."""
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=4,
        num_attention_heads=8,
        max_position_embeddings=2**16,
    )
    model = LlamaForCausalLM(config)
    eager = deepcopy(model)
    eager.set_attn_implementation("eager")
    ids = torch.randint(1000, (1, tokens))
    watched = regard.watching.AttentionMonitor(model, every_n_steps=1)

    def step(of: Any, **options: Any) -> Any:
        output = of(ids, labels=ids, **options)
        output.loss.backward()
        of.zero_grad()
        return output

    def ours() -> object:
        with watched:
            step(model)
        return watched.metrics

    def dense() -> object:
        output = step(eager, output_attentions=True)
        with torch.no_grad():
            return [
                (torch.special.entr(weights).sum(3).mean((0, 2)), weights[..., 0].mean((0, 2)), weights.sum(2).amax(2))
                for weights in output.attentions
            ]

    return {"regard": ours, "eager": dense}


JOBS: dict[str, Callable[[int], dict[str, Run]]] = {
    "contacts": contacts,
    "word_timestamps": word_timestamps,
    "eviction": eviction,
    "indexer": indexer,
    "monitor": monitor,
}


def eager_gigabytes(job: str, size: int) -> float:
    """The memory of the maps of all heads that eager attention holds; 0 where it is little."""
    maps = {"contacts": 3 * LAYERS * HEADS, "eviction": 4 * 16, "indexer": 3 * (8 + 4), "monitor": 3 * 4 * 8}.get(
        job, 0
    )
    return maps * size**2 * 4 / 1e9


def memory_of(job: str, size: int, implementation: str) -> float:
    """Peak memory in MB of a job."""
    torch.manual_seed(SEED)
    run, warm_up = (JOBS[job](each)[implementation] for each in (size, 16))
    warm_up()  # allocates what is kept between calls; its model stays, or the run would use its memory
    return peak_megabytes(run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--residues", type=int, nargs="*", default=[128, 512, 1024, 4000], help="sizes of proteins")
    parser.add_argument("--new", type=int, nargs="*", default=[32, 200], help="tokens that Whisper generates")
    parser.add_argument("--prompt", type=int, nargs="*", default=[256, 2048, 16384], help="tokens that Llama reads")
    parser.add_argument("--indexed", type=int, nargs="*", default=[512, 4096, 16384], help="tokens of the indexer")
    parser.add_argument("--step", type=int, nargs="*", default=[256, 2048, 8192], help="tokens of a training step")
    parser.add_argument("--rounds", type=int, default=5, help="of each pair")
    parser.add_argument("--max-gigabytes", type=float, default=16, help="of eager attention")
    arguments = parser.parse_args()
    memory_kept = keep_freed_memory()
    ratios: dict[str, list[float]] = {}
    alone: dict[str, float] = {}
    megabytes: dict[str, float] = {}
    for job, sizes, unit in (
        ("contacts", arguments.residues, "residues"),
        ("word_timestamps", arguments.new, "tokens"),
        ("eviction", arguments.prompt, "tokens"),
        ("indexer", arguments.indexed, "tokens"),
        ("monitor", arguments.step, "tokens"),
    ):
        for size in sizes:
            torch.manual_seed(SEED)
            runs, name = JOBS[job](size), f"{job}, {size:,} {unit}"
            is_too_large = eager_gigabytes(job, size) > arguments.max_gigabytes
            if is_too_large:
                alone[name] = round(seconds(runs["regard"]), 1)
                print(f"jobs: {name}: {alone[name]} s; eager attention was not run")
            else:
                ratios[f"time relative to eager: {name}"] = relative_time(
                    runs["regard"], runs["eager"], arguments.rounds
                )
            for implementation in ("regard",) if is_too_large else ("regard", "eager"):
                peak = in_subprocess(memory_of, job, size, implementation)
                megabytes[f"{name}, {implementation}"] = round(peak, 1)
                print(f"jobs: peak memory, {name}, {implementation}: {peak:.0f} MB", flush=True)
    report("jobs", ratios, SEED, section="all", memory_kept=memory_kept, seconds=alone, megabytes=megabytes)


if __name__ == "__main__":
    main()
