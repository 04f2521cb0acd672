"""What watching a model costs: transformers' BERT base and GPT-2 small with random weights, watched and unwatched.

Both models compute by SDPA, in float32; beside them BERT with dense attention, which returns all weights, and, where
TransformerLens is installed, its `run_with_cache` of the same model, told to keep the weights alone. Generation is
greedy, of one text. The C library is told to keep what is freed, for all ways alike: to be given memory anew, page by
page, takes a virtual machine up to 2 ms a megabyte, which would be counted as the price of holding queries and keys, or
weights.

Run: ``python benchmarks/watching.py``; smaller, to see that it runs: ``--lengths 128 --new 16``.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from side_by_side import ratios, report
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, BertModel, GenerationConfig, GPT2Config, GPT2LMHeadModel

import regard

SEED, ROUNDS, VOCAB, PROMPT = 0, 7, 1000, 32
ASKED = ["entropy", "received"]
Run = Callable[[], object]
KEPT = {"M_TRIM_THRESHOLD": -1, "M_MMAP_THRESHOLD": -3}
"""glibc's names for what decides whether freed memory is given back (mallopt(3))."""


def keep_memory() -> bool:
    """Have the C library keep what is freed; whether it does."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another library than glibc
        return False
    return all(mallopt(option, 2**31 - 1) for option in KEPT.values())


def bert(tokens: int, attention: str = "sdpa") -> BertModel:
    """BERT base, with as many positions as tokens; few words, which are no work before its head."""
    config = BertConfig(vocab_size=VOCAB, max_position_embeddings=tokens, attn_implementation=attention)
    return BertModel(config, add_pooling_layer=False).eval()


def reads(model: Any, words: Tensor, **options: Any) -> Run:
    def run() -> object:
        with torch.no_grad():
            return model(words, **options)

    return run


def watched(model: Any, run: Run, **options: Any) -> Callable[[], regard.watching.WatchResult]:
    def look() -> regard.watching.WatchResult:
        with regard.watch(model, **options) as result:
            run()
        return result

    return look


def forward(tokens: int) -> dict[str, list[float]]:
    """One text read, in times of the unwatched model."""
    model, dense, words = bert(tokens), bert(tokens, "eager"), torch.randint(VOCAB, (1, tokens))
    dense.load_state_dict(model.state_dict())
    bare = reads(model, words)
    ways: dict[str, Run] = {
        "watched with entropy and received": watched(model, bare, measure=ASKED),
        "watched, nothing asked": watched(model, bare),
        "dense attention that returns its weights": reads(dense, words, output_attentions=True),
    }
    if importlib.util.find_spec("transformer_lens"):
        ways["TransformerLens' run_with_cache of the weights"] = with_lens(dense, words)
    return {f"BERT base, {name}, {tokens}": ratios(bare, way, ROUNDS) for name, way in ways.items()}


def with_lens(model: BertModel, words: Tensor) -> Run:
    from transformer_lens.model_bridge.sources._bridge_builder import (  # pyright: ignore[reportMissingImports]
        build_bridge_from_module,
    )

    whole = BertForMaskedLM(model.config).eval()  # it knows BERT by this head, which is small here
    whole.bert.load_state_dict(model.state_dict())
    bridge = build_bridge_from_module(whole, "BertForMaskedLM", hf_config=copy.deepcopy(model.config)).eval()

    def run() -> object:
        with torch.no_grad():
            _, cache = bridge.run_with_cache(words, names_filter=lambda name: name.endswith("hook_pattern"))
        assert len(cache) == model.config.num_hidden_layers
        return cache

    return run


def generation(new: int) -> dict[str, list[float]]:
    """One text written, in times of the unwatched model."""
    model = GPT2LMHeadModel(GPT2Config(attn_implementation="sdpa")).eval()
    model.generation_config = GenerationConfig(pad_token_id=0)
    prompt = torch.randint(3, 50257, (1, PROMPT))

    def bare() -> object:
        real = torch.ones_like(prompt)
        return model.generate(prompt, attention_mask=real, do_sample=False, max_new_tokens=new, min_new_tokens=new)

    ways: dict[str, Run] = {
        "watched with received": watched(model, bare, measure=["received"], keep_qk=False),
        "watched, nothing asked": watched(model, bare),
    }
    return {f"GPT-2 small, generation of {new}, {name}": ratios(bare, way, ROUNDS) for name, way in ways.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="*", default=[512, 2048], help="tokens that BERT reads")
    parser.add_argument("--new", type=int, default=256, help="tokens that GPT-2 writes")
    arguments = parser.parse_args()
    torch.manual_seed(SEED)
    kept = keep_memory()
    found = {what: each for tokens in arguments.lengths for what, each in forward(tokens).items()}
    found |= generation(arguments.new)
    report("watching", found, SEED, prompt=PROMPT, memory_kept=kept)


if __name__ == "__main__":
    main()
