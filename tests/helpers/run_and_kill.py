"""Fork a process for each training that standard input describes, kill it after some seconds, and print its exit code.

A line is ``{"recipe": path, "resume": bool, "seconds": number or null}``, and so is the result: ``{"code", "seconds",
"errors"}``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time

import torch

torch.set_num_threads(1)

from regard.training import load_recipe, train  # noqa: E402 - in a new process one thread must be set first
from regard.training.tasks import (  # noqa: E402, F401 - so that each fork has them
    causal_lm,
    classification,
    masked_lm,
    tagging,
    translation,
)


def run(recipe: str, *, resume: bool) -> None:
    """What a forked process does."""
    os.setsid()  # so that it is killed with its own children
    train(load_recipe(recipe), resume=resume)


def run_training(recipe: str, resume: bool, seconds: float | None) -> dict[str, object]:
    """Run a training in a process of its own, and kill it after some seconds."""
    with tempfile.TemporaryFile() as errors:
        start = time.monotonic()
        process = os.fork()
        if process == 0:
            code = 1
            try:
                os.dup2(errors.fileno(), 2)
                run(recipe, resume=resume)
                code = 0
            finally:
                if code:
                    sys.excepthook(*sys.exc_info())
                sys.stderr.flush()
                os._exit(code)
        while True:
            completed, status = os.waitpid(process, os.WNOHANG)
            took = time.monotonic() - start
            if completed:
                break
            if seconds is not None and took >= seconds:
                os.kill(process, signal.SIGKILL)
                seconds = None
            time.sleep(0.0005)
        code = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        return {"code": code, "seconds": took, "errors": errors.read().decode(errors="replace")[-5000:]}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(run_training(**json.loads(line))), flush=True)
