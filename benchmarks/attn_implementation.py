"""Models of transformers with attn_implementation="regard" against "sdpa", and against "eager" with all weights.

time: BERT base reads one text, GPT-2 small reads a prompt and generates greedily, ViT-B/16 reads one image, in float32
with random weights; with "regard" and SDPA both without weights, with "regard" and ``output_attentions=True`` against
SDPA without, and eager attention with ``output_attentions=True`` against SDPA. The two of a pair run in turn.

memory: peak memory of BERT base while it reads one text, above that before, in processes of their own; and of one that
is padded.

Run: ``python benchmarks/attn_implementation.py [time|memory]``; for a quick check: ``--rounds 1 --new 8``.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
from memory import in_subprocess, peak_megabytes
from timing import Run, relative_time, report
from transformers import BertConfig, BertModel, GenerationConfig, GPT2Config, GPT2LMHeadModel, ViTConfig, ViTModel

import regard.transformers  # noqa: F401 (registers the implementation)
from watching import keep_freed_memory

SEED, MEMORY_ROUNDS, VOCAB = 0, 3, 1000
WEIGHTS = {"output_attentions": True}


def bert(tokens: int) -> Callable[[str], Any]:
    def make(implementation: str) -> BertModel:
        config = BertConfig(vocab_size=VOCAB, max_position_embeddings=tokens, attn_implementation=implementation)
        return BertModel(config, add_pooling_layer=False).eval()

    return make


def gpt2(implementation: str) -> GPT2LMHeadModel:
    model = GPT2LMHeadModel(GPT2Config(attn_implementation=implementation)).eval()
    model.generation_config = GenerationConfig(pad_token_id=0)
    return model


def vit(implementation: str) -> ViTModel:
    return ViTModel(ViTConfig(attn_implementation=implementation)).eval()


def call(model: Any, *inputs: Any, **options: Any) -> Run:
    def run() -> object:
        with torch.no_grad():
            return model(*inputs, **options)

    return run


def generate(model: GPT2LMHeadModel, prompt: torch.Tensor, new: int, **options: Any) -> Run:
    options |= {"return_dict_in_generate": True, "do_sample": False, "max_new_tokens": new, "min_new_tokens": new}

    def run() -> object:
        return model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)

    return run


def compare(name: str, make: Callable[[str], Any], run: Callable[..., Run], rounds: int) -> dict[str, list[float]]:
    """Ratios of a kind of call: `run` makes one from a model and options."""
    models = {implementation: make(implementation) for implementation in ("sdpa", "regard", "eager")}
    for model in models.values():
        model.load_state_dict(models["sdpa"].state_dict())
    sdpa = run(models["sdpa"])
    variants = {
        "regard": run(models["regard"]),
        "regard with output_attentions=True": run(models["regard"], **WEIGHTS),
        "eager with output_attentions=True": run(models["eager"], **WEIGHTS),
    }
    return {
        f"time relative to sdpa: {name}, {each}": relative_time(ours, sdpa, rounds) for each, ours in variants.items()
    }


def report_time(lengths: list[int], new: int, rounds: int) -> None:
    memory_kept = keep_freed_memory()
    ratios: dict[str, list[float]] = {}
    for tokens in lengths:
        ids = torch.randint(VOCAB, (1, tokens))
        ratios |= compare(
            f"BERT base, {tokens}", bert(tokens), lambda model, ids=ids, **more: call(model, ids, **more), rounds
        )
    prompt = torch.randint(3, 50257, (1, 1024))
    ratios |= compare("GPT-2 small, prompt of 1,024", gpt2, lambda model, **more: call(model, prompt, **more), rounds)
    ratios |= compare(
        f"GPT-2 small, generation of {new}",
        gpt2,
        lambda model, **more: generate(model, prompt[:, :32], new, **more),
        rounds,
    )
    pixels = torch.randn(1, 3, 224, 224)
    ratios |= compare("ViT-B/16, 224 × 224", vit, lambda model, **more: call(model, pixels, **more), rounds)
    report("attn_implementation", ratios, SEED, section="time", memory_kept=memory_kept)


def memory_of(tokens: int, implementation: str, has_weights: bool, is_padded: bool) -> float:
    """Peak memory in MB of reading one text."""
    model, ids = bert(tokens)(implementation), torch.randint(VOCAB, (1, tokens))
    options: dict[str, Any] = WEIGHTS if has_weights else {}
    call(model, ids[:, :64], **options)()  # warm-up: allocates what is kept between calls
    mask = torch.ones_like(ids)
    mask[:, -tokens // 4 :] = 1 - int(is_padded)
    return peak_megabytes(call(model, ids, attention_mask=mask, **options))


def report_memory(tokens: int) -> None:
    cases = [("sdpa", False), ("regard", False), ("regard", True), ("eager", True)]
    megabytes: dict[str, float] = {}
    for is_padded in (False, True):
        for implementation, has_weights in cases:
            name = f"{implementation}{' with output_attentions=True' * has_weights}{', padded' * is_padded}"
            values = [
                in_subprocess(memory_of, tokens, implementation, has_weights, is_padded) for _ in range(MEMORY_ROUNDS)
            ]
            megabytes[name] = round(statistics.median(values), 1)
            print(f"attn_implementation: peak memory of BERT base, {tokens:,} tokens, {name}: {megabytes[name]:.0f} MB")
    report("attn_implementation", {}, SEED, section="memory", tokens=tokens, megabytes=megabytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help="time or memory; default: both")
    parser.add_argument("--lengths", type=int, nargs="*", default=[128, 512, 2048], help="time: tokens that BERT reads")
    parser.add_argument("--new", type=int, default=128, help="time: tokens that GPT-2 generates")
    parser.add_argument("--rounds", type=int, default=7, help="time: of each pair")
    parser.add_argument("--tokens", type=int, default=4096, help="memory: tokens that BERT reads")
    arguments = parser.parse_args()
    sections = arguments.sections or ["time", "memory"]
    torch.manual_seed(SEED)
    if "time" in sections:
        report_time(arguments.lengths, arguments.new, arguments.rounds)
    if "memory" in sections:
        report_memory(arguments.tokens)


if __name__ == "__main__":
    main()
