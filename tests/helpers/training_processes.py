"""Training in processes that a test starts. Lightning is imported by each process, so that it knows its rank."""

from __future__ import annotations

import importlib
import os
import signal
import warnings
from typing import Any

import torch


def train_file(recipe: str, resume: bool = False) -> None:
    """Train what a file describes."""
    from regard.training import load_recipe, train

    warnings.filterwarnings("error", category=UserWarning, module="regard")
    train(load_recipe(recipe), resume=resume)


def train_rank(recipe: str, resume: bool = False) -> None:
    """Train as one of several processes, and save the weights of each."""
    from regard.training import loop

    fit = loop._Run.fit

    def fit_and_save(run: Any) -> None:
        fit(run)
        torch.save(run.model.state_dict(), f"{run.recipe.output_dir}/rank{run.fabric.global_rank}.pt")

    loop._Run.fit = fit_and_save
    train_file(recipe, resume)


def train_and_kill(recipe: str, moment: str) -> None:
    """Train until the function ``module:name`` is called, which kills the process."""
    module, _, name = moment.rpartition(":")
    owner: Any = importlib.import_module(module)
    *path, name = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    setattr(owner, name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
    train_file(recipe)
