"""Watched models on a GPU: BERT base and a generation of GPT-2, with random weights."""

from __future__ import annotations

from typing import Any

import torch
from gpu_clock import Clock, Run, without_gradients

import regard

RELATIVE = "time relative to the unwatched model"


def bert(clock: Clock, tokens: int, dtype: torch.dtype) -> tuple[dict[str, Run], str]:
    """BERT base with random weights, batch 8, unwatched, watched and with eager attention."""
    from transformers import BertConfig, BertModel

    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    sizes: dict[str, Any] = small if clock.device == "cpu" else {}
    models = {
        name: BertModel(BertConfig(max_position_embeddings=2048, attn_implementation=name, **sizes))
        .eval()
        .to(clock.device, dtype)
        for name in ("sdpa", "eager")
    }
    ids = torch.randint(1000, (8, tokens), device=clock.device)

    def watched(measure: list[str]) -> Run:
        def run() -> None:
            with regard.watch(models["sdpa"], measure=measure, keep_qk=not measure):
                models["sdpa"](ids)

        return run

    runs: dict[str, Run] = {
        "unwatched": lambda: models["sdpa"](ids),
        "no measures": watched([]),
        "entropy and received": watched(["entropy", "received"]),
        "eager attention with output_attentions=True": lambda: models["eager"](ids, output_attentions=True),
    }
    return runs, f"{str(dtype).removeprefix('torch.')}, {tokens}"


def measure_models(clock: Clock) -> None:
    """A watched BERT base, and a watched generation of GPT-2."""
    from transformers import GPT2Config, GPT2LMHeadModel

    for dtype, tokens in ((torch.bfloat16, 512), (torch.float32, 512), (torch.bfloat16, 2048), (torch.float32, 2048)):
        runs, suffix = bert(clock, 16 if clock.device == "cpu" else tokens, dtype)
        runs = {name: without_gradients(run) for name, run in runs.items()}
        runs = {f"BERT base, batch 8, {name}": run for name, run in runs.items()}
        clock.compare(runs, "BERT base, batch 8, unwatched", RELATIVE, suffix)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2} if clock.device == "cpu" else {}
    model = GPT2LMHeadModel(GPT2Config(**sizes)).eval().to(clock.device, torch.bfloat16)
    ids = torch.randint(1000, (1, 128), device=clock.device)
    new = 4 if clock.device == "cpu" else 32

    def generate() -> None:
        model.generate(ids, max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0)

    def watched() -> None:
        with regard.watch(model, measure=["received"]):
            generate()

    runs = {"GPT-2, unwatched": without_gradients(generate), "GPT-2, received": without_gradients(watched)}
    clock.compare(runs, "GPT-2, unwatched", RELATIVE, f"bfloat16, {new} new tokens")
