"""Try the configurations of the Triton kernel for one architecture, and print the best as a table.

On a GPU, the passes of a few calls are timed with each candidate of `configurations.CANDIDATES`, which processes
compile ahead. It stops in time for a borrowed GPU, reports what fails and goes on, and prints its times as they come.
Without a GPU, it takes the first candidate that compiles without spills.

Run: ``python benchmarks/gpu_tune.py --minutes 4.5``, or ``python benchmarks/gpu_tune.py --compile sm_90``; the output
is the part of `configurations.TABLE` for the architecture.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import multiprocessing
import os
import statistics
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise, product
from typing import Any

import torch
import triton
from torch import Tensor
from triton_cases import DTYPES, Case, Compiler, cases

from regard.ops.kernels.triton import configurations, pack
from regard.ops.kernels.triton.configurations import CANDIDATES, LOADS, PASSES, WIDTHS, Tiles
from regard.ops.kernels.triton.launch import CompilationFailed, Launcher

Key = tuple[str, int, int, str]
"""Kind of dtype, number of the width, number of the load, pass."""

HEAD_DIMS = 128, 64, 256


class Choice:
    """Chooses the same candidate for all passes, and remembers for what it was asked last."""

    def __init__(self) -> None:
        self.number, self.last = 0, ("half", 0, 0, "forward")

    def tiles(self, name: str, query: Tensor, value_dim: int, load: int) -> Tiles:
        """In place of `configurations.tiles`."""
        kind, width = "float" if query.dtype == torch.float32 else "half", max(query.shape[3], value_dim)
        self.last = kind, bisect_left(WIDTHS, width), bisect_left(LOADS, load), name
        found = CANDIDATES[name][min(self.number, len(CANDIDATES[name]) - 1)]
        return configurations.for_queries(found, name, query.shape[2])

    @contextmanager
    def active(self) -> Iterator[None]:
        """While it chooses."""
        usual, pack.tiles = pack.tiles, self.tiles
        try:
            yield
        finally:
            pack.tiles = usual


class Timer(Launcher):
    """Times what it launches, by key and candidate."""

    def __init__(self, choice: Choice) -> None:
        super().__init__()
        self.choice, self.times = choice, defaultdict[Key, dict[int, list[float]]](lambda: defaultdict(list))

    def __call__(self, kernel: Any, programs: int, args: tuple[Any, ...], options: Any) -> None:
        launch = super().__call__
        milliseconds = 0.0
        try:
            if args[0].is_cuda:
                launch(kernel, programs, args, options)
        except CompilationFailed as error:
            print(f"gpu_tune: {error}", flush=True)
            return
        if kernel.__name__ in ("row_terms", "merge"):
            return
        if args[0].is_cuda:
            events = [torch.cuda.Event(enable_timing=True) for _ in range(6)]
            for event in events:
                launch(kernel, programs, args, options)
                event.record()
            torch.cuda.synchronize()
            milliseconds = statistics.median(one.elapsed_time(other) for one, other in pairwise(events))
        number = min(self.choice.number, len(CANDIDATES[self.choice.last[3]]) - 1)
        self.times[self.choice.last][number].append(milliseconds)
        sizes = tuple([options.get(each, 0) for each in ("QUERIES", "KEYS", "num_warps", "num_stages")])
        print(f"gpu_tune: {self.choice.last} {kernel.__name__} {sizes}: {milliseconds:.3f} ms", flush=True)


class FirstThatFits(Compiler):
    """Compiles the candidates of each pass in turn until one fits; the choice is a start for heavier loads."""

    def __init__(self, architecture: str, choice: Choice) -> None:
        super().__init__(architecture)
        self.choice, self.best = choice, dict[Key, int]()

    def __call__(self, kernel: Any, programs: int, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        if kernel.__name__ in ("row_terms", "merge"):
            return
        kind, width, load, name = key = self.choice.last
        number = max(self.best.get((kind, width, lighter, name), 0) for lighter in range(load + 1))
        last = len(CANDIDATES[name]) - 1
        while number < last:
            own = {each: size for each, size in CANDIDATES[name][number].options().items() if each in options}
            needs = self.needs(kernel, args, options | own)
            print(key, kernel.__name__, tuple(own.values()), needs, flush=True)
            if self.fits(needs, 1):
                break
            number += 1
        self.best[key] = number


def compile_ahead(job: tuple[Case, int, str]) -> None:
    """Compile all passes of a call with a candidate into Triton's cache, in a process that does not open the GPU."""
    case, number, architecture = job
    torch.set_num_threads(1)
    choice = Choice()
    choice.number = number
    with choice.active():
        case.run(torch.device("meta"), Compiler(architecture))


def by_time(budget: float, workers: int, device: torch.device) -> tuple[str, dict[Key, int]]:
    """The fastest candidates of this machine's GPU; on the meta device, the launches are left out."""
    start = time.monotonic()
    torch.backends.cuda.matmul.fp32_precision = "tf32"  # as where this kernel serves float32
    context = multiprocessing.get_context("fork")  # before this process opens the GPU
    pool = concurrent.futures.ProcessPoolExecutor(workers, mp_context=context)
    name = "sm_90" if device.type == "meta" else _architecture()
    chosen = [case for head_dim, dtype in product(HEAD_DIMS, DTYPES) for case in long_cases(dtype, head_dim)]
    count = max(map(len, CANDIDATES.values()))
    jobs = [(case, number, name) for case, number in product(chosen, range(count))]
    waiting = {pool.submit(compile_ahead, job): job for job in jobs}
    choice = Choice()
    timer, left_out = Timer(choice), len(jobs)
    with choice.active():
        try:
            for future in concurrent.futures.as_completed(waiting, budget):
                case, choice.number, _ = waiting[future]
                if time.monotonic() - start > budget:
                    break
                try:
                    case.run(device, timer)
                except Exception as error:  # noqa: BLE001 - of a kernel or its compiler
                    print(f"gpu_tune: {case}: {type(error).__name__}: {str(error)[:300]}", flush=True)
                left_out -= 1
        except TimeoutError:
            pass
    pool.shutdown(wait=False, cancel_futures=True)
    for process in multiprocessing.active_children():  # or the interpreter waits for what they compile
        process.terminate()
    gpu = "no GPU" if device.type == "meta" else torch.cuda.get_device_name()
    print(f"{gpu}, torch {torch.__version__}, Triton {triton.__version__}")
    print(f"{left_out} of {len(jobs)} configurations were left out")
    best: dict[Key, int] = {}
    for key, times in timer.times.items():
        means = {number: statistics.mean(values) for number, values in times.items()}
        best[key] = min(means, key=lambda number: means[number])
        print(key, {CANDIDATES[key[3]][number]: f"{ms:.3f} ms" for number, ms in sorted(means.items())})
    return name, best


def long_cases(dtype: torch.dtype, head_dim: int) -> list[Case]:
    """Those that the table is for: few queries have tiles of their own."""
    return [case for case in cases(dtype, head_dim) if case.queries is None and case.has_value]


def _architecture() -> str:
    """That of the GPU, read in another process."""
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(configurations.architecture, torch.device("cuda", 0)).result()


def by_compiling(arguments: argparse.Namespace) -> tuple[str, dict[Key, int]]:
    """The first candidates that fit."""
    choice = Choice()
    finder = FirstThatFits(arguments.compile, choice)
    with choice.active():
        for head_dim, dtype in product(arguments.head_dims, arguments.dtypes):
            for case in long_cases(getattr(torch, dtype), head_dim):
                if not (arguments.light and case.dropout):
                    case.run(torch.device("meta"), finder)
    return arguments.compile, finder.best


def table(architecture: str, best: dict[Key, int]) -> str:
    """The entry of `configurations.TABLE`; what was not tried is as it is there."""
    lines = [f'"{architecture}": {{']
    for kind in ("half", "float"):
        rows: list[str] = []
        for width in range(len(WIDTHS)):
            now = configurations.TABLE[architecture][kind][width]
            found = [
                "".join(str(best.get((kind, width, load, name), now[load][place])) for place, name in enumerate(PASSES))
                for load in range(len(LOADS) + 1)
            ]
            rows.append(f"({', '.join(map(repr, found))})".replace("'", '"'))
        lines.append(f'    "{kind}": ({", ".join(rows)}),')
    return "\n".join([*lines, "},"])


def main() -> None:
    """Search, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=4.5, help="on a GPU")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1), help="processes that compile")
    parser.add_argument("--dry-run", action="store_true", help="compile as on an H100, and launch nothing")
    parser.add_argument("--compile", metavar="ARCHITECTURE", help="compile only, for this architecture")
    parser.add_argument("--light", action="store_true", help="compile light loads alone")
    parser.add_argument("--head-dims", type=int, nargs="*", default=list(HEAD_DIMS))
    parser.add_argument("--dtypes", nargs="*", default=[str(each).removeprefix("torch.") for each in DTYPES])
    arguments = parser.parse_args()
    if arguments.compile:
        torch.set_num_threads(1)
        found = by_compiling(arguments)
    else:
        device = torch.device("meta" if arguments.dry_run else "cuda")
        found = by_time(60 * arguments.minutes, arguments.workers, device)
    print(table(*found))


if __name__ == "__main__":
    main()
