"""Processes that are forked from one that has imported what takes most of the time to import.

Lightning is imported by each process itself, so that it reads the environment of that process, such as its rank.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import torch

_FORK_SERVER = multiprocessing.get_context("forkserver")
_FORK_SERVER.set_forkserver_preload(["torch._dynamo", "torchmetrics", "regard.ops"])


def start(function: Callable[..., object], *arguments: object, errors: Path, **environment: str) -> ForkServerProcess:
    """Call a function of a module in a new process, which writes its standard error to a file."""
    process = _FORK_SERVER.Process(target=_run, args=(function, arguments, str(errors), environment))
    process.start()
    return process


def finish(processes: Sequence[ForkServerProcess], errors: Sequence[Path]) -> None:
    """Wait for processes that must not fail; if one does, those that may wait for it are killed."""
    while any(process.is_alive() for process in processes) and not any(process.exitcode for process in processes):
        time.sleep(0.01)
    for process in processes:
        process.kill()
    for process, path in zip(processes, errors, strict=True):
        process.join()
        assert process.exitcode == 0, path.read_text()


def _run(function: Callable[..., object], arguments: tuple[object, ...], errors: str, environment: dict[str, str]):
    with open(errors, "wb") as file:
        os.dup2(file.fileno(), 2)
    sys.stderr = os.fdopen(2, "w", closefd=False)
    os.environ.update(environment)
    warnings.filterwarnings("error", category=UserWarning, module="regard")
    torch.set_num_threads(1)
    function(*arguments)
