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
    from regard.training.module import TaskModule

    def on_train_end(self: TaskModule) -> None:
        torch.save(self.model.state_dict(), f"{self.recipe.output_dir}/rank{self.global_rank}.pt")

    TaskModule.on_train_end = on_train_end
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
