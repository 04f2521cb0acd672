"""Training in processes that a test starts."""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
import warnings
from typing import Any

import torch

from helpers.pairwise import everything


def train_file(recipe: str, resume: bool = False) -> None:
    """Train what a file describes."""
    from regard.training import load_recipe, train

    warnings.filterwarnings("error", category=UserWarning, module="regard")
    train(load_recipe(recipe), resume=resume)


def train_in(folder: str, resume: bool = False) -> None:
    """Train what ``recipe.yaml`` of a working directory describes."""
    os.chdir(folder)
    train_file("recipe.yaml", resume)


NEXT_COMMAND = "-- next command --\n"


def run_commands(commands: str) -> None:
    """Run ``regard train`` with the arguments of this process, once for each command; all must fail with code 2."""
    from regard.cli.main import main
    from regard.training import processes

    processes.PRINT = 0.0  # nothing ends process 0 when another has ended
    for arguments in json.loads(commands)[int(os.environ["RANK"])]:
        sys.argv = ["regard", "train", *arguments]
        try:
            main()
        except SystemExit as error:
            if error.code != 2:
                raise
        else:
            raise AssertionError(arguments)
        sys.stderr.write(NEXT_COMMAND)


def train_rank(recipe: str, resume: bool = False) -> None:
    """Train as one of several processes, and save the weights of each that are not divided."""
    from regard.training import loop

    fit = loop._Run.fit

    def fit_and_save(run: Any) -> None:
        fit(run)
        whole = {name: weight for name, weight in run.model.state_dict().items() if type(weight) is torch.Tensor}
        torch.save(whole, f"{run.recipe.output_dir}/rank{run.fabric.global_rank}.pt")

    loop._Run.fit = fit_and_save
    train_file(recipe, resume)


def train_with_fault(recipe: str, fault: str, victim: int, step: int = 8, resume: bool = False) -> None:
    """Train as the command line does, as one of several processes, of which one meets a fault at the begin of a step.

    Args:
        recipe: The file.
        fault: A signal, such as ``SIGKILL``, ``early SIGTERM`` before the first step, ``full disk``, ``out of memory``,
            or a key and its value that only this process has.
        victim: The number of the process.
        step: The step.
        resume: Whether to resume.
    """
    from regard.cli.main import main
    from regard.training import loop, processes

    if not everything():
        processes.SILENCE, processes.GRACE = 8.0, 4.0  # seconds: tests need not wait as long as users
    options = [f"--{fault}"] if "=" in fault and int(os.environ.get("RANK", "0")) == victim else []
    take_step, build_loaders = loop._Run.take_step, loop.build_loaders

    def build_loaders_with_fault(task: Any, fabric: Any) -> Any:
        if fault.startswith("early ") and fabric.global_rank == victim:
            os.kill(os.getpid(), signal.Signals[fault.removeprefix("early ")])
        return build_loaders(task, fabric)

    def meet_fault(run: Any, batches: Any) -> None:
        if run.fabric.global_rank == victim and run.step == step:
            if fault.startswith("SIG"):
                os.kill(os.getpid(), signal.Signals[fault])
            elif fault == "full disk":
                run.saver.wait()  # for the state before
                resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
            elif fault == "out of memory":
                raise torch.OutOfMemoryError
        take_step(run, batches)

    loop._Run.take_step, loop.build_loaders = meet_fault, build_loaders_with_fault
    sys.argv = [sys.argv[0], "train", recipe, *options, *(["--resume"] if resume else [])]
    main()


def train_and_kill(recipe: str, moment: str) -> None:
    """Train until the function ``module:name`` is called, which kills the process."""
    module, _, name = moment.rpartition(":")
    owner: Any = importlib.import_module(module)
    *path, name = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    setattr(owner, name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
    train_file(recipe)
