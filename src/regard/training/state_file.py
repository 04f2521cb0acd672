"""The training state on disk: written atomically with a checksum, and read as plain data that cannot run code."""

from __future__ import annotations

import hashlib
import io
import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import InvalidCheckpoint, raise_problems, short_repr
from regard.files import atomic_write
from regard.input_files import check_file

STATE_FILE = "state.ckpt"
CHECKSUM_SIZE = 64
"""The SHA-256 of the state is the comment at the end of its file, a ZIP archive."""
STATE_FIELDS: dict[str, tuple[Any, str]] = {
    "step": (int, "an int of at least 1"),
    "model": (dict, "a dict of tensors"),
    "optimizer": (dict, "a dict with state"),
    "loader": (dict, "a dict of the order of batches"),
    "losses": (Tensor, "a tensor (processes, losses)"),
    "random": (Tensor, "a uint8 tensor (processes, bytes)"),
    "best": (float | None, "a float or None"),
    "num_worse": (int, "an int of at least 0"),
}
"""The type of each field, and what messages call its values."""


def save_state(path: Path, state: Any) -> None:
    """Write a training state; it replaces the old one when it is complete and on disk.

    Raises:
        InvalidFile: If it cannot be written; the old state stays.
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)  # not to the file: torch hides why writing failed
    data = buffer.getbuffer()
    data[-2:] = CHECKSUM_SIZE.to_bytes(2, "little")  # the length of the comment ends the archive
    with atomic_write(path) as file:
        file.write(data)
        file.write(hashlib.sha256(data).hexdigest().encode())


def load_state(path: Path) -> dict[str, Any]:
    """Read a training state, as plain data.

    Raises:
        InvalidCheckpoint: If it is missing, unreadable, damaged, or holds other objects.
    """
    return _load(path)


def saved_step(path: Path) -> int:
    """The step of a training state, all of which is checked.

    Raises:
        InvalidCheckpoint: If it is damaged or not a training state; with every field that is wrong.
    """
    _check_sum(path)
    state = _load(path, mmap=True)
    missing = [key for key in STATE_FIELDS if not isinstance(state, dict) or key not in state]
    if missing:
        raise InvalidCheckpoint(f"{path}: expected a training state, got a file without {', '.join(missing)}")
    problems = [
        f"{path}: {key}: expected {expected}, got {_describe(state[key])}"
        for key, (kind, expected) in STATE_FIELDS.items()
        if not isinstance(state[key], kind) or not _is_valid(key, state[key])
    ]
    raise_problems(problems, InvalidCheckpoint)
    return state["step"]


def _is_valid(key: str, value: Any) -> bool:
    """Whether a value of the right type is one that a training writes."""
    if key in ("step", "num_worse"):
        return type(value) is int and value >= (key == "step")
    if key == "model":
        return bool(value) and all(isinstance(part, Tensor) for part in value.values())
    if key == "optimizer":
        return isinstance(value.get("state"), dict)
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


def _load(path: Path, *, mmap: bool = False) -> dict[str, Any]:
    check_file(path, InvalidCheckpoint)
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except OSError as error:
        raise InvalidCheckpoint(f"{path}: could not be read: {error.strerror or error}") from error
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidCheckpoint(f"{path}: expected a training state, got a damaged file: {reason}") from error
