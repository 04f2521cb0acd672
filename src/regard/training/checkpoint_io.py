"""The training state on disk: written atomically, and loaded as plain data that cannot run code."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO

from regard.errors import InvalidCheckpoint
from regard.files import atomic_write

FILE = "state.ckpt"


class AtomicCheckpointIO(CheckpointIO):
    """Writes and reads the training state for lightning."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write the state; it replaces the old one when it is on disk.

        Raises:
            InvalidFile: If it cannot be written; the old state stays.
        """
        path = Path(path)
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)  # not into the file: torch's writer hides why a write failed
        with atomic_write(path, partial_name=f".{path.name}.draft") as file:  # one name: kills leave one file at most
            file.write(buffer.getbuffer())

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a state, always as plain data.

        Raises:
            InvalidCheckpoint: If it is missing, damaged, or holds more than plain data.
        """
        return self._load(path, map_location)

    def load_step(self, path: Path) -> dict[str, Any]:
        """Read a state whose tensors stay in the file: for its numbers."""
        return self._load(path, mmap=True)

    def _load(self, path: Any, map_location: Any = None, *, mmap: bool = False) -> dict[str, Any]:
        if Path(path).is_file() and not zipfile.is_zipfile(path):
            raise InvalidCheckpoint(f"{path}: the training state is damaged: it is cut short, or something else")
        try:
            return torch.load(path, map_location=map_location or "cpu", weights_only=True, mmap=mmap)
        except FileNotFoundError:
            raise InvalidCheckpoint(f"{path}: no such training state") from None
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            reason = str(error).partition("\n")[0]
            raise InvalidCheckpoint(f"{path}: the training state is damaged: {reason}") from error

    def remove_checkpoint(self, path: Any) -> None:
        """Remove a state."""
        Path(path).unlink(missing_ok=True)
