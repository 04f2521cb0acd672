"""Measure how fast `attend` is on this machine, next to torch's SDPA and to the fastest matrix product."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from regard.ops import attend
from regard.ops.kernels.base import KernelInputs
from regard.ops.kernels.dispatch import select_kernel
from regard.ops.measures.base import as_measures
from regard.ops.request import make_request

HEADS, HEAD_DIM = 8, 64
SIZES = ((8, 64), (1, 512), (1, 4096))
"""(batch, tokens)."""

DTYPES = (torch.float32, torch.bfloat16)
RESULTS = {"output": (), "output, entropy, received": ("entropy", "received")}
MIN_SECONDS = 0.4
"""Calls are repeated for so long, and at least twice."""

MAX_SECONDS = 1.5
"""Sizes whose forward and backward pass takes longer than this at the peak are left out."""


@dataclass(frozen=True)
class Timing:
    """The time of a call.

    Args:
        batch: Number of sequences.
        tokens: Number of queries and of keys.
        dtype: Dtype of query, key and value.
        backward: Whether the backward pass is included.
        results: What is computed.
        kernel: The kernel that Regard chose.
        milliseconds: The shortest time of a call.
        sdpa_milliseconds: The same of SDPA, which computes the output alone.
        gflops: 10⁹ floating-point operations per second: those of two matrix products forward, and five backward.
    """

    batch: int
    tokens: int
    dtype: str
    backward: bool
    results: str
    kernel: str
    milliseconds: float
    sdpa_milliseconds: float
    gflops: float

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {name: float(f"{x:.4g}") if isinstance(x, float) else x for name, x in asdict(self).items()}


class Speeds(NamedTuple):
    """The speed of a machine.

    Args:
        peaks: From `measure_peaks`.
        timings: From `measure_speed`.
    """

    peaks: dict[str, float]
    timings: list[Timing]

    @property
    def left_out(self) -> str:
        """The numbers of tokens that were left out because the machine would take too long."""
        measured = {(each.batch, each.tokens) for each in self.timings}
        return ", ".join(f"{tokens:,} tokens" for batch, tokens in SIZES if (batch, tokens) not in measured)


def measure_peaks(device: torch.device) -> dict[str, float]:
    """The fastest matrix product of torch in GFLOP/s: in float32, and in bfloat16 or float32."""
    size, peaks = 2048 if device.type == "cpu" else 8192, {}
    for dtype in DTYPES:
        a, b = torch.randn(2, size, size, device=device).to(dtype)
        (seconds,) = _shortest([partial(torch.matmul, a, b)], device, MIN_SECONDS)
        peaks[_name(dtype)] = 2 * size**3 / seconds / 1e9
    return peaks | {"bfloat16": max(peaks.values())}


def choose_sizes(peaks: Mapping[str, float]) -> list[tuple[int, int]]:
    """The sizes that a machine with these peaks computes fast enough."""
    return [size for size in SIZES if _flops(*size, backward=True) / (peaks["float32"] * 1e9) < MAX_SECONDS]


def measure_speed(device: torch.device, sizes: Sequence[tuple[int, int]] = SIZES) -> Iterator[Timing]:
    """The time of each dtype, size, pass and kind of results.

    Args:
        device: Where to run.
        sizes: (batch, tokens).
    """
    for dtype in DTYPES:
        for batch, tokens in sizes:
            for backward in (False, True):
                for results in RESULTS:
                    yield _measure(device, dtype, batch, tokens, backward, results)


def count_timings(sizes: Sequence[tuple[int, int]]) -> int:
    """How many times `measure_speed` measures."""
    return len(DTYPES) * len(sizes) * 2 * len(RESULTS)


def _measure(device: torch.device, dtype: torch.dtype, batch: int, tokens: int, backward: bool, results: str) -> Timing:
    random, names = torch.Generator().manual_seed(0), RESULTS[results]
    shape = batch, HEADS, tokens, HEAD_DIM
    query, key, value = leaves = [
        torch.randn(shape, generator=random).to(device, dtype).requires_grad_(backward) for _ in range(3)
    ]

    def ours() -> list[Tensor]:
        att = attend(query, key, value, measure=names)
        return [att.output, *att.measured.values()]

    def sdpa() -> list[Tensor]:
        return [scaled_dot_product_attention(query, key, value)]

    seconds, baseline = _shortest([_run(ours, leaves, backward), _run(sdpa, leaves, backward)], device, MIN_SECONDS)
    return Timing(
        batch=batch,
        tokens=tokens,
        dtype=_name(dtype),
        backward=backward,
        results=results,
        kernel=select_kernel(KernelInputs(value, make_request(query, key), as_measures(names))).name,
        milliseconds=seconds * 1e3,
        sdpa_milliseconds=baseline * 1e3,
        gflops=_flops(batch, tokens, backward) / seconds / 1e9,
    )


def _run(call: Callable[[], list[Tensor]], leaves: list[Tensor], backward: bool) -> Callable[[], object]:
    def forward() -> object:
        with torch.no_grad():
            return call()

    def forward_and_backward() -> object:
        results = call()
        return torch.autograd.grad(results, leaves, [torch.ones_like(each) for each in results])

    return forward_and_backward if backward else forward


def _flops(batch: int, tokens: int, backward: bool) -> float:
    """Two matrix products forward; backward five, because the weights are computed again."""
    return (7 if backward else 2) * 2 * batch * HEADS * tokens**2 * HEAD_DIM


def _shortest(runs: Sequence[Callable[[], object]], device: torch.device, at_least: float) -> list[float]:
    """The shortest time of each of several functions in seconds; they run in turn, the first time to warm up."""
    times: list[list[float]] = [[] for _ in runs]
    start = time.perf_counter()
    while len(times[0]) < 2 or time.perf_counter() - start < at_least:
        for run, own in zip(runs, times, strict=True):
            _synchronize(device)
            begin = time.perf_counter()
            run()
            _synchronize(device)
            own.append(time.perf_counter() - begin)
    return [min(own) for own in times]


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
