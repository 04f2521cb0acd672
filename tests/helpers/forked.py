"""Processes that are forked from one that has imported what takes most of the time to import.

Lightning reads the rank when it is imported; here each process gets its own when it begins.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import TextIO

import torch

_FORK_SERVER = multiprocessing.get_context("forkserver")
_TASKS = [f"regard.training.tasks.{name}" for name in ("causal_lm", "classification", "masked_lm", "translation")]
_FORK_SERVER.set_forkserver_preload(
    [
        "torch._dynamo",
        "torch.distributed.checkpoint.state_dict",
        "torch.utils.tensorboard",
        "torchmetrics",
        "regard.ops",
        "regard.training.loop",
        *_TASKS,
    ]
)


def start(function: Callable[..., object], *arguments: object, errors: Path, **environment: str) -> ForkServerProcess:
    """Call a function of a module in a new process, which writes its standard error to a file."""
    process = _FORK_SERVER.Process(target=_run, args=(function, arguments, str(errors), environment))
    process.start()
    return process


def finish(processes: Sequence[ForkServerProcess], errors: Sequence[Path], timeout: float = 300) -> None:
    """Wait for processes that must not fail; if one does, those that may wait for it are killed."""
    end = time.monotonic() + timeout
    while any(process.is_alive() for process in processes) and time.monotonic() < end:
        if any(process.exitcode for process in processes):
            break
        time.sleep(0.01)
    for process in processes:
        process.kill()
    for process, path in zip(processes, errors, strict=True):
        process.join()
        assert process.exitcode == 0, path.read_text()


@dataclass(frozen=True)
class Ranks:
    """The processes of one training, the files of their errors, and the store in which they meet."""

    processes: list[ForkServerProcess]
    errors: list[Path]
    store: torch.distributed.TCPStore

    def finish(self) -> None:
        """Wait for processes that must not fail."""
        finish(self.processes, self.errors)


def start_ranks(function: Callable[..., object], *arguments: object, folder: Path, world_size: int) -> Ranks:
    """Call a function in processes as torchrun starts them on one machine."""
    store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    shared = {
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": folder.name,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    errors = [folder / f"errors{rank}.txt" for rank in range(world_size)]
    processes = [
        start(function, *arguments, errors=path, **shared, RANK=str(rank), LOCAL_RANK=str(rank))
        for rank, path in enumerate(errors)
    ]
    return Ranks(processes, errors, store)


@dataclass(frozen=True)
class ScriptResult:
    """Exit code and output of a script."""

    code: int | None
    out: str
    err: str


def run_script(
    script: Path, *arguments: object, folder: Path, timeout: float = 300, **environment: str
) -> ScriptResult:
    """Run a Python script in a folder that also gets the files of its output."""
    out, errors = folder / "stdout.txt", folder / "stderr.txt"
    strings = list(map(str, arguments))
    process = start(_run_script, str(script), strings, str(folder), str(out), errors=errors, **environment)
    process.join(timeout)
    process.kill()
    process.join()
    return ScriptResult(process.exitcode, out.read_text("utf-8"), errors.read_text("utf-8"))


def run_code(code: str, *, folder: Path, timeout: float = 300, **environment: str) -> ScriptResult:
    """Run Python code in a folder; a warning is an error."""
    script = folder / "script.py"
    script.write_text(f"import warnings\nwarnings.simplefilter('error')\n{code}", "utf-8")
    return run_script(script, folder=folder, timeout=timeout, **environment)


def _run_script(script: str, arguments: list[str], folder: str, out: str) -> None:
    sys.stdout = _redirect(1, out)
    os.chdir(folder)
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(script))
    runpy.run_path(script, run_name="__main__")


def _run(function: Callable[..., object], arguments: tuple[object, ...], errors: str, environment: dict[str, str]):
    from lightning_fabric.utilities import rank_zero

    sys.stderr = _redirect(2, errors)
    os.environ.update(environment)
    rank_zero.rank_zero_only.rank = rank_zero._get_rank() or 0
    multiprocessing.set_start_method("fork", force=True)  # of a loader's workers; otherwise each imports all again
    torch.set_num_threads(1)
    function(*arguments)


def _redirect(descriptor: int, path: str) -> TextIO:
    """Let a descriptor write to a file; return a stream of it."""
    with open(path, "wb") as file:
        os.dup2(file.fileno(), descriptor)
    return os.fdopen(descriptor, "w", buffering=1, encoding="utf-8", closefd=False)
