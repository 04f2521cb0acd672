"""``regard check``: whether the kernels are right on this machine, and how fast they are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.info import gather_machine, print_facts
from regard.cli.options import JsonOption
from regard.cli.output import progress

if TYPE_CHECKING:
    import torch

    from regard.diagnostics.comparison import Difference
    from regard.diagnostics.speed import Speeds

SHARE_TO_BEGIN, SHARE_TO_COMPARE = 5 / 6, 8 / 15
"""What is not begun after these shares of the time is left out; the second is that of the comparison before speed."""
MAX_LISTED = 20
"""Maximum number of calls with wrong results in the report; `--json` has all results."""
MIN_CELLS_OF_THREADS = 2**16
"""Smaller cases run on one thread."""
MIN_WIDTH = 120
"""Width of the table of times: a narrower terminal wraps lines."""


def check(
    *,
    device: Annotated[str, typer.Option(help="Device to check: cpu, cuda, cuda:1 or mps.")] = "cpu",
    speed: Annotated[bool, typer.Option("--speed/--no-speed", help="Measure the speed, too.")] = True,
    minutes: Annotated[float, typer.Option(min=0, help="Time limit; what does not fit is left out.")] = 1.0,
    as_json: JsonOption = False,
) -> None:
    """Check that every kernel computes what it should on this machine, and measure its speed, in a minute.

    Compares outputs, gradients and measures of each kernel with the definition of attention in float64, for many masks,
    scores, shapes and dtypes. Then it measures `attend` next to PyTorch's SDPA; close other programs for that.

        regard check
        regard check --device cuda --no-speed
        regard check --minutes 10

    Each kernel is compared first, whatever the time limit; the report names the cases that were left out.
    The exit code is 1 if a result is wrong. The report then names kernel, case and difference; paste all of it into a
    bug report.
    """
    from regard.pipelines.base import available_device

    start = perf_counter()
    target = available_device(device)
    max_seconds = 60 * minutes * SHARE_TO_BEGIN
    differences, left_out = _compare(target, 60 * minutes * SHARE_TO_COMPARE if speed else max_seconds)
    speeds = _measure(target, max_seconds - (perf_counter() - start)) if speed else None
    wrong = [each for each in differences if each.is_wrong]
    machine = gather_machine()
    if as_json:
        report = {
            **machine,
            "device": str(target),
            "num_results": len(differences),
            "cases_left_out": left_out,
            "largest_differences": _largest(differences),
            "wrong": [each.as_dict() for each in wrong],
        }
        if speeds is not None:
            report["peak_gflops"] = {name: round(peak, 1) for name, peak in speeds.peaks.items()}
            report["speed"] = [timing.as_dict() for timing in speeds.timings]
        print(json.dumps(report, ensure_ascii=False, indent=2))
    else:
        print_facts(machine)
        _print_differences(differences, wrong)
        if left_out:
            more = f", and {len(left_out) - MAX_LISTED:,} more" if len(left_out) > MAX_LISTED else ""
            print(f" Left out for lack of time (--minutes {minutes:g}): {'; '.join(left_out[:MAX_LISTED])}{more}")
        if speeds is not None:
            _print_speed(speeds)
    if wrong:
        raise typer.Exit(1)


def _compare(device: torch.device, max_seconds: float) -> tuple[list[Difference], list[str]]:
    """The differences of all kernels, and the names of the cases for which the time was not enough."""
    import torch

    from regard.diagnostics.cases import CASES
    from regard.diagnostics.comparison import compare, dtypes_of, in_order_of_coverage, runs_on
    from regard.ops.kernels.dispatch import KERNELS

    start = perf_counter()
    kernels, threads = [kernel for kernel in KERNELS if runs_on(kernel, device)], torch.get_num_threads()
    cases, missing = in_order_of_coverage(CASES, kernels, device), {kernel.name for kernel in kernels}
    differences: list[Difference] = []
    left_out: list[str] = []
    try:
        with progress("comparing kernels with the definition", len(cases), "cases") as advance:
            for case in cases:
                if perf_counter() - start > max_seconds and not missing:
                    left_out.append(case.name)
                    continue
                # The threads of a small call wait for each other on a busy machine.
                torch.set_num_threads(threads if case.shape.queries * case.shape.keys >= MIN_CELLS_OF_THREADS else 1)
                for kernel in kernels:
                    for dtype in dtypes_of(kernel, device):
                        found = compare(kernel, case, dtype, device)
                        missing -= {each.kernel for each in found}
                        differences += found
                advance(1)
    finally:
        torch.set_num_threads(threads)
    return differences, left_out


def _measure(device: torch.device, max_seconds: float) -> Speeds:
    from regard.diagnostics.speed import Speeds, count_timings, measure_peaks, measure_speed

    start = perf_counter()
    with progress("measuring the speed", count_timings() + 2, "calls") as advance:
        before = measure_peaks(device)
        advance(1)
        timings = measure_speed(device, advance, max_seconds - 2 * (perf_counter() - start))  # the peaks come again
        after = measure_peaks(device)  # other programs may have slowed down one of the two
        advance(1)
    return Speeds({name: max(peak, after[name]) for name, peak in before.items()}, timings)


def _largest(differences: Iterable[Difference]) -> dict[str, dict[str, str]]:
    """The largest difference of each kernel and dtype, as text: JSON has no infinity."""
    largest: dict[str, dict[str, float]] = {}
    for each in differences:
        own = largest.setdefault(each.kernel, {})
        own[each.dtype] = max(own.get(each.dtype, 0.0), each.difference)
    return {
        kernel: {dtype: f"{difference:.0e}" for dtype, difference in own.items()} for kernel, own in largest.items()
    }


def _worst_of_calls(wrong: Iterable[Difference]) -> list[Difference]:
    """The largest difference of each kernel, case and dtype."""
    calls: dict[tuple[str, str, str], Difference] = {}
    for each in wrong:
        call = each.kernel, each.case, each.dtype
        if call not in calls or each.difference > calls[call].difference:
            calls[call] = each
    return list(calls.values())


def _print_differences(differences: Sequence[Difference], wrong: Sequence[Difference]) -> None:
    from rich.console import Console
    from rich.text import Text

    from regard.diagnostics.calls import TOLERANCES
    from regard.explore.terminal import plain_table
    from regard.ops.kernels.dispatch import KERNELS

    console, largest = Console(), _largest(differences)
    dtypes = [str(dtype).removeprefix("torch.") for dtype in TOLERANCES]
    console.print(Text("largest difference from the definition, relative to the largest entry", style="bold"))
    table = plain_table(gap=2)
    table.add_column(" kernel", no_wrap=True)
    for dtype in dtypes:
        table.add_column(dtype, justify="right", no_wrap=True)
    for kernel, own in largest.items():
        table.add_row(f" {kernel}", *(own.get(dtype, "") for dtype in dtypes))
    console.print(table)
    if not wrong:
        text = f" {len(differences):,} results, all as exact as their dtype allows"
        if unavailable := [kernel.name for kernel in KERNELS if kernel.unavailable_reason()]:
            text += f"; not checked, because not available: {', '.join(unavailable)}"
        console.print(text, highlight=False, soft_wrap=True)
        return
    console.print(Text(f"{len(wrong):,} of {len(differences):,} results are wrong", style="bold red"))
    calls = _worst_of_calls(wrong)
    for each in calls[:MAX_LISTED]:
        console.print(Text(f" {each}"), soft_wrap=True)
    if len(calls) > MAX_LISTED:
        console.print(f" … and {len(calls) - MAX_LISTED:,} more calls; --json lists all results", highlight=False)
    console.print("Paste this report into a bug report.")


def _print_speed(speeds: Speeds) -> None:
    from rich.console import Console
    from rich.text import Text

    from regard.diagnostics.speed import HEAD_DIM, HEADS
    from regard.explore.terminal import plain_table

    console = Console()
    console = Console(width=max(console.width, MIN_WIDTH))
    console.print(Text(f"speed: {HEADS} heads of {HEAD_DIM}, times in ms, lower is better", style="bold"))
    table = plain_table(gap=2)
    for name in (" dtype", "tokens", "pass", "results", "kernel"):
        table.add_column(name, no_wrap=True)
    for name in ("time", "SDPA", "relative", "GFLOP/s", "of peak"):
        table.add_column(name, no_wrap=True, justify="right")
    for each in speeds.timings:
        table.add_row(
            f" {each.dtype}",
            f"{each.batch} × {each.tokens:,}",
            "forward, backward" if each.backward else "forward",
            each.results,
            each.kernel,
            f"{each.milliseconds:.2f}",
            f"{each.sdpa_milliseconds:.2f}",
            f"{each.milliseconds / each.sdpa_milliseconds:.2f}",
            f"{each.gflops:.0f}",
            f"{each.gflops / speeds.peaks[each.dtype]:.0%}",
        )
    console.print(table)
    if speeds.left_out:
        console.print(f" Left out, because they would take too long: {speeds.left_out}.", highlight=False)
    measured = ", ".join(f"{peak:,.0f} GFLOP/s in {dtype}" for dtype, peak in speeds.peaks.items())
    for line in (
        "SDPA computes the output alone. Times are the shortest of several calls; relative is time / SDPA.",
        "GFLOP/s count two matrix products forward and seven with backward, and nothing for measures.",
        f"Peak is the fastest matrix product of torch that was measured: {measured}.",
    ):
        console.print(f" {line}", highlight=False, soft_wrap=True)
