"""Times on a GPU, or for a dry run on the CPU: all runs in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import torch

Run = Callable[[], object]


class Clock:
    """Times runs on a device, in turn, until the budget is spent.

    Attributes:
        ratios: By what was compared, of each round.
        medians: Milliseconds, by what ran.
    """

    def __init__(self, device: str, budget: float, rounds: int) -> None:
        self.device, self.rounds = device, rounds
        self.start, self.budget = time.monotonic(), budget
        self.ratios: dict[str, list[float]] = {}
        self.medians: dict[str, float] = {}

    def is_over(self, share: float = 1.0) -> bool:
        """Whether a share of the budget is spent."""
        return time.monotonic() - self.start > share * self.budget

    def milliseconds(self, run: Run) -> float:
        """Of the device: a pause before the first event lets the host queue all launches."""
        if self.device == "cpu":
            start = time.perf_counter()
            run()
            return (time.perf_counter() - start) * 1e3
        first, last = (torch.cuda.Event(enable_timing=True) for _ in "12")
        torch.cuda._sleep(1_000_000)
        first.record()
        run()
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last)

    def compare(self, runs: dict[str, Run], baseline: str, prefix: str, suffix: str) -> None:
        """Times of all runs relative to one of them."""
        times: dict[str, list[float]] = {}
        for name, run in runs.items():
            if self.is_over():
                print(f"gpu: {suffix}: the time is up; left out: {name} and what follows", flush=True)
                break
            with reported(f"{name}, {suffix}"):
                self.milliseconds(run), self.milliseconds(run)
                times[name] = [self.milliseconds(run)]
        for _ in range(self.rounds - 1):
            if self.is_over():
                break
            for name, found in times.items():
                found.append(self.milliseconds(runs[name]))
        for name, found in times.items():
            self.medians[f"{name}, {suffix}"] = statistics.median(found)
            if name != baseline and baseline in times:
                pairs = zip(found, times[baseline], strict=True)
                self.ratios[f"{prefix}: {name}, {suffix}"] = [mine / other for mine, other in pairs]
        print(f"gpu: {suffix}:", {name: round(statistics.median(each), 3) for name, each in times.items()}, flush=True)


@contextmanager
def reported(what: str) -> Generator[None]:
    """Report whatever fails, and go on."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - of a kernel, a compiler or a peer
        print(f"gpu: {what}: {type(error).__name__}: {str(error)[:300]}", flush=True)


def without_gradients(run: Run) -> Run:
    """The run without gradients."""

    def quiet() -> object:
        with torch.no_grad():
            return run()

    return quiet
