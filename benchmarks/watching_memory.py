"""What watching a model takes in memory and on disk: transformers' BERT base with random weights, 8,192 tokens.

All is float32. Memory is the most that is resident while one text is read, above what was resident before; each run in
a process of its own, unwatched and watched with entropy and received in turn. The file is what `regard.load` reads, in
times of the bytes that all weights would take in float32.

Run: ``python benchmarks/watching_memory.py``; smaller, to see that it runs: ``--tokens 512``.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from attention import peak
from side_by_side import report

from watching import ASKED, SEED, VOCAB, bert, reads, watched

ROUNDS = 3


def memory_of(tokens: int, watching: bool) -> float:
    """Megabytes that reading one text takes, with the answers if it is watched."""
    model, words = bert(tokens), torch.randint(VOCAB, (1, tokens))
    reads(model, words[:, :64])()  # what is made once is not counted
    bare = reads(model, words)
    return peak(watched(model, bare, measure=ASKED, keep_qk=False) if watching else bare)


def share_on_disk(tokens: int, dtype: torch.dtype) -> float:
    """The size of a recording by that of all weights in float32."""
    model = bert(tokens)
    result = watched(model, reads(model, torch.randint(VOCAB, (1, tokens))), measure=ASKED)()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bert.regard"
        result.recording.save(path, dtype=dtype)
        config = model.config
        return path.stat().st_size / (config.num_hidden_layers * config.num_attention_heads * tokens**2 * 4)


def alone(function: Callable[..., float], *arguments: Any) -> float:
    """What a function gives in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(function, *arguments).result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192, help="of the text")
    tokens = parser.parse_args().tokens
    megabytes: dict[str, list[float]] = {"unwatched": [], "watched": []}
    for _ in range(ROUNDS):
        for name, found in megabytes.items():
            found.append(round(alone(memory_of, tokens, name == "watched"), 1))
    above = statistics.median(megabytes["watched"]) - statistics.median(megabytes["unwatched"])
    kinds = (torch.float32, torch.float16)
    shares = {str(kind).removeprefix("torch."): round(alone(share_on_disk, tokens, kind), 5) for kind in kinds}
    print(
        f"watching-memory: {tokens:,} tokens: {above:.0f} MB above the unwatched run; of all weights on disk: {shares}"
    )
    report("watching-memory", {}, SEED, tokens=tokens, megabytes=megabytes, above=round(above, 1), share_on_disk=shares)


if __name__ == "__main__":
    main()
