"""The passes of `triton_passes.py` as calls: arguments, tile sizes, and compilation ahead of time without a GPU."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
import triton_passes as passes
import triton_rules as rules
from torch import Tensor
from triton.backends.compiler import GPUTarget


@dataclass(frozen=True)
class Config:
    """Tile sizes, warps of a program, and how many tiles are loaded ahead."""

    queries: int
    keys: int
    warps: int
    stages: int

    def __str__(self) -> str:
        return f"{self.queries}×{self.keys} w{self.warps} s{self.stages}"


@dataclass(frozen=True)
class Case:
    """Sizes, dtype and mask; the last query is at the position of the last key."""

    batch: int
    heads: int
    queries: int
    keys: int
    head_dim: int
    value_dim: int
    dtype: torch.dtype
    is_causal: bool
    has_alibi: bool = False

    @classmethod
    def square(cls, n: int, head_dim: int, is_causal: bool, dtype: torch.dtype = torch.bfloat16) -> Case:
        """One sequence with 32 heads."""
        return cls(1, 32, n, n, head_dim, head_dim, dtype, is_causal)

    def products(self) -> float:
        """Floating-point operations of one matrix product over all allowed pairs, with head_dim."""
        pairs = self.queries * self.keys * (0.5 if self.is_causal else 1.0)
        return 2.0 * self.batch * self.heads * pairs * self.head_dim


class Problem:
    """Tensors of a case, and the calls of each pass on them; ``device="meta"`` serves to compile."""

    def __init__(self, case: Case, device: str) -> None:
        self.case = case

        def tensor(length: int, width: int | None = None, random: bool = False) -> Tensor:
            """(batch, heads, length, width) in the case's dtype, or (batch, heads, length) in float32."""
            shape = (case.batch, case.heads, length, *([] if width is None else [width]))
            dtype = torch.float32 if width is None else case.dtype
            return (torch.randn if random else torch.empty)(shape, device=device, dtype=dtype)

        queries, keys, dim, value_dim = case.queries, case.keys, case.head_dim, case.value_dim
        self.query, self.key, self.value = (
            tensor(queries, dim, True),
            tensor(keys, dim, True),
            tensor(keys, value_dim, True),
        )
        self.d_output, self.d_entropy, self.d_received = tensor(queries, value_dim, True), tensor(queries), tensor(keys)
        if device != "meta":
            self.d_entropy.normal_(), self.d_received.normal_()
        self.output = tensor(queries, value_dim)
        self.d_query, self.d_key, self.d_value = tensor(queries, dim), tensor(keys, dim), tensor(keys, value_dim)
        self.lse, self.term, self.received_mean = tensor(queries), tensor(queries), tensor(queries)
        self.rows = [tensor(queries) for _ in range(3)]  # entropy, largest weight, mean distance
        self.received = tensor(keys)
        self.scale = dim**-0.5
        self.slopes = torch.full((case.heads,), 0.1 / 0.6931471805599453, device=device)

    def call(self, name: str) -> Call:
        """One pass, by its name in `PASSES`."""
        case, offset = self.case, self.case.keys - self.case.queries
        sizes = (case.queries, case.keys, case.heads)
        tensors = (self.query, self.key, self.value, self.output, self.d_output, self.d_query, self.d_key, self.d_value)
        strides = tuple(tensor.stride()[:3] for tensor in tensors)
        common = (sizes, strides, self.scale, (offset,), (self.slopes, offset))
        dims = {"D": case.head_dim, "D_PAD": padded(case.head_dim)}
        value_dims = {"V": case.value_dim, "V_PAD": padded(case.value_dim)}
        options: dict[str, Any] = {
            "MASK": rules.CAUSAL if case.is_causal else rules.ALL,
            "SCORE": rules.alibi if case.has_alibi else rules.plain,
            "PRECISION": "ieee" if case.dtype == torch.float32 else "tf32",
            **dims,
        }
        kind, _, what = name.partition(": ")
        measures, results, measure_args = self._measures(what, is_fused=kind == "forward")
        if kind == "forward":
            args = (self.query, self.key, self.value, self.output, self.lse, results, *common, measure_args)
            return Call(passes.forward, args, options | value_dims | {"MEASURES": measures}, sizes, "QUERIES")
        if kind == "rows":
            args = (self.query, self.key, self.lse, results, *common, measure_args)
            return Call(passes.sweep_rows, args, options | {"MEASURES": measures}, sizes, "QUERIES")
        if kind == "columns":
            args = (self.query, self.key, self.lse, (self.received,), *common, ((offset,),))
            return Call(passes.sweep_columns, args, options | {"MEASURES": (rules.add_received,)}, sizes, "KEYS")
        measured = {"MEASURED": bool(what)}
        if kind == "terms":
            numbers = (self.rows[0], self.d_entropy, self.received_mean, self.term)
            args = (self.output, self.d_output, *numbers, sizes, strides)
            return Call(passes.row_terms, args, value_dims | measured, sizes, "QUERIES")
        inputs = (self.query, self.key, self.value, self.d_output, self.lse, self.term, self.d_entropy, self.d_received)
        options |= value_dims | measured
        if kind == "backward keys":
            return Call(passes.backward_keys, (*inputs, self.d_key, self.d_value, *common), options, sizes, "KEYS")
        return Call(passes.backward_queries, (*inputs, self.d_query, *common), options, sizes, "QUERIES")

    def _measures(self, names: str, is_fused: bool) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
        """Rules, results and arguments of measures of rows."""
        offset = self.case.keys - self.case.queries
        known = {
            "entropy": (rules.ENTROPY, self.rows[0], (offset,)),
            "max": (rules.FUSED_MAX if is_fused else rules.MAX, self.rows[1], (offset,)),
            "distance": (rules.MEAN_DISTANCE, self.rows[2], (offset,)),
            "mass": (rules.MASS, self.received_mean, (self.d_received, self.case.keys, self.case.heads)),
        }
        parts = [known[name] for name in names.split(", ") if name in known]
        rule, results, args = zip(*parts, strict=True) if parts else ((), (), ())
        return rule, results, args


THREE = "entropy, max, distance"
PASSES = (
    "forward", "forward: entropy", f"forward: {THREE}", "rows: entropy", f"rows: {THREE}", "columns", "rows: mass",
    "terms", "terms: measures", "backward keys", "backward keys: measures", "backward queries",
    "backward queries: measures",
)  # fmt: skip


@dataclass(frozen=True)
class Call:
    """A kernel with its arguments."""

    kernel: Any
    args: tuple[Any, ...]
    options: dict[str, Any]
    sizes: tuple[int, int, int]
    over: str

    def run(self, config: Config) -> None:
        """Launch it."""
        self.kernel[self.grid(config)](*self.args, **self.keywords(config))

    def compile(self, config: Config) -> Any:
        """Compile it for the active driver's target, without launching."""
        return self.kernel.warmup(*self.args, grid=self.grid(config), **self.keywords(config))

    def grid(self, config: Config) -> tuple[int, int, int]:
        queries, keys, heads = self.sizes
        blocks = -(-queries // config.queries) if self.over == "QUERIES" else -(-keys // config.keys)
        batch = self.args[0].shape[0]
        return blocks, batch * heads, 1

    def keywords(self, config: Config) -> dict[str, Any]:
        blocks = {"QUERIES": config.queries} | ({} if self.kernel is passes.row_terms else {"KEYS": config.keys})
        return self.options | blocks | {"num_warps": config.warps, "num_stages": config.stages}


def padded(width: int) -> int:
    """The next power of two, at least 16."""
    return max(16, triton.next_power_of_2(width))


class CompileOnly:
    """A driver that only states its target, so that a process compiles for a GPU it does not open."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_ahead(
    job: tuple[Case, str, Config], architecture: int = 90
) -> tuple[tuple[Case, str, Config], dict[str, Any]]:
    """Compile one configuration into Triton's cache, in a process without a GPU.

    Returns:
        The job, and registers, stack bytes (spills) and bytes of shared memory; or ``{"error": ...}``.
    """
    triton.runtime.driver.set_active(CompileOnly(GPUTarget("cuda", architecture, 32)))
    case, name, config = job
    torch.set_num_threads(1)
    try:
        compiled = Problem(case, "meta").call(name).compile(config)
    except (triton.CompilationError, RuntimeError, ValueError) as error:
        return job, {"error": f"{type(error).__name__}: {str(error)[-300:]}"}
    return job, resources(compiled)


def resources(compiled: Any) -> dict[str, int]:
    """Registers, stack bytes and shared memory, read from the binary."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(compiled.asm["cubin"])
        text = subprocess.run([tool, "-res-usage", path], capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"(REG|STACK|SHARED):(\d+)", text))
    return {"registers": int(found["REG"]), "stack": int(found["STACK"]), "shared": compiled.metadata.shared}


def is_interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"
