"""The mean of the last snapshots of the weights, which translates better than any one of them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file

from regard.models import save_model
from regard.models.checkpoint import WEIGHTS_FILE, Model


class Snapshots:
    """The weights at the last few steps that were asked for.

    Args:
        folder: Where they lie, one folder a step.
        keep: How many; older ones are removed.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder, keep

    def folders(self) -> list[Path]:
        """Give the snapshots, oldest first."""
        return sorted(path for path in self.folder.glob("step-*") if (path / WEIGHTS_FILE).is_file())

    def take(self, model: Model, step: int) -> None:
        """Save the weights of a step, and remove the oldest ones that are not needed any more."""
        save_model(self.folder / f"step-{step:09d}", model)
        for old in self.folders()[: -self.keep]:
            shutil.rmtree(old)

    def cut_back(self, step: int) -> None:
        """Remove what was taken after a step."""
        for path in self.folder.glob("step-*"):
            if int(path.name.removeprefix("step-")) > step:
                shutil.rmtree(path)


def load_average(model: Model, folders: Sequence[Path]) -> None:
    """Set a model's weights to the mean of saved ones, summed in float64.

    Args:
        model: Has the shapes of all of them.
        folders: Model folders, at least one.
    """
    sums = {
        name: torch.zeros_like(weight, dtype=torch.float64, device="cpu") for name, weight in model.named_parameters()
    }
    for folder in folders:
        for name, weight in load_file(folder / WEIGHTS_FILE).items():
            sums[name] += weight
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(sums[name] / len(folders))
