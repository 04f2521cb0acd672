"""Measure how fast `attend` is on this machine, next to torch's SDPA and to the fastest matrix product."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from math import inf
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, matmul
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

MAX_SECONDS = 3.0
"""Calls that would take longer, at the rate of a smaller size, are left out; so are larger matrix products."""

PEAK_SIZES = {"cpu": (128, 256, 512, 1024, 2048)}
PEAK_SIZES_OF_OTHERS = (1024, 2048, 4096, 8192)
"""Rows and columns of the matrices whose product is the peak, by device; the smaller ones predict how long it takes."""


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
        """What was not measured because this machine would take too long."""
        measured = {(each.dtype, each.batch, each.tokens, each.backward) for each in self.timings}
        return ", ".join(
            f"{_name(dtype)} {batch} × {tokens:,}{' with backward' if backward else ''}"
            for dtype, (batch, tokens), backward in product(DTYPES, SIZES, (False, True))
            if (_name(dtype), batch, tokens, backward) not in measured
        )


def measure_peaks(device: torch.device) -> dict[str, float]:
    """The fastest matrix product of torch in GFLOP/s: in float32, and in bfloat16 or float32.

    The matrices grow as far as this machine multiplies them fast enough: a processor without instructions for bfloat16
    can take minutes for a product that takes milliseconds in float32.
    """
    peaks: dict[str, float] = {}
    for dtype in DTYPES:
        rates: list[float] = []
        for size in PEAK_SIZES.get(device.type, PEAK_SIZES_OF_OTHERS):
            flops = 2 * size**3
            if rates and 2 * flops / rates[-1] > MAX_SECONDS / 3:
                break
            a, b = torch.randn(2, size, size, device=device).to(dtype)
            (seconds,) = _shortest([partial(matmul, a, b)], device, MIN_SECONDS / 4)
            rates.append(flops / seconds)
        peaks[_name(dtype)] = max(rates) / 1e9
    return peaks | {"bfloat16": max(peaks.values())}


def measure_speed(
    device: torch.device, advance: Callable[[int], object] = lambda count: None, max_seconds: float = inf
) -> list[Timing]:
    """The time of each dtype, size, pass and kind of results that this machine computes fast enough.

    Args:
        device: Where to run.
        advance: Is called with 1 after each, `count_timings` times.
        max_seconds: No measurement begins later; other programs can make all of them slow.
    """
    timings: list[Timing] = []
    start = perf_counter()
    for dtype in DTYPES:
        rates: dict[tuple[bool, str], float] = {}  # operations per second of both calls, at the last size
        for (batch, tokens), backward, results in product(SIZES, (False, True), RESULTS):
            flops, rate = _flops(batch, tokens, backward), rates.get((backward, results))
            is_short = rate is None or 2 * flops / rate < MAX_SECONDS  # one call to warm up, and one that counts
            if is_short and perf_counter() - start < max_seconds:
                timing = _measure(device, dtype, batch, tokens, backward, results)
                timings.append(timing)
                rate = flops / (timing.milliseconds + timing.sdpa_milliseconds) * 1e3
                rates[backward, results] = rate
            advance(1)
    return timings


def count_timings() -> int:
    """How many timings there are if none is left out."""
    return len(DTYPES) * len(SIZES) * 2 * len(RESULTS)


def _measure(device: torch.device, dtype: torch.dtype, batch: int, tokens: int, backward: bool, results: str) -> Timing:
    random, names = torch.Generator().manual_seed(0), RESULTS[results]
    shape = batch, HEADS, tokens, HEAD_DIM
    query, key, value = leaves = [
        torch.randn(shape, generator=random).to(device, dtype).requires_grad_(backward) for _ in range(3)
    ]

    def regard_call() -> list[Tensor]:
        att = attend(query, key, value, measure=names)
        return [att.output, *att.measured.values()]

    def sdpa() -> list[Tensor]:
        return [scaled_dot_product_attention(query, key, value)]

    seconds, baseline = _shortest(
        [_run(regard_call, leaves, backward), _run(sdpa, leaves, backward)], device, MIN_SECONDS
    )
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
    start = perf_counter()
    while len(times[0]) < 2 or perf_counter() - start < at_least:
        for run, own in zip(runs, times, strict=True):
            _synchronize(device)
            begin = perf_counter()
            run()
            _synchronize(device)
            own.append(perf_counter() - begin)
    return [min(own) for own in times]


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
