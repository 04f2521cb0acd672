"""Peak memory of a call, and calls in a process of their own."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any


def peak_megabytes(run: Callable[[], object]) -> float:
    """Peak resident memory during a call in MB, including its result, above that before the call."""
    gc.collect()
    before, peak, done = _resident_bytes(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.001):
            peak = max(peak, _resident_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    result = run()  # kept alive, so that its memory counts
    peak = max(peak, _resident_bytes())
    done.set()
    watcher.join()
    del result
    return (peak - before) / 1e6


def in_subprocess(function: Callable[..., float], *arguments: Any) -> float:
    """The result of a function that runs in a new process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(function, *arguments).result()


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
