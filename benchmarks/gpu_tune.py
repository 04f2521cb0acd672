"""Try the configurations of the Triton kernel for one architecture, and print the best as a table.

On a GPU, the passes of a few calls are timed with each candidate of `configurations.CANDIDATES`, which processes
compile ahead; it stops when its budget is spent. Without a GPU, it takes the first candidate that compiles without
spills.

Run: ``python benchmarks/gpu_tune.py --budget 280``, or ``python benchmarks/gpu_tune.py --compile sm_90``; the output is
the part of `configurations.TABLE` for the architecture.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import multiprocessing
import statistics
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise, product
from typing import Any

import torch
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
        return found._replace(queries=16, warps=4) if query.shape[2] <= 16 else found

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
        try:
            super().__call__(kernel, programs, args, options)
        except CompilationFailed:
            return
        if kernel.__name__ in ("row_terms", "merge"):
            return
        events = [torch.cuda.Event(enable_timing=True) for _ in range(6)]
        for event in events:
            super().__call__(kernel, programs, args, options)
            event.record()
        torch.cuda.synchronize()
        times = [one.elapsed_time(other) for one, other in pairwise(events)]
        number = min(self.choice.number, len(CANDIDATES[self.choice.last[3]]) - 1)
        self.times[self.choice.last][number].append(statistics.median(times))


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


def by_time(budget: float, workers: int) -> tuple[str, dict[Key, int]]:
    """The fastest candidates of this machine's GPU."""
    start = time.monotonic()
    context = multiprocessing.get_context("fork")  # before this process opens the GPU
    pool = concurrent.futures.ProcessPoolExecutor(workers, mp_context=context)
    name = _architecture()
    chosen = [case for head_dim, dtype in product(HEAD_DIMS, DTYPES) for case in cases(dtype, head_dim)]
    count = max(map(len, CANDIDATES.values()))
    jobs = [(case, number, name) for case, number in product(chosen, range(count))]
    waiting = {pool.submit(compile_ahead, job): job for job in jobs}
    choice = Choice()
    timer, device, left_out = Timer(choice), torch.device("cuda"), len(jobs)
    with choice.active():
        try:
            for future in concurrent.futures.as_completed(waiting, budget):
                case, choice.number, _ = waiting[future]
                if time.monotonic() - start > budget:
                    break
                case.run(device, timer)
                left_out -= 1
        except TimeoutError:
            pass
    pool.shutdown(wait=False, cancel_futures=True)
    print(f"{torch.cuda.get_device_name()}: {left_out} of {len(jobs)} configurations were left out")
    best: dict[Key, int] = {}
    for key, times in timer.times.items():
        means = {number: statistics.mean(values) for number, values in times.items()}
        best[key] = min(means, key=lambda number: means[number])
        print(key, {CANDIDATES[key[3]][number]: f"{ms:.3f} ms" for number, ms in sorted(means.items())})
    return name, best


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
            for case in cases(getattr(torch, dtype), head_dim):
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
    parser.add_argument("--budget", type=float, default=280, help="seconds on a GPU")
    parser.add_argument("--workers", type=int, default=15)
    parser.add_argument("--compile", metavar="ARCHITECTURE", help="compile only, for this architecture")
    parser.add_argument("--light", action="store_true", help="compile light loads alone")
    parser.add_argument("--head-dims", type=int, nargs="*", default=list(HEAD_DIMS))
    parser.add_argument("--dtypes", nargs="*", default=[str(each).removeprefix("torch.") for each in DTYPES])
    arguments = parser.parse_args()
    if arguments.compile:
        torch.set_num_threads(1)
        found = by_compiling(arguments)
    else:
        found = by_time(arguments.budget, arguments.workers)
    print(table(*found))


if __name__ == "__main__":
    main()
