"""Trainings in the working directories of two machines, each with its own recipe and data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch
import yaml

from helpers.forked import start
from helpers.training_processes import train_in
from helpers.training_runs import write_corpus

RUN = "runs/mine"
MAX_STEPS = 12


def working_directory(folder: Path, **trainer: Any) -> Path:
    """A directory with a recipe, whose paths are relative, and its data."""
    folder.mkdir()
    write_corpus(folder / "train.tsv", 400, seed=1)
    write_corpus(folder / "valid.tsv", 20, seed=2)
    keys = {
        "output_dir": RUN,
        "data": {"train": "train.tsv", "valid": "valid.tsv", "max_tokens_per_batch": 200},
        "tokenizer": {"vocab_size": 300},
        "model": {"d_model": 16, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1, "d_ff": 32},
        "optimizer": {"learning_rate": 0.01, "warmup_steps": 20},
        "trainer": {"max_steps": MAX_STEPS, "log_every_n_steps": 3, "accelerator": "cpu", **trainer},
        "validation": {"every_n_steps": 6, "bleu_sentences": 4},
        "checkpoint": {"every_n_steps": 5},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(keys))
    return folder


def free_port() -> str:
    """A port that nothing listens on."""
    return str(torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False).port)


def train_two(
    first: Path,
    second: Path,
    *,
    resume: bool = False,
    interfere: Callable[[Sequence[ForkServerProcess]], None] = lambda processes: None,
) -> list[str]:
    """Train in two processes as torchrun starts them: on one machine, or on two that share no folder.

    Args:
        first: The working directory of the first process.
        second: That of the second; the same if they are on one machine.
        resume: Whether to continue a run.
        interfere: What to do to the processes.

    Returns:
        The last line that each has written to its standard error if it failed, else an empty one.
    """
    store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    per_machine = 2 if first == second else 1
    shared = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port), "WORLD_SIZE": "2"}
    shared |= {"LOCAL_WORLD_SIZE": str(per_machine), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    shared["TORCHELASTIC_RUN_ID"] = "test"
    processes: list[ForkServerProcess] = []
    errors = [folder / f"errors{rank}.txt" for rank, folder in enumerate((first, second))]
    for rank, folder in enumerate((first, second)):
        machine, local = divmod(rank, per_machine)
        ranks = {"RANK": str(rank), "LOCAL_RANK": str(local), "GROUP_RANK": str(machine)}
        processes.append(start(train_in, str(folder), resume, errors=errors[rank], **shared, **ranks))
    interfere(processes)
    for process in processes:
        process.join(300)
        process.kill()
    return [
        last_line(path.read_text()) if process.exitcode else "" for process, path in zip(processes, errors, strict=True)
    ]


def last_line(text: str) -> str:
    """The last line that is not empty."""
    return text.rstrip().rpartition("\n")[2]
