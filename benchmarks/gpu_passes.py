"""On a GPU: how attention kernels should divide their work, and what each pass costs.

Checks the passes of `triton_passes.py` against float64, searches tile sizes at 4,096 keys while they compile in
parallel, and compares the passes with the backends of SDPA and with dense attention: medians of CUDA events, in turn.

Run: ``python benchmarks/gpu_passes.py --budget 150``; writes what it has when the budget is spent.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
import triton
from timing import report
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa
from triton_calls import PASSES, Case, Config, Problem, compile_ahead
from triton_check import check_all

SEED, SEARCH_KEYS, HEAD_DIMS = 0, 4096, (128, 64)
Run = Callable[[], object]
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
TILES = {  # queries × keys, warps; the first ones are compiled first
    "forward": ((128, 64, 8), (128, 128, 8), (128, 64, 4), (64, 64, 4), (64, 128, 4)),
    "rows": ((128, 128, 8), (128, 64, 4), (128, 128, 4), (64, 128, 4), (256, 64, 8)),
    "columns": ((128, 128, 8), (64, 128, 4), (128, 128, 4), (128, 64, 4), (64, 128, 8)),
    "backward keys": ((64, 128, 8), (64, 64, 4), (32, 128, 8), (32, 64, 4), (64, 128, 4)),
    "backward queries": ((128, 64, 8), (64, 64, 4), (128, 32, 8), (64, 32, 4), (128, 64, 4)),
    "terms": ((64, 64, 4),),
}
PRODUCTS = {"forward": 2, "rows": 1, "columns": 1, "backward keys": 4, "backward queries": 3, "terms": 0}
Job = tuple[Case, str, Config]


def milliseconds(run: Run) -> float:
    """Time on the GPU: a pause before the first event lets the host queue all launches."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(2_000_000)
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def in_turn(runs: dict[str, Run], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of all runs, one after the other in each round, after two warm-ups; leaves out what fails."""
    times: dict[str, list[float]] = {}
    for name, run in runs.items():
        try:
            milliseconds(run), milliseconds(run)
        except (RuntimeError, triton.TritonError) as error:
            print(f"gpu_passes: {name}: {str(error)[:200]}", flush=True)
        else:
            times[name] = []
    for _ in range(rounds):
        for name, results in times.items():
            results.append(milliseconds(runs[name]))
    return times


def jobs() -> list[Job]:
    """Configurations of the search: those of head_dim 128 first, and the likeliest of each pass before the others."""
    found: list[tuple[int, Job]] = []
    for head_dim, is_causal, name in product(HEAD_DIMS, (True, False), PASSES):
        tiles = TILES[name.partition(":")[0]]
        stages = (2,) if name.startswith("terms") else (3, 2, 4)
        for place, ((queries, keys, warps), ahead) in enumerate(product(tiles, stages)):
            stage_rank = stages.index(ahead)
            case = Case.square(SEARCH_KEYS, head_dim, is_causal)
            rank = place // len(stages) + 3 * stage_rank + 2 * (head_dim == 64)
            found.append((rank, (case, name, Config(queries, keys, warps, ahead))))
    return [job for _, job in sorted(found, key=lambda ranked: ranked[0])]


class Search:
    """Times configurations as the compiling processes finish them."""

    def __init__(self, pool: concurrent.futures.Executor, all_jobs: list[Job]) -> None:
        self.waiting = {pool.submit(compile_ahead, job) for job in all_jobs}
        self.problems: dict[Case, Problem] = {}
        self.results: list[dict[str, Any]] = []
        self.best: dict[tuple[int, bool, str], tuple[float, Config]] = {}

    def run_until(self, deadline: float) -> None:
        """Until all are timed, or the deadline (`time.monotonic`)."""
        while self.waiting and time.monotonic() < deadline:
            done, self.waiting = concurrent.futures.wait(
                self.waiting, deadline - time.monotonic(), concurrent.futures.FIRST_COMPLETED
            )
            for future in done:
                if isinstance(future.exception(), concurrent.futures.BrokenExecutor):
                    print(f"gpu_passes: a compiling process died: {future.exception()}", flush=True)
                    return
                job, resources = future.result()
                if time.monotonic() < deadline:
                    self._time(job, resources)
        for future in self.waiting:
            future.cancel()

    def _time(self, job: Job, resources: dict[str, Any]) -> None:
        case, name, config = job
        result = {"pass": name, "head_dim": case.head_dim, "causal": case.is_causal, "config": str(config), **resources}
        self.results.append(result)
        if "error" in resources or resources["stack"] > 1000:
            return
        if case not in self.problems:
            self.problems[case] = prepared(case)
        call = self.problems[case].call(name)
        times = in_turn({f"{name} {config}": lambda: call.run(config)}, 5)
        for values in times.values():
            result["ms"] = statistics.median(values)
            key = (case.head_dim, case.is_causal, name)
            self.best[key] = min(
                self.best.get(key, (math.inf, config)), (result["ms"], config), key=lambda pair: pair[0]
            )

    def config(self, case: Case, name: str) -> Config:
        """The fastest configuration, or the first of the list; smaller tiles for float32, whose products spill."""
        if case.dtype == torch.float32:
            return Config(64, 32, 4, 2)
        queries, keys, warps = TILES[name.partition(":")[0]][0]
        return self.best.get((case.head_dim, case.is_causal, name), (0.0, Config(queries, keys, warps, 2)))[1]


def prepared(case: Case) -> Problem:
    """Tensors with an output and lse in them, by flash attention."""
    problem = Problem(case, "cuda")
    parts = (problem.query, problem.key, problem.value)
    if case.dtype != torch.float32:
        output, lse = torch.ops.aten._scaled_dot_product_flash_attention(*parts, 0.0, case.is_causal)[:2]
        problem.output.copy_(output), problem.lse.copy_(lse)
    else:
        problem.output.copy_(sdpa(*parts, is_causal=case.is_causal)), problem.lse.fill_(10.0)
    for result in (*problem.rows, problem.term, problem.received_mean):
        result.zero_()
    return problem


def peers(problem: Problem) -> dict[str, Run]:
    """SDPA and its backends: output alone, with lse, and backward; dense attention."""
    case, parts = problem.case, (problem.query, problem.key, problem.value)
    leaves = [part.detach().requires_grad_() for part in parts]
    runs: dict[str, Run] = {"SDPA": lambda: sdpa(*parts, is_causal=case.is_causal)}

    def with_backend(backend: SDPBackend) -> Run:
        def run() -> object:
            with sdpa_kernel(backend):
                return sdpa(*parts, is_causal=case.is_causal)

        return run

    def backward(backend: SDPBackend) -> Run:
        with sdpa_kernel(backend):
            output = sdpa(*leaves, is_causal=case.is_causal)
        return lambda: torch.autograd.grad(output, leaves, problem.d_output, retain_graph=True)

    for name, backend in BACKENDS.items():
        runs[name] = with_backend(backend)
        if case.dtype != torch.float32:
            try:
                runs[f"{name} backward"] = backward(backend)
            except RuntimeError as error:
                print(f"gpu_passes: {name} backward: {str(error)[:200]}", flush=True)
    if case.dtype != torch.float32:
        aten = torch.ops.aten
        runs["flash + lse"] = lambda: aten._scaled_dot_product_flash_attention(*parts, 0.0, case.is_causal)
        runs["cuDNN + lse"] = lambda: aten._scaled_dot_product_cudnn_attention(*parts, None, True, 0.0, case.is_causal)
    if case.queries == SEARCH_KEYS:

        def dense() -> object:
            scores = parts[0] @ parts[1].mT * problem.scale
            if case.is_causal:
                hidden = torch.ones(case.queries, case.keys, dtype=torch.bool, device="cuda").triu_(1)
                scores = scores.masked_fill_(hidden, -torch.inf)
            weights = scores.softmax(-1)
            return weights @ parts[2], torch.special.entr(weights).sum(-1), weights.sum(-2)

        runs["dense, entropy, received"] = dense
    return runs


def measure(search: Search, case: Case, rounds: int) -> dict[str, list[float]]:
    """All peers and passes of a case in turn."""
    problem = prepared(case)
    calls = {name: (problem.call(name), search.config(case, name)) for name in PASSES}

    def ours(*names: str) -> Run:
        def run() -> None:
            for name in names:
                call, config = calls[name]
                call.run(config)

        return run

    runs = peers(problem)
    together = [("rows: entropy", "columns"), ("forward: entropy", "columns")]
    together += [("terms", "backward keys", "backward queries")]
    together += [("rows: mass", "terms: measures", "backward keys: measures", "backward queries: measures")]
    if case.dtype == torch.float32:
        together, names = together[:2], [name for name in PASSES if name.startswith(("forward", "rows", "columns"))]
    else:
        names = list(PASSES)
    runs |= {name: ours(name) for name in names} | {" + ".join(parts): ours(*parts) for parts in together}
    for peer in ("flash", "cuDNN"):
        if f"{peer} + lse" in runs:
            vendor, sweeps = runs[f"{peer} + lse"], ours("rows: entropy", "columns")
            runs[f"{peer} + lse + rows: entropy + columns"] = lambda vendor=vendor, sweeps=sweeps: (vendor(), sweeps())
    return in_turn(runs, rounds)


def host_times(rounds: int = 200) -> dict[str, float]:
    """Microseconds of the host for a call of 8 × 64 tokens."""
    problem = prepared(Case(8, 12, 64, 64, 64, 64, torch.bfloat16, is_causal=False))
    config, parts = Config(64, 64, 4, 2), (problem.query, problem.key, problem.value)
    call, columns = problem.call("forward: entropy"), problem.call("columns")
    compiled, grid = call.compile(config), call.grid(config)
    every = dict(zip(call.kernel.arg_names, call.args, strict=False)) | call.keywords(config)
    args = [every[name] for name in call.kernel.arg_names]
    runs: dict[str, Run] = {
        "SDPA": lambda: sdpa(*parts),
        "flash + lse": lambda: torch.ops.aten._scaled_dot_product_flash_attention(*parts, 0.0, False),
        "forward: entropy, arguments ready": lambda: call.run(config),
        "forward: entropy, arguments built": lambda: problem.call("forward: entropy").run(config),
        "columns, arguments ready": lambda: columns.run(config),
        "forward: entropy, compiled kernel": lambda: compiled[grid](*args),
        "three empty tensors": lambda: [torch.empty_like(problem.output), *map(torch.empty_like, problem.rows[:2])],
    }
    found: dict[str, float] = {}
    for name, run in runs.items():
        try:
            for _ in range(rounds // 10):
                run()
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(rounds):
                run()
            found[name] = (time.perf_counter() - start) / rounds * 1e6
            torch.cuda.synchronize()
        except (RuntimeError, TypeError, ValueError) as error:
            print(f"gpu_passes: host time, {name}: {str(error)[:200]}", flush=True)
    return found


def peak() -> float:
    """TFLOP/s of a bfloat16 matrix product of 8192³."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in "ab")
    return 2 * 8192**3 / statistics.median(in_turn({"product": lambda: a @ b}, 10)["product"]) / 1e9


def table(times: dict[str, dict[str, list[float]]], search: Search, top: float) -> None:
    """Milliseconds of each pass and shape; best configurations with the share of the peak."""
    print("\nbest configurations at 4,096: ms, share of the measured peak")
    for (head_dim, is_causal, name), (ms, config) in sorted(search.best.items(), key=str):
        flops = PRODUCTS[name.partition(":")[0]] * Case.square(SEARCH_KEYS, head_dim, is_causal).products()
        share = flops / ms / 1e9 / top if top else 0
        print(f"{head_dim} {'causal' if is_causal else 'full':6} {name:32} {config!s:18} {ms:.3f} {share:.0%}")
    for shape, runs in times.items():
        print(f"\n{shape}: median ms")
        print("; ".join(f"{name} {statistics.median(values):.3f}" for name, values in runs.items() if values))


def main() -> None:
    """Compile, check, search, compare; write whatever is there at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=150, help="seconds")
    parser.add_argument("--keys", type=int, nargs="*", default=[4096, 16384, 512])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, default=15)
    arguments = parser.parse_args()
    start = time.monotonic()

    def progress(what: str) -> None:
        print(f"gpu_passes: {time.monotonic() - start:.0f} s: {what}", flush=True)

    torch.manual_seed(SEED)
    times: dict[str, dict[str, list[float]]] = {}
    errors: dict[str, Any] = {}
    host: dict[str, float] = {}
    top = 0.0
    context = multiprocessing.get_context("fork")  # before this process opens the GPU
    pool = concurrent.futures.ProcessPoolExecutor(arguments.workers, mp_context=context)
    search = Search(pool, jobs())
    try:
        top = peak()
        progress(f"{torch.cuda.get_device_name()}, triton {triton.__version__}, peak {top:.0f} TFLOP/s")
        errors, failures = check_all("cuda")
        progress(f"checked; failures: {failures or 'none'}")
        search.run_until(start + 0.55 * arguments.budget)
        progress(f"searched {len(search.results)} configurations, {len(search.waiting)} left out")
        pool.shutdown(wait=False, cancel_futures=True)
        cases = [
            Case.square(n, dim, is_causal) for dim, n, is_causal in product(HEAD_DIMS, arguments.keys, (True, False))
        ]
        cases += [Case.square(SEARCH_KEYS, 128, True, torch.float16)]
        cases += [Case.square(SEARCH_KEYS, 64, True, torch.float32)]
        host = host_times()
        for case in cases:
            if time.monotonic() - start > 0.9 * arguments.budget:
                progress("the budget is spent")
                break
            dtype = str(case.dtype).removeprefix("torch.")
            mask = "causal" if case.is_causal else "full"
            times[f"{dtype}, {mask}, {case.keys} keys, head_dim {case.head_dim}"] = measure(
                search, case, arguments.rounds
            )
        progress("compared")
    finally:
        ratios = {
            f"time relative to SDPA: {name}, {shape}": [
                ours / sdpa_time for ours, sdpa_time in zip(values, runs["SDPA"], strict=True)
            ]
            for shape, runs in times.items()
            for name, values in runs.items()
            if runs.get("SDPA") and name != "SDPA"
        }
        medians = {
            shape: {name: statistics.median(values) for name, values in runs.items() if values}
            for shape, runs in times.items()
        }
        settings = {"milliseconds": medians, "host_microseconds": host, "peak_tflops": top, "errors": errors}
        settings |= {"configurations": search.results, "triton": triton.__version__}
        if torch.cuda.is_available():
            settings["gpu"] = torch.cuda.get_device_name()
        report("gpu_passes", ratios, SEED, **settings)
        table(times, search, top)
        print("host, µs:", {name: round(value, 1) for name, value in host.items()})


if __name__ == "__main__":
    main()
