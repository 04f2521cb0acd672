"""On a GPU: `regard.attend`, decoding, and watched models, compared with what they replace.

First the results are compared with float64 on the CPU. Then come times (medians of ratios; all runs in turn, CUDA
events), peak memory above the inputs, and the share of the peak of a matrix product. It stops in time for a borrowed
GPU and writes what it has.

Run: ``python benchmarks/gpu.py``; with ``--dry-run``, tiny sizes on the CPU show that it runs.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import gpu_peers as peers
import torch
from gpu_clock import Clock, Run, without_gradients
from gpu_models import measure_models
from timing import report
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard
from regard.diagnostics.cases import CASES
from regard.diagnostics.comparison import compare
from regard.ops.kernels.dispatch import KERNELS

SEED, HEADS, MAX_DENSE_KEYS = 0, 32, 8192
MEASURES = {
    "output": [],
    "output and received": ["received"],
    "output, entropy and received": ["entropy", "received"],
    "output and four measures": ["entropy", "received", "max", "mean_distance"],
}
WITH_GRADIENTS = {"output": [], "entropy and received": ["entropy", "received"]}
RELATIVE = "time relative to SDPA"


@dataclass(frozen=True)
class Case:
    """A call of attention, whose first four values a table of the page has."""

    dtype: torch.dtype
    keys: int
    head_dim: int = 128
    mask: str = "full"
    batch: int = 1
    has_backward: bool = False
    with_flex: bool = False

    def __str__(self) -> str:
        name = f"{str(self.dtype).removeprefix('torch.')}, {self.keys}"
        others = [] if self.head_dim == 128 else [f"head_dim {self.head_dim}"]
        others += [] if self.mask == "full" else [self.mask]
        others += [] if self.batch == 1 else [f"batch {self.batch}"]
        return ", ".join([name, *others])

    def products(self) -> float:
        """Floating-point operations of one matrix product over all allowed pairs."""
        width = {"full": self.keys, "causal": self.keys / 2, "window": min(1024, self.keys)}[self.mask]
        return 2.0 * self.batch * HEADS * self.keys * width * self.head_dim


def cases(device: str) -> list[Case]:
    """In the order of their importance."""
    if device == "cpu":
        return [Case(torch.float32, 64, 16, "causal", has_backward=True), Case(torch.bfloat16, 64)]
    half = Case(torch.bfloat16, 16384, has_backward=True, with_flex=True)
    return [
        half,
        replace(half, mask="causal"),
        *(replace(half, keys=n, with_flex=n == 4096) for n in (4096, 512)),
        *(replace(half, keys=n, mask="causal", with_flex=False) for n in (4096, 512)),
        replace(half, head_dim=64, with_flex=False),
        replace(half, head_dim=64, mask="causal", with_flex=False),
        replace(half, mask="window", with_flex=False, has_backward=False),
        *(Case(torch.float32, n) for n in (4096, 512)),
        Case(torch.bfloat16, 1024, batch=16, has_backward=True),
        Case(torch.bfloat16, 131072, mask="causal"),
        Case(torch.bfloat16, 1024, has_backward=True),
        Case(torch.float32, 16384),
    ]


def peak_megabytes(run: Run, device: str) -> float:
    """Peak memory of a call above what was allocated before."""
    if device == "cpu":
        return 0.0
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def measure_attend(case: Case, clock: Clock, memory: dict[str, float]) -> None:
    """Forward passes, and forward and backward ones."""
    shape = case.batch, HEADS if clock.device == "cuda" else 2, case.keys, case.head_dim
    parts = [torch.randn(shape, device=clock.device, dtype=case.dtype) for _ in "qkv"]
    is_causal = case.mask == "causal"
    mask = {"full": None, "causal": regard.Causal(), "window": regard.Window(1023, 0)}[case.mask]

    def ours(measures: list[str], tensors: list[Tensor]) -> Run:
        return lambda: regard.attend(*tensors, mask=mask, measure=measures)

    runs = peers.backends(parts, is_causal)
    runs |= {name: ours(measures, parts) for name, measures in MEASURES.items()}
    runs |= peers.colreduce(parts, is_causal)
    if case.keys <= MAX_DENSE_KEYS:
        runs["dense PyTorch, the same answers"] = peers.dense(parts, is_causal)
    if case.with_flex and clock.device == "cuda":
        runs |= peers.flex(parts, is_causal)
    runs = {name: without_gradients(run) for name, run in runs.items()}
    clock.compare(runs, "SDPA", RELATIVE, str(case))
    for name, label in (("output, entropy and received", None), ("dense PyTorch, the same answers", "dense PyTorch")):
        if name in runs:
            memory[f"{label or name}, {case}"] = peak_megabytes(runs[name], clock.device)
    if not case.has_backward:
        return
    leaves = [part.requires_grad_() for part in parts]

    def trained(measures: list[str]) -> Run:
        def run() -> object:
            att = regard.attend(*leaves, mask=mask, measure=measures)
            results = [att.output, *att.measured.values()]
            return torch.autograd.grad(results, leaves, [torch.ones_like(each) for each in results])

        return run

    ends = peers.backends(leaves, is_causal).items()
    both = {f"{name}, forward and backward": peers.with_backward(run, leaves) for name, run in ends}
    both |= {f"forward and backward with {what}": trained(own) for what, own in WITH_GRADIENTS.items()}
    clock.compare(both, "SDPA, forward and backward", RELATIVE, str(case))


def measure_decode(clock: Clock) -> None:
    """One query of each of 16 sequences, with 8 heads of keys."""
    for keys in (64,) if clock.device == "cpu" else (4096, 32768):
        query = torch.randn(16, HEADS, 1, 128, device=clock.device, dtype=torch.bfloat16)
        key, value = torch.randn(2, 16, 8, keys, 128, device=clock.device, dtype=torch.bfloat16).unbind()
        runs: dict[str, Run] = {"SDPA": lambda q=query, k=key, v=value: sdpa(q, k, v, enable_gqa=True)}
        for name in ("output", "output and received"):
            runs[f"decode: {name}"] = lambda q=query, k=key, v=value, own=MEASURES[name]: regard.attend(
                q, k, v, measure=own
            )
        runs = {name: without_gradients(run) for name, run in runs.items()}
        clock.compare(runs, "SDPA", RELATIVE, f"bfloat16, {keys}, one query")


def host_microseconds(clock: Clock, rounds: int = 300) -> dict[str, float]:
    """Time of the host for a call of 8 × 64 tokens."""
    query, key, value = torch.randn(3, 8, 12, 64, 64, device=clock.device, dtype=torch.bfloat16).unbind()
    runs = {"SDPA": lambda: sdpa(query, key, value)}
    runs |= {
        name: lambda own=measures: regard.attend(query, key, value, measure=own) for name, measures in MEASURES.items()
    }
    found: dict[str, float] = {}
    for name, run in runs.items():
        for _ in range(20):
            run()
        start = time.perf_counter()
        for _ in range(rounds):
            run()
        found[name] = (time.perf_counter() - start) / rounds * 1e6
        if clock.device == "cuda":
            torch.cuda.synchronize()
    return found


def errors(device: str) -> Iterator[tuple[str, float]]:
    """By dtype, the largest difference of the Triton kernel from the definition."""
    kernel = next(each for each in KERNELS if each.name == ("triton" if device == "cuda" else "native"))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        found = [each for case in CASES[::6] for each in compare(kernel, case, dtype, torch.device(device))]
        for wrong in (each for each in found if each.is_wrong):
            print(f"gpu: {wrong}", flush=True)
        yield str(dtype).removeprefix("torch."), max((each.difference for each in found), default=0.0)


def main() -> None:
    """Check, then measure; write whatever is there at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=330, help="seconds")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on the CPU; writes nothing")
    arguments = parser.parse_args()
    torch.manual_seed(SEED)
    device = "cpu" if arguments.dry_run else "cuda"
    clock = Clock(device, arguments.budget, 1 if arguments.dry_run else arguments.rounds)
    memory: dict[str, float] = {}
    settings: dict[str, Any] = {"heads": HEADS, "head_dim": 128, "megabytes": memory}
    settings["errors"] = dict(errors(device))
    print("gpu: largest difference from float64 relative to the largest entry:", settings["errors"], flush=True)
    settings["host_microseconds"] = host_microseconds(clock, 3 if arguments.dry_run else 300)
    measure_decode(clock)
    measure_models(clock)
    for case in cases(device):
        if clock.is_over(0.9):
            print(f"gpu: the budget is spent; left out: {case} and what follows", flush=True)
            break
        measure_attend(case, clock, memory)
        settings.setdefault("tflops", {})[str(case)] = 2 * case.products() / clock.medians[f"output, {case}"] / 1e9
    settings["milliseconds"] = clock.medians
    if not arguments.dry_run:
        a, b = torch.randn(2, 8192, 8192, device=device, dtype=torch.bfloat16).unbind()
        settings["peak_tflops"] = 2 * 8192**3 / min(clock.milliseconds(lambda: a @ b) for _ in range(10)) / 1e9
        settings["gpu"], settings["triton"] = torch.cuda.get_device_name(), __import__("triton").__version__
        report("gpu", clock.ratios, SEED, **settings)


if __name__ == "__main__":
    main()
