"""The training state on disk: written atomically with a checksum, and read as plain data that cannot run code."""

from __future__ import annotations

import hashlib
import io
import pickle
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from torch import Tensor

from regard.errors import InvalidCheckpoint, raise_problems, short_repr
from regard.files import atomic_write
from regard.input_files import check_file

STATE_FILE = "state.ckpt"
CHECKSUM_SIZE = 64
"""The SHA-256 of the state is the comment at the end of its file, a ZIP archive."""
STATE_FIELDS: dict[str, tuple[Any, str]] = {
    "global_step": (int, "an int of at least 1"),
    "state_dict": (dict, "a dict of tensors"),
    "loops": (dict, "a dict with fit_loop"),
    "optimizer_states": (list, "a list of one dict"),
    "lr_schedulers": (list, "a list of one dict"),
    "sums": (Tensor, "a tensor (processes, losses)"),
    "random": (Tensor, "a uint8 tensor (processes, bytes)"),
    "best": (float | None, "a float or None"),
}
"""The type of each field, and what messages call its values."""


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
        data = buffer.getbuffer()
        data[-2:] = CHECKSUM_SIZE.to_bytes(2, "little")  # the length of the comment ends the archive
        with atomic_write(path) as file:
            file.write(data)
            file.write(hashlib.sha256(data).hexdigest().encode())

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a state, always as plain data.

        Raises:
            InvalidCheckpoint: If it is missing, unreadable, damaged, or holds other objects.
        """
        return _load(path, map_location or "cpu")


def saved_step(path: Path) -> int:
    """The step of a training state, all of which is checked.

    Raises:
        InvalidCheckpoint: If it is damaged or not a training state; with every field that is wrong.
    """
    _check_sum(path)
    state = _load(path, "cpu", mmap=True)
    missing = [key for key in STATE_FIELDS if not isinstance(state, dict) or key not in state]
    if missing:
        raise InvalidCheckpoint(f"{path}: expected a training state, got a file without {', '.join(missing)}")
    problems = [
        f"{path}: {key}: expected {expected}, got {_describe(state[key])}"
        for key, (kind, expected) in STATE_FIELDS.items()
        if not isinstance(state[key], kind) or not _is_valid(key, state[key])
    ]
    raise_problems(problems, InvalidCheckpoint)
    return state["global_step"]


def _is_valid(key: str, value: Any) -> bool:
    """Whether a value of the right type is one that a training writes."""
    if key == "global_step":
        return type(value) is int and value > 0
    if key == "state_dict":
        return bool(value) and all(isinstance(part, Tensor) for part in value.values())
    if key == "loops":
        return isinstance(value.get("fit_loop"), dict)
    if isinstance(value, list):
        return len(value) == 1 and isinstance(value[0], dict)
    if isinstance(value, Tensor):
        return value.ndim == 2 and (key != "random" or value.dtype == torch.uint8)
    return True


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return short_repr(value)


def _check_sum(path: Path) -> None:
    check_file(path, InvalidCheckpoint)
    digest, rest = hashlib.sha256(), max(path.stat().st_size - CHECKSUM_SIZE, 0)
    with path.open("rb") as file:
        while rest and (block := file.read(min(rest, 1 << 20))):
            digest.update(block)
            rest -= len(block)
        if file.read() != digest.hexdigest().encode():
            raise InvalidCheckpoint(
                f"{path}: expected a training state, got a damaged file: its checksum does not match its content; "
                "restore it, or choose another output_dir"
            )


def _load(path: Any, map_location: Any, *, mmap: bool = False) -> dict[str, Any]:
    check_file(path, InvalidCheckpoint)
    try:
        return torch.load(path, map_location=map_location, weights_only=True, mmap=mmap)
    except OSError as error:
        raise InvalidCheckpoint(f"{path}: could not be read: {error.strerror or error}") from error
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidCheckpoint(f"{path}: expected a training state, got a damaged file: {reason}") from error
