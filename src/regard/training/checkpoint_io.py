"""The training state on disk: written atomically, and read as plain data that cannot run code."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io import TorchCheckpointIO

from regard.errors import InvalidCheckpoint
from regard.files import atomic_write

STATE_FILE = "state.ckpt"
STATE_KEYS = ("global_step", "state_dict", "loops", "optimizer_states", "lr_schedulers", "sums", "random", "best")


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's reading and writing of the training state."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write the state; it replaces the old one when it is complete and on disk.

        Raises:
            InvalidFile: If it cannot be written; the old state stays.
        """
        path = Path(path)
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)  # not to the file: torch hides why writing failed
        with atomic_write(path) as file:
            file.write(buffer.getbuffer())

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a state, always as plain data.

        Raises:
            InvalidCheckpoint: If it is missing, damaged, or holds other objects.
        """
        return _load(path, map_location or "cpu")


def saved_step(path: Path) -> int:
    """The step of a training state, without reading its tensors.

    Raises:
        InvalidCheckpoint: If it is damaged or not a training state.
    """
    state = _load(path, "cpu", mmap=True)
    missing = [key for key in STATE_KEYS if not isinstance(state, dict) or key not in state]
    if missing:
        raise InvalidCheckpoint(f"{path}: expected a training state, got a file without {', '.join(missing)}")
    return state["global_step"]


def _load(path: Any, map_location: Any, *, mmap: bool = False) -> dict[str, Any]:
    try:
        return torch.load(path, map_location=map_location, weights_only=True, mmap=mmap)
    except FileNotFoundError:
        raise InvalidCheckpoint(f"{path}: no such file") from None
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidCheckpoint(f"{path}: expected a training state, got a damaged file: {reason}") from error
