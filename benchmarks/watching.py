"""What watching a model costs: transformers' BERT base and GPT-2 small with random weights, watched and unwatched.

Both models use SDPA in float32.

time: BERT reads one text, GPT-2 generates one greedily. BERT is also compared with eager attention, which returns all
weights, and, if TransformerLens is installed, with its `run_with_cache` of the weights. glibc is configured to keep
freed memory, because mapping new pages costs a virtual machine up to 2 ms per MB, in all variants alike.

memory: peak memory of BERT while it reads one text, above that before, in processes of their own; and the size of a
recording on disk relative to all weights in float32.

Run: ``python benchmarks/watching.py [time|memory]``; for a quick check: ``--lengths 128 --new 16 --tokens 512``.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import importlib.util
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from memory import in_subprocess, peak_megabytes
from timing import Run, relative_time, report
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, BertModel, GenerationConfig, GPT2Config, GPT2LMHeadModel

import regard

SEED, ROUNDS, MEMORY_ROUNDS, VOCAB, PROMPT = 0, 7, 3, 1000, 32
MEASURES = ["entropy", "received"]
EXACT_OUTPUT = "entropy and received with exact_output=False"
MALLOPT_THRESHOLDS = {"M_TRIM_THRESHOLD": -1, "M_MMAP_THRESHOLD": -3}
"""Options of mallopt(3) that decide whether freed memory goes back to the system."""


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory; False with another C library."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return all(mallopt(option, 2**31 - 1) for option in MALLOPT_THRESHOLDS.values())


def bert(tokens: int, attention: str = "sdpa") -> BertModel:
    """BERT base with this number of positions; its small vocabulary only shrinks the embedding table."""
    config = BertConfig(vocab_size=VOCAB, max_position_embeddings=tokens, attn_implementation=attention)
    return BertModel(config, add_pooling_layer=False).eval()


def forward(model: Any, input_ids: Tensor, **options: Any) -> Run:
    def run() -> object:
        with torch.no_grad():
            return model(input_ids, **options)

    return run


def watched(model: Any, run: Run, **options: Any) -> Callable[[], regard.watching.WatchResult]:
    def watch() -> regard.watching.WatchResult:
        with regard.watch(model, **options) as result:
            run()
        return result

    return watch


def forward_times(tokens: int) -> dict[str, list[float]]:
    """BERT reads one text."""
    model, eager, input_ids = bert(tokens), bert(tokens, "eager"), torch.randint(VOCAB, (1, tokens))
    eager.load_state_dict(model.state_dict())
    unwatched = forward(model, input_ids)
    variants: dict[str, Run] = {
        "entropy and received": watched(model, unwatched, measure=MEASURES),
        EXACT_OUTPUT: watched(model, unwatched, measure=MEASURES, exact_output=False),
        "no measures": watched(model, unwatched),
        "eager attention with output_attentions=True": forward(eager, input_ids, output_attentions=True),
    }
    if importlib.util.find_spec("transformer_lens"):
        variants["TransformerLens' run_with_cache of the weights"] = run_with_cache(eager, input_ids)
    return {
        f"time relative to the unwatched model: BERT base, {name}, {tokens}": relative_time(run, unwatched, ROUNDS)
        for name, run in variants.items()
    }


def run_with_cache(model: BertModel, input_ids: Tensor) -> Run:
    from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module

    with_head = BertForMaskedLM(model.config).eval()  # the architecture that TransformerLens supports
    with_head.bert.load_state_dict(model.state_dict())
    bridge = build_bridge_from_module(with_head, "BertForMaskedLM", hf_config=copy.deepcopy(model.config)).eval()

    def run() -> object:
        with torch.no_grad():
            _, cache = bridge.run_with_cache(input_ids, names_filter=lambda name: name.endswith("hook_pattern"))
        assert len(cache) == model.config.num_hidden_layers
        return cache

    return run


def generation_times(new: int) -> dict[str, list[float]]:
    """GPT-2 generates one text."""
    model = GPT2LMHeadModel(GPT2Config(attn_implementation="sdpa")).eval()
    model.generation_config = GenerationConfig(pad_token_id=0)
    prompt = torch.randint(3, 50257, (1, PROMPT))

    def unwatched() -> object:
        mask = torch.ones_like(prompt)
        return model.generate(prompt, attention_mask=mask, do_sample=False, max_new_tokens=new, min_new_tokens=new)

    variants: dict[str, Run] = {
        "received": watched(model, unwatched, measure=["received"], keep_qk=False),
        "no measures": watched(model, unwatched),
    }
    return {
        f"time relative to the unwatched model: GPT-2 small, generation of {new} tokens, {name}": relative_time(
            run, unwatched, ROUNDS
        )
        for name, run in variants.items()
    }


def memory_of(tokens: int, watching: bool) -> float:
    """Peak memory in MB of reading one text."""
    model, input_ids = bert(tokens), torch.randint(VOCAB, (1, tokens))
    forward(model, input_ids[:, :64])()  # warm-up: allocates what is kept between calls
    run = forward(model, input_ids)
    return peak_megabytes(watched(model, run, measure=MEASURES, keep_qk=False) if watching else run)


def size_on_disk(tokens: int, dtype: torch.dtype) -> float:
    """The size of a recording relative to all weights in float32."""
    model = bert(tokens)
    result = watched(model, forward(model, torch.randint(VOCAB, (1, tokens))), measure=MEASURES)()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bert.regard"
        result.recording.save(path, dtype=dtype)
        config = model.config
        return path.stat().st_size / (config.num_hidden_layers * config.num_attention_heads * tokens**2 * 4)


def report_time(lengths: list[int], new: int) -> None:
    memory_kept = keep_freed_memory()
    ratios = {name: values for tokens in lengths for name, values in forward_times(tokens).items()}
    ratios |= generation_times(new)
    report("watching", ratios, SEED, section="time", prompt=PROMPT, memory_kept=memory_kept)


def report_memory(tokens: int) -> None:
    megabytes: dict[str, list[float]] = {"unwatched": [], "watched": []}
    for _ in range(MEMORY_ROUNDS):
        for name, values in megabytes.items():
            values.append(round(in_subprocess(memory_of, tokens, name == "watched"), 1))
    additional = round(statistics.median(megabytes["watched"]) - statistics.median(megabytes["unwatched"]), 1)
    sizes = {
        str(dtype).removeprefix("torch."): round(in_subprocess(size_on_disk, tokens, dtype), 5)
        for dtype in (torch.float32, torch.float16)
    }
    print(
        f"watching: {tokens:,} tokens: {additional:.0f} MB more than unwatched; size relative to all weights: {sizes}"
    )
    settings = {"tokens": tokens, "megabytes": megabytes, "additional_megabytes": additional, "size_on_disk": sizes}
    report("watching", {}, SEED, section="memory", **settings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help="time or memory; default: both")
    parser.add_argument("--lengths", type=int, nargs="*", default=[128, 512, 2048], help="time: tokens that BERT reads")
    parser.add_argument("--new", type=int, default=256, help="time: tokens that GPT-2 generates")
    parser.add_argument("--tokens", type=int, default=8192, help="memory: tokens that BERT reads")
    arguments = parser.parse_args()
    sections = arguments.sections or ["time", "memory"]
    torch.manual_seed(SEED)
    if "time" in sections:
        report_time(arguments.lengths, arguments.new)
    if "memory" in sections:
        report_memory(arguments.tokens)


if __name__ == "__main__":
    main()
