"""The functions of regard.jobs against the way of transformers, which is eager attention.

contacts: ESM-2 of 12 layers of 20 heads, width 480 (the sizes of esm2_t12_35M), predicts the contacts of a protein.
word_timestamps: Whisper base (6 + 6 layers of 8 heads, width 512) finds the times of tokens in 30 seconds.

Both have random weights in float32, and the two of a pair run in turn. Memory is the peak above that before, in
processes of their own. Where eager attention would need more memory than `--max-gigabytes`, only ours runs.

Run: ``python benchmarks/jobs.py``; for a quick check: ``--residues 64 --new 4 --rounds 1``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from memory import in_subprocess, peak_megabytes
from timing import Run, relative_time, report, seconds
from transformers import EsmConfig, EsmModel, WhisperConfig, WhisperForConditionalGeneration

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


JOBS: dict[str, Callable[[int], dict[str, Run]]] = {"contacts": contacts, "word_timestamps": word_timestamps}


def memory_of(job: str, size: int, implementation: str) -> float:
    """Peak memory in MB of a job."""
    torch.manual_seed(SEED)
    run = JOBS[job](size)[implementation]
    JOBS[job](16)[implementation]()  # warm-up: allocates what is kept between calls
    return peak_megabytes(run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--residues", type=int, nargs="*", default=[128, 512, 1024, 4000], help="sizes of proteins")
    parser.add_argument("--new", type=int, nargs="*", default=[32, 200], help="tokens that Whisper generates")
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
    ):
        for size in sizes:
            torch.manual_seed(SEED)
            runs, name = JOBS[job](size), f"{job}, {size:,} {unit}"
            is_too_large = job == "contacts" and 3 * LAYERS * HEADS * size**2 * 4 > arguments.max_gigabytes * 1e9
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
