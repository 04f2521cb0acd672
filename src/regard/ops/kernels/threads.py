"""Streams of blocks on several threads of a CPU.

A block is a dozen operations of half a millisecond. Where each of them is split over all cores, the cores wait for one
another at the end of each; on a machine that does other work too, they wait for whole slices of time, and a call takes
thirty times as long. Streams that share nothing need not wait: each thread works on its own, with one core or a few.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

import torch

Block = TypeVar("Block")

WORTH = 2**32
"""So many multiplications of query with key are worth threads of their own. After an operation on all cores, those of
OpenMP look out for the next one for some milliseconds: they would take the cores from ours, and may as well be used."""

MOST = 8
"""So many threads at most: beyond, they would wait for Python's lock, which each holds for a twentieth of its time."""

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}
_making = threading.Lock()


def most_threads(multiplications: int) -> int:
    """On how many threads a job may run that multiplies queries with keys so many times."""
    return min(MOST, torch.get_num_threads()) if multiplications >= WORTH else 1


def run_all(work: Callable[[int, Iterable[Block]], None], streams: Sequence[Iterable[Block]], threads: int) -> None:
    """Do the work on every stream, with its number.

    Args:
        work: What is done with a stream; on threads it sees neither gradients nor autocast.
        streams: The streams of blocks.
        threads: How many may run at once; more than one only where they share nothing.
    """
    cores = torch.get_num_threads()
    workers = min(threads, cores, len(streams))
    if workers <= 1:
        for number, stream in enumerate(streams):
            work(number, stream)
        return
    inference, stopped = torch.is_inference_mode_enabled(), threading.Event()

    def alone(number: int) -> None:
        if stopped.is_set():
            return
        with torch.inference_mode(inference), torch.no_grad(), torch.autocast("cpu", enabled=False):
            work(number, _until(stopped, streams[number]))

    pool = _threads(workers, cores)
    futures = [pool.submit(alone, number) for number in range(len(streams))]
    try:
        for future in wait(futures, return_when=FIRST_EXCEPTION).done:
            future.result()
    finally:  # after an error or Ctrl-C each thread ends with its block, and nothing goes on behind the caller's back
        stopped.set()
        wait(futures)


def _until(stopped: threading.Event, stream: Iterable[Block]) -> Iterator[Block]:
    """A stream, as long as the others go on."""
    for block in stream:
        if stopped.is_set():
            return
        yield block


def _threads(workers: int, cores: int) -> ThreadPoolExecutor:
    """Threads that share the cores evenly."""
    with _making:
        if (workers, cores) not in _pools:
            each, ready = cores // workers, threading.Barrier(workers + 1)

            def begin() -> None:
                torch.get_num_threads()  # a thread's first call takes over the number of all, so it comes first
                torch.set_num_threads(each)  # of this thread
                ready.wait()

            pool = ThreadPoolExecutor(workers, "regard", initializer=begin)
            for _ in range(workers):
                pool.submit(int)
            ready.wait()
            torch.set_num_threads(cores)  # which threads that start later take over
            _pools[workers, cores] = pool
        return _pools[workers, cores]


def _forget() -> None:
    """A forked process has no threads but the one that forked."""
    global _making
    _pools.clear()
    _making = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
