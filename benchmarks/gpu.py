"""On a GPU: `regard.attend` and a watched BERT compared with SDPA, dense attention and the unwatched model.

First the results are compared with float64 on the CPU. Then come times (medians of ratios; CUDA events) and peak memory
above the inputs. Kernels in Triton compute these measures.

Run: ``python benchmarks/gpu.py``; for a quick check: ``--keys 256 --rounds 1``.
"""

from __future__ import annotations

import argparse
import gc
import statistics
from collections.abc import Callable
from typing import Any

import torch
from attention import dense
from timing import report
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard

SEED, HEADS, HEAD_DIM = 0, 32, 128
MEASURES = ["entropy", "received"]
DENSE = [lambda scores, weights: torch.special.entr(weights).sum(-1), lambda scores, weights: weights.sum(-2)]
Run = Callable[[], object]


def milliseconds(run: Run) -> float:
    """Time of a call on the GPU."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def relative(ours: Run, baseline: Run, rounds: int) -> list[float]:
    """Our time divided by the baseline's, in turn, after three warm-up rounds."""
    for _ in range(3):
        milliseconds(ours), milliseconds(baseline)
    return [milliseconds(ours) / milliseconds(baseline) for _ in range(rounds)]


def peak_megabytes(run: Run) -> float:
    """Peak memory of a call above what was allocated before."""
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def qkv(n: int, dtype: torch.dtype, requires_grad: bool = False) -> list[Tensor]:
    """Random query, key and value on the GPU."""
    return [torch.randn(1, HEADS, n, HEAD_DIM, device="cuda", dtype=dtype).requires_grad_(requires_grad) for _ in "qkv"]


def check() -> dict[str, float]:
    """The largest difference from float64 on the CPU, by dtype, over masks, scores, measures and gradients."""
    errors: dict[str, float] = {}
    masks = [None, regard.Causal(), regard.Window(17, 0), regard.Padding(torch.tensor([80, 100]))]
    slopes = torch.rand(4)
    scores = [
        lambda device: regard.ScaledDotProduct(),
        lambda device: regard.SoftCap(regard.ScaledDotProduct(), 5.0) + regard.Alibi(slopes.to(device)),
    ]
    measures = ["entropy", "lse", "max", "received", "mean_distance", regard.BlockMean(16), regard.TopK(4)]
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        worst = 0.0
        for mask in masks:
            for score in scores:
                inputs = [torch.randn(2, heads, 100, 32, dtype=torch.float64) for heads in (4, 2, 2)]
                results = []
                for device, precision in (("cpu", torch.float64), ("cuda", dtype)):
                    parts = [part.detach().to(dtype).to(device, precision).requires_grad_() for part in inputs]
                    there = mask.to(device) if mask is not None else None
                    att = regard.attend(*parts, mask=there, score=score(device), measure=measures)
                    (att.output.double().sum() + att.measured["entropy"].double().sum()).backward()
                    results.append([att.output, att.measured["received"], *(part.grad for part in parts)])
                for expected, found in zip(*results, strict=True):
                    difference = (found.double().cpu() - expected.double()).abs().max() / expected.abs().max()
                    worst = max(worst, difference.item())
        errors[str(dtype).removeprefix("torch.")] = worst
    return errors


def measure_attend(keys: list[int], rounds: int, ratios: dict[str, list[float]], memory: dict[str, float]) -> None:
    """Times and memory of `attend` next to SDPA and dense attention."""
    for dtype in (torch.bfloat16, torch.float32):
        name = str(dtype).removeprefix("torch.")
        for n in keys:
            inputs = qkv(n, dtype)

            def no_grad(function: Callable[..., object], *args: Any, **options: Any) -> Run:
                def run() -> object:
                    with torch.no_grad():
                        return function(*args, **options)

                return run

            baseline = no_grad(sdpa, *inputs)
            for label, options in (("output", {}), ("output, entropy and received", {"measure": MEASURES})):
                ours = no_grad(regard.attend, *inputs, **options)
                ratios[f"time relative to SDPA: {label}, {name}, {n}"] = relative(ours, baseline, rounds)
                memory[f"{label}, {name}, {n}"] = peak_megabytes(ours)
            if n <= 8192:
                whole = no_grad(dense, *inputs, DENSE)
                key = f"time relative to SDPA: dense PyTorch, the same answers, {name}, {n}"
                ratios[key] = relative(whole, baseline, rounds)
                memory[f"dense PyTorch, {name}, {n}"] = peak_megabytes(whole)


def measure_gradients(rounds: int, ratios: dict[str, list[float]]) -> None:
    """Forward and backward, 4,096 keys, bfloat16."""
    inputs = qkv(4096, torch.bfloat16, requires_grad=True)

    def ours() -> None:
        att = regard.attend(*inputs, measure=MEASURES)
        (att.output.sum() + att.measured["entropy"].sum() + att.measured["received"].square().sum()).backward()

    ratios["time relative to SDPA: forward and backward with entropy and received, bfloat16, 4096"] = relative(
        ours, lambda: sdpa(*inputs).sum().backward(), rounds
    )


def measure_watch(rounds: int, ratios: dict[str, list[float]]) -> None:
    """BERT base with random weights, batch 8, float32 and bfloat16."""
    from transformers import BertConfig, BertModel

    for dtype in (torch.bfloat16, torch.float32):
        models = {
            name: BertModel(BertConfig(max_position_embeddings=2048, attn_implementation=name)).eval().cuda().to(dtype)
            for name in ("sdpa", "eager")
        }
        for n in (512, 2048):
            ids = torch.randint(1000, (8, n), device="cuda")
            unwatched = forward(models["sdpa"], ids)
            cases = {
                "no measures": watched(models["sdpa"], ids, []),
                "entropy and received": watched(models["sdpa"], ids, MEASURES),
                "eager attention with output_attentions=True": forward(models["eager"], ids, output_attentions=True),
            }
            for label, run in cases.items():
                title = f"time relative to the unwatched model: BERT base, batch 8, {label}"
                name = str(dtype).removeprefix("torch.")
                ratios[f"{title}, {name}, {n}"] = relative(run, unwatched, rounds)


def forward(model: Any, ids: Tensor, **options: Any) -> Run:
    """A forward pass without gradients."""

    def run() -> None:
        with torch.no_grad():
            model(ids, **options)

    return run


def watched(model: Any, ids: Tensor, measure: list[str]) -> Run:
    """The same, watched."""

    def run() -> None:
        with regard.watch(model, measure=measure, keep_qk=not measure):
            forward(model, ids)()

    return run


def main() -> None:
    """Check, then measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, nargs="*", default=[512, 1024, 4096, 16384])
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    torch.manual_seed(SEED)
    errors = check()
    print("gpu: largest difference from float64 relative to the largest entry:", errors, flush=True)
    ratios: dict[str, list[float]] = {}
    memory: dict[str, float] = {}
    settings = {"heads": HEADS, "head_dim": HEAD_DIM, "errors": errors, "megabytes": memory}
    settings["gpu"] = torch.cuda.get_device_name()
    for part in (
        lambda: measure_attend(arguments.keys, arguments.rounds, ratios, memory),
        lambda: measure_gradients(arguments.rounds, ratios),
        lambda: measure_watch(arguments.rounds, ratios),
    ):
        part()
        for name, values in ratios.items():
            print(f"gpu: {name}: {statistics.median(values):.2f}", flush=True)
    report("gpu", ratios, SEED, **settings)


if __name__ == "__main__":
    main()
