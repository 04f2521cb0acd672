"""Run streams of blocks on several threads of a CPU.

A block is a dozen operations of half a millisecond. If each of them is split over all cores, the cores wait for each
other at the end of each; on a machine that does other work too, they wait for whole time slices, and a call takes
many times as long. Streams share nothing and need not wait: each thread works alone, with one core or a few.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

import torch

Item = TypeVar("Item")

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}
_creating = threading.Lock()


def run_parallel(work: Callable[[Iterable[Item]], None], streams: Sequence[Iterable[Item]], threads: int) -> None:
    """Call ``work(stream)`` for every stream, up to `threads` at once, without gradients and autocast there."""
    cores = torch.get_num_threads()
    workers = min(threads, cores, len(streams))
    if workers <= 1:
        for stream in streams:
            work(stream)
        return
    inference, stopped = torch.is_inference_mode_enabled(), threading.Event()

    def run_stream(stream: Iterable[Item]) -> None:
        if stopped.is_set():
            return
        with torch.inference_mode(inference), torch.no_grad(), torch.autocast("cpu", enabled=False):
            work(_until(stopped, stream))

    pool = _pool(workers, cores)
    futures = [pool.submit(run_stream, stream) for stream in streams]
    try:
        for future in wait(futures, return_when=FIRST_EXCEPTION).done:
            future.result()
    finally:  # after an error or Ctrl-C each thread ends with its block; nothing goes on in the background
        stopped.set()
        wait(futures)


def _until(stopped: threading.Event, stream: Iterable[Item]) -> Iterator[Item]:
    """A stream, until another one has failed."""
    for block in stream:
        if stopped.is_set():
            return
        yield block


def _pool(workers: int, cores: int) -> ThreadPoolExecutor:
    """Threads that share the cores evenly."""
    with _creating:
        if (workers, cores) not in _pools:
            each, ready = cores // workers, threading.Barrier(workers + 1)

            def start() -> None:
                torch.get_num_threads()  # a thread's first call takes over the process's number, so it comes first
                torch.set_num_threads(each)  # of this thread
                ready.wait()

            pool = ThreadPoolExecutor(workers, "regard", initializer=start)
            for _ in range(workers):
                pool.submit(int)
            ready.wait()
            torch.set_num_threads(cores)  # which threads that start later take over
            _pools[workers, cores] = pool
        return _pools[workers, cores]


def _forget() -> None:
    """A forked process has only the thread that forked."""
    global _creating
    _pools.clear()
    _creating = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
