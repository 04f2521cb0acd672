"""Calls of the Triton kernel that take different ways through it, and a compiler that needs no GPU.

Run: ``python benchmarks/triton_cases.py sm_90 gfx942`` prints registers, spills and shared memory of each pass.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget

import regard
from regard.ops.kernels.base import KernelInputs, RunOptions
from regard.ops.kernels.triton import configurations
from regard.ops.kernels.triton.backward import Backward
from regard.ops.kernels.triton.calls import run_forward
from regard.ops.kernels.triton.launch import COMPILER_OPTIONS, resolved
from regard.ops.request import make_request
from regard.ops.tree import tensors_in

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}

Make = Callable[[int, torch.device], Any]
"""A rule for a number of tokens, on a device."""


def _sinks(tokens: int, device: torch.device) -> Any:
    biased = regard.ScaledDotProduct() + regard.Alibi(torch.rand(HEADS, device=device))
    return regard.Sinks(regard.SoftCap(biased, 50.0), torch.rand(HEADS, device=device))


def _documents(tokens: int, device: torch.device) -> Any:
    return regard.Documents(torch.arange(tokens, device=device) // 1000) & regard.Causal()


HEADS, KEY_HEADS = 8, 2
MASKS: dict[str, Make] = {
    "full": lambda tokens, device: None,
    "causal": lambda tokens, device: regard.Causal(),
    "window": lambda tokens, device: regard.Window(128, 0),
    "documents": _documents,
}
SCORES: dict[str, Make] = {
    "plain": lambda tokens, device: None,
    "ALiBi": lambda tokens, device: regard.ScaledDotProduct() + regard.Alibi(torch.rand(HEADS, device=device)),
    "bias": lambda tokens, device: (
        regard.ScaledDotProduct() + regard.Bias(torch.zeros(HEADS, tokens, tokens, device=device))
    ),
    "ALiBi, soft-cap, sinks": _sinks,
}
MEASURES: dict[str, Make] = {
    "none": lambda tokens, device: [],
    "entropy and received": lambda tokens, device: ["entropy", "received"],
    "decoding": lambda tokens, device: ["received", regard.TopK(8)],
    "three": lambda tokens, device: [regard.Entropy(), regard.Diagonal(0), regard.DistanceHistogram(16)],
    "top 8": lambda tokens, device: [regard.TopK(8)],
    "block mean": lambda tokens, device: [regard.BlockMean(64)],
    "seven": lambda tokens, device: [
        regard.Entropy(), regard.MeanDistance(), regard.Mass(regard.Window(2, 1)), regard.TopK(8), regard.Max(),
        regard.Received(torch.rand(tokens, device=device)), regard.DistanceHistogram(3),
    ],
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A call, forward and backward."""

    dtype: torch.dtype
    head_dim: int
    mask: str = "causal"
    measures: str = "entropy and received"
    score: str = "plain"
    dropout: float = 0.0
    tokens: int = 4096
    queries: int | None = None
    has_value: bool = True
    has_backward: bool = True

    def __str__(self) -> str:
        dropout = f"dropout {self.dropout}" if self.dropout else ""
        few = f"{self.queries} queries" if self.queries else ""
        without = "" if self.has_value else "weights alone"
        dtype = str(self.dtype).removeprefix("torch.")
        parts = dtype, f"head_dim {self.head_dim}", self.mask, self.score, self.measures, dropout, few, without
        return ", ".join(filter(None, parts))

    def run(self, device: torch.device, launch: Any) -> None:
        """Forward and backward pass, with gradients of all tensors."""
        sizes = (HEADS, self.queries or self.tokens), (KEY_HEADS, self.tokens), (KEY_HEADS, self.tokens)
        query, key, value = (
            torch.rand(1, heads, tokens, self.head_dim, dtype=self.dtype, device=device) for heads, tokens in sizes
        )
        mask, score = MASKS[self.mask](self.tokens, device), SCORES[self.score](self.tokens, device)
        measures = regard.ops.measures.as_measures(MEASURES[self.measures](self.tokens, device))
        request = make_request(query, key, mask=mask, score=score)
        inputs = KernelInputs(value if self.has_value else None, request, measures, self.dropout)
        seed = torch.zeros((), dtype=torch.int64, device=device) if self.dropout else None
        options = RunOptions(seed, self.has_backward)
        output, results, saved = run_forward(inputs, options, launch)
        if self.has_backward:
            gradients: list[Tensor | None] = [*([] if output is None else [output]), *results.tensors()]
            gradients = [each if each is not None and each.is_floating_point() else None for each in gradients]
            needed = [tensor.is_floating_point() for tensor in tensors_in(inputs)]
            first = results.tensors()[0] if output is None else output
            Backward(inputs, options, needed, gradients, [first, *saved], launch).run()


BASE = Case(torch.bfloat16, 128)
DTYPES = torch.bfloat16, torch.float32


def cases(dtype: torch.dtype, head_dim: int) -> list[Case]:
    """Those of a dtype and width, from light to heavy loads."""
    base = replace(BASE, dtype=dtype, head_dim=head_dim)
    light = [replace(base, mask=mask) for mask in ("full", "causal", "window")]
    light += [replace(base, measures=name, has_backward=False) for name in ("top 8", "block mean")]
    light += [replace(base, has_value=False), replace(base, measures="three", has_value=False, has_backward=False)]
    light += [replace(base, mask="full", measures=name, queries=1, has_backward=False) for name in ("none", "decoding")]
    light += [replace(base, queries=8)]
    heavy = [replace(base, mask="documents", score="bias", dropout=0.1)]
    if head_dim <= 128:
        heavy += [replace(base, score="ALiBi, soft-cap, sinks", measures="seven", dropout=0.1)]
    return light + heavy


SAMPLE = BASE, replace(BASE, mask="full", score="ALiBi", head_dim=64)
CASES = tuple(
    case
    for dtype, head_dim in product((torch.bfloat16, torch.float16, torch.float32), (16, 64, 80, 128, 256))
    for case in cases(dtype, head_dim)
)


class Compiler:
    """Compiles kernels for an architecture, in place of launching them.

    Attributes:
        found: For each kernel its name, its tiles and what it needs.
    """

    def __init__(self, architecture: str) -> None:
        self.architecture, self.target = architecture, TARGETS[architecture]
        self.found: list[tuple[str, tuple[int, ...], dict[str, int]]] = []
        triton.runtime.driver.set_active(self)
        configurations.architecture = lambda device: architecture
        torch.backends.cuda.matmul.fp32_precision = "tf32"  # as where this kernel serves float32

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def __call__(self, kernel: Any, programs: int, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Compile a kernel, as `Launcher` launches it."""
        names = "QUERIES", "KEYS", "num_warps", "num_stages"
        self.found.append(
            (kernel.__name__, tuple([options.get(name, 0) for name in names]), self.needs(kernel, args, options))
        )

    def needs(self, kernel: Any, args: tuple[Any, ...], options: dict[str, Any]) -> dict[str, int]:
        """Registers of a thread, spills (bytes, on AMD registers), and bytes of shared memory."""
        constants = {name: resolved(each) for name, each in options.items()}
        compiled = kernel.warmup(*args, grid=(1,), **constants, **COMPILER_OPTIONS)
        shared = compiled.metadata.shared
        if self.target.backend == "hip":
            found = {name: int(number) for name, number in re.findall(r"\.(vgpr\w*):\s+(\d+)", compiled.asm["amdgcn"])}
            return {"registers": found["vgpr_count"], "spills": found["vgpr_spill_count"], "shared": shared}
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kernel.cubin"
            path.write_bytes(compiled.asm["cubin"])
            text = subprocess.run([tool, "-res-usage", path], capture_output=True, text=True, check=True).stdout
        found = dict(re.findall(r"(REG|STACK):(\d+)", text))
        return {"registers": int(found["REG"]), "spills": int(found["STACK"]), "shared": shared}

    def fits(self, needs: dict[str, int], head_dim: int) -> bool:
        """Whether a kernel runs there, up to head_dim 128 without spills."""
        return needs["shared"] <= configurations.SHARED_MEMORY[self.architecture] and (
            head_dim > 128 or not needs["spills"]
        )


def check(architecture: str, chosen: tuple[Case, ...]) -> list[str]:
    """Compile cases; print what each pass needs, and return what does not fit."""
    compiler, failures = Compiler(architecture), list[str]()
    for case in chosen:
        print(case, flush=True)
        case.run(torch.device("meta"), compiler)
        for name, tiles, needs in compiler.found:
            line = f"{name} {tiles}: {needs}"
            print(" ", line, flush=True)
            failures += [] if compiler.fits(needs, case.head_dim) else [f"{architecture}: {case}: {line}"]
        compiler.found.clear()
    return failures


if __name__ == "__main__":
    for each in sys.argv[1:]:
        print("does not fit:", *check(each, CASES) or ["none"], sep="\n")
