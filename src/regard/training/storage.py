"""The training state on disk: written whole or not at all, and read as plain data that can run no code."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO

from regard.errors import InvalidCheckpoint, InvalidFile

FILE = "state.ckpt"


class StateFile(CheckpointIO):
    """How lightning writes and reads the training state."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write the state beside the old one, and rename it when it is on the disk.

        Raises:
            InvalidFile: If it cannot be written; the old state is whole.
        """
        path = Path(path)
        draft = path.with_name(f".{path.name}.draft")  # always the same: kills leave one of these, not many
        buffer = io.BytesIO()  # torch's own writer hides why a disk refused
        torch.save(checkpoint, buffer)
        try:
            with draft.open("wb") as file:
                file.write(buffer.getbuffer())
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise InvalidFile(f"{path}: could not be written: {error.strerror}") from error

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a state, always as plain data.

        Raises:
            InvalidCheckpoint: If it is missing, damaged, or holds more than plain data.
        """
        if Path(path).is_file() and not zipfile.is_zipfile(path):
            raise InvalidCheckpoint(f"{path}: the training state is damaged: it is cut short, or something else")
        try:
            return torch.load(path, map_location=map_location or "cpu", weights_only=True)
        except FileNotFoundError:
            raise InvalidCheckpoint(f"{path}: no such training state") from None
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            reason = str(error).partition("\n")[0]
            raise InvalidCheckpoint(f"{path}: the training state is damaged: {reason}") from error

    def remove_checkpoint(self, path: Any) -> None:
        """Remove a state."""
        Path(path).unlink(missing_ok=True)
