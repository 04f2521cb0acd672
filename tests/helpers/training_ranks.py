"""Several processes that train together, as torchrun starts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from helpers import forked
from helpers.training_processes import train_rank


def start_ranks(function: Any, *arguments: object, count: int, folder: Path) -> None:
    """Call a function in each of several processes, and wait until all have succeeded without a warning."""
    folder.mkdir(exist_ok=True)
    ranks = forked.start_ranks(function, *arguments, folder=folder, world_size=count)
    ranks.finish()
    for path in ranks.errors:
        text = path.read_text()
        assert "Warning" not in text.replace("FutureWarning", ""), text


def train_on(count: int, keys: dict[str, Any], *, resume: bool = False) -> Path:
    """Train what keys describe in some processes, and return the folder of the run."""
    run = Path(keys["output_dir"])
    folder = run.with_name(f"{run.name} on {count}")
    folder.mkdir(exist_ok=True)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(keys))
    start_ranks(train_rank, str(folder / "recipe.yaml"), resume, count=count, folder=folder)
    return run
