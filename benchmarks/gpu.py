"""On a GPU: `regard.attend`, decoding, and watched models, compared with what they replace.

First the results are compared with float64 on the CPU. Then come times (medians of ratios; all runs in turn, CUDA
events), peak memory above the inputs, and the share of the peak of a matrix product. It stops in time for a borrowed
GPU, reports what fails and goes on, and writes its results after each row.

Run: ``python benchmarks/gpu.py --minutes 5.5``; with ``--dry-run``, tiny sizes on the CPU show that it runs. A clone is
enough: ``PYTHONPATH=src python benchmarks/gpu.py``.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import gpu_peers as peers
import torch
from gpu_clock import Clock, Run, reported, without_gradients
from gpu_models import measure_models
from timing import report, write
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
        with reported(f"host time, {name}"):
            for _ in range(20):
                run()
            start = time.perf_counter()
            for _ in range(rounds):
                run()
            found[name] = (time.perf_counter() - start) / rounds * 1e6
            if clock.device == "cuda":
                torch.cuda.synchronize()
    return found


def errors(clock: Clock, share: float) -> dict[str, float]:
    """By dtype, the largest difference of the Triton kernel from the definition, until a share of the time is spent."""
    kernel = next(each for each in KERNELS if each.name == ("triton" if clock.device == "cuda" else "native"))
    dtypes = torch.bfloat16, torch.float16, torch.float32
    found, count = dict.fromkeys([str(dtype).removeprefix("torch.") for dtype in dtypes], 0.0), 0
    for case in CASES[::6]:
        for name, dtype in zip(found, dtypes, strict=True):
            if clock.is_over(share):
                break
            results = compare(kernel, case, dtype, torch.device(clock.device))
            for wrong in (each for each in results if each.is_wrong):
                print(f"gpu: {wrong}", flush=True)
            found[name] = max([found[name], *(each.difference for each in results if not each.error)])
            count += 1
    print(f"gpu: {count} calls compared with float64; largest differences: {found}", flush=True)
    return found


class Results:
    """What was measured so far, written after each row."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.memory = clock, dict[str, float]()
        self.settings: dict[str, Any] = {"heads": HEADS, "head_dim": 128, "megabytes": self.memory, "tflops": {}}

    def add(self, what: str, run: Callable[[], Any], share: float = 1.0) -> None:
        """Measure a row, unless a share of the time is spent; what it returns belongs to the settings."""
        if self.clock.is_over(share):
            print(f"gpu: the time is up; left out: {what}", flush=True)
            return
        with reported(what):
            result = run()
            if result is not None:
                self.settings[what] = result
                print(f"gpu: {what}: {result}", flush=True)
        self.settings["milliseconds"] = self.clock.medians
        if self.clock.device == "cuda":
            write("gpu", self.clock.ratios, SEED, **self.settings)
            torch.cuda.empty_cache()

    def add_case(self, case: Case) -> None:
        """Measure a call of attention."""
        measure_attend(case, self.clock, self.memory)
        milliseconds = self.clock.medians.get(f"output, {case}")
        if milliseconds:
            self.settings["tflops"][str(case)] = 2 * case.products() / milliseconds / 1e9


def peak_tflops(clock: Clock) -> float:
    """Of a matrix product in bfloat16."""
    size = 64 if clock.device == "cpu" else 8192
    a, b = torch.randn(2, size, size, device=clock.device, dtype=torch.bfloat16).unbind()
    return 2 * size**3 / min(clock.milliseconds(lambda: a @ b) for _ in range(10)) / 1e9


def main() -> None:
    """Check, then measure, the most important rows first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.5, help="after which nothing more is begun")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on the CPU; writes nothing")
    arguments = parser.parse_args()
    torch.manual_seed(SEED)
    device = "cpu" if arguments.dry_run else "cuda"
    clock = Clock(device, 60 * arguments.minutes, 1 if arguments.dry_run else arguments.rounds)
    results = Results(clock)
    if device == "cuda":
        triton = version("triton") if importlib.util.find_spec("triton") else "none"
        results.settings["gpu"], results.settings["triton"] = torch.cuda.get_device_name(), triton
        print(f"gpu: {torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton}", flush=True)
    rounds = 3 if arguments.dry_run else 300
    rows: dict[str, tuple[Callable[[], Any], float]] = {
        "peak_tflops": (lambda: peak_tflops(clock), 1),
        "errors": (lambda: errors(clock, 0.2), 0.2),
        "host_microseconds": (lambda: host_microseconds(clock, rounds), 0.25),
        "decoding": (lambda: measure_decode(clock), 0.3),
        "watched models": (lambda: measure_models(clock), 0.35),
    }
    for what, (run, share) in rows.items():
        results.add(what, run, share)
    for case in cases(device):
        results.add(str(case), lambda own=case: results.add_case(own), 0.95)
    if device == "cuda":
        report("gpu", clock.ratios, SEED, **results.settings)


if __name__ == "__main__":
    main()
