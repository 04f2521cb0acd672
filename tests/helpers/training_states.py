"""Training states: one to save, and what a run has saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from regard.training.state import find_state, save_state

FIELDS = {"step": 7, "num_processes": 1, "loader": {"epoch": 0, "position": 7}, "best": None, "num_worse": 0}


def write_state(run: Path, tensors: dict[str, Tensor] | None = None, **changes: Any) -> Path:
    """Save a state of one process; return its folder."""
    fields = {**FIELDS, **changes}
    save_state(run, fields, {"model.weight": torch.ones(2)} if tensors is None else tensors)
    return run / "state" / f"step-{fields['step']:09d}"


def saved_tensors(run: Path) -> dict[str, Tensor]:
    """The tensors of all files of a run's last state, as they are in the files."""
    state = find_state(run)
    assert state is not None
    return {name: tensor for shard in state.shards for name, tensor in load_file(state.folder / shard).items()}
