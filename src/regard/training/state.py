"""The training state on disk: a safetensors file of each process and an index, which makes the state complete.

``torch.distributed.checkpoint`` divides the tensors among the processes and reads them with any other number of
processes. Its own format has a pickle, which can run code, so tensors are in its safetensors format, and all else is in
the index, as JSON. Each state has a folder, ``state/step-000000500``; the last with an index is that of the run.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from regard.errors import InvalidCheckpoint, InvalidFile, raise_problems, short_repr
from regard.files import atomic_write, flush_to_disk
from regard.input_files import exists, hash_file, read_json

STATE_FOLDER = "state"
INDEX_FILE = "state.json"
OFFSETS = "DCP_SHARDING_INFO"
"""The key of a file's metadata under which torch's reader looks for the offset of each tensor in the whole one."""
STATE_FIELDS: dict[str, tuple[Any, str]] = {
    "step": (int, "an int of at least 1"),
    "num_processes": (int, "an int of at least 1"),
    "loader": (dict, "a dict of the order of batches"),
    "best": (float | None, "a float or None"),
    "num_worse": (int, "an int of at least 0"),
    "shards": (dict, "a dict of checksums"),
}
"""The type of each field of the index, and what messages call its values."""


@dataclass(frozen=True)
class SavedState:
    """A complete training state.

    Args:
        folder: Its folder.
        step: The step after which it was saved.
        num_processes: Number of processes that saved it.
        loader: The position in the training data.
        best: The best value of ``validation.monitor``; None before the first.
        num_worse: Number of validations since the best.
        shards: The SHA-256 of each file of tensors, by its name.
    """

    folder: Path
    step: int
    num_processes: int
    loader: dict[str, Any]
    best: float | None
    num_worse: int
    shards: dict[str, str]


def state_folder(run: Path, step: int) -> Path:
    """The folder of the training state of a step."""
    return run / STATE_FOLDER / f"step-{step:09d}"


def has_state(run: Path) -> bool:
    """Whether a run folder has a complete training state."""
    return bool(_folders(run))


def find_state(run: Path) -> SavedState | None:
    """The last complete training state of a run folder, or None.

    Raises:
        InvalidCheckpoint: If its index is damaged; with every field that is wrong.
    """
    folders = _folders(run)
    if not folders:
        return None
    path = folders[-1] / INDEX_FILE
    fields = read_json(path, InvalidCheckpoint)
    missing = [key for key in (*STATE_FIELDS, "checksum") if not isinstance(fields, dict) or key not in fields]
    if missing:
        raise InvalidCheckpoint(f"{path}: expected a training state, got a file without {', '.join(missing)}")
    checksum = fields.pop("checksum")
    problems = [
        f"{path}: {key}: expected {expected}, got {short_repr(fields[key])}"
        for key, (kind, expected) in STATE_FIELDS.items()
        if not isinstance(fields[key], kind) or not _is_valid(key, fields[key])
    ]
    raise_problems(problems, InvalidCheckpoint)
    if checksum != _checksum(fields) or fields.keys() != STATE_FIELDS.keys():
        raise InvalidCheckpoint(_damaged(path))
    return SavedState(folder=path.parent, **fields)


def check_shards(state: SavedState, rank: int = 0, world_size: int = 1) -> None:
    """Check the files of a state against their checksums. Each process of a machine checks its part of them.

    Raises:
        InvalidCheckpoint: With every file that is missing, damaged or of another state.
    """
    problems: list[str] = []
    for name in sorted(state.shards)[rank::world_size]:
        try:
            if hash_file(state.folder / name, InvalidCheckpoint) != state.shards[name]:
                problems.append(_damaged(state.folder / name))
        except InvalidCheckpoint as error:
            problems.append(f"{error}; the state has {len(state.shards)} files, which all processes read")
    files = {path.name for path in state.folder.glob("*.safetensors")}
    problems += [f"{state.folder / name}: expected no such file" for name in sorted(files - state.shards.keys())]
    raise_problems(problems, InvalidCheckpoint)


def check_tensors(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Check that a state has tensors of these names and shapes, and no others but those of single processes.

    Raises:
        InvalidCheckpoint: With every tensor that is missing, has another shape, or is not one of the given.
    """
    try:
        saved: Any = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    except (OSError, SafetensorError) as error:
        raise InvalidCheckpoint(f"{folder}: could not be read: {error}") from error
    problems = [
        f"{name}: expected {tuple(tensor.shape)}, got {tuple(saved[name].size) if name in saved else 'none'}"
        for name, tensor in tensors.items()
        if name not in saved or saved[name].size != tensor.shape
    ]
    others = saved.keys() - tensors.keys() - {key for key in saved if key.startswith(PROCESS_PREFIX)}
    problems += [f"{name}: expected none, got {tuple(saved[name].size)}" for name in sorted(others)]
    try:
        raise_problems(problems, InvalidCheckpoint, limit=3)
    except InvalidCheckpoint as error:
        expected = "expected a training state of this model, got another"
        raise InvalidCheckpoint(f"{folder}: {expected}: {error}") from None


def load_tensors(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Read the tensors of a state from its folder, in place; of a DTensor, the part of this process.

    All processes must call it.

    Raises:
        InvalidCheckpoint: As `check_tensors`, or if a file cannot be read.
    """
    check_tensors(folder, tensors)
    try:
        load(_nested(tensors), storage_reader=HuggingFaceStorageReader(str(folder)))
    except CheckpointException as error:
        raise InvalidCheckpoint(f"{folder}: could not be read: {_reasons(error)}") from error


PROCESS_PREFIX = "process."
"""Names of tensors that only one process has, such as its random state, begin with it."""


def save_state(
    run: Path, fields: Mapping[str, Any], tensors: Mapping[str, Tensor], group: ProcessGroup | None = None
) -> None:
    """Write a training state; it replaces the older ones when the files of all processes are complete and on disk.

    Args:
        run: The run folder, shared by all processes.
        fields: The fields of the index except its checksums; those of process 0 are written.
        tensors: The tensors by name. Those that all processes have are divided among them.
        group: The processes, with a backend for the CPU. Default: this process.

    Raises:
        InvalidFile: If it cannot be written; with the processes that failed. The older state stays.
    """
    folder = state_folder(run, fields["step"])
    try:
        save(_nested(tensors), storage_writer=_Writer(folder, fields), process_group=group, no_dist=group is None)
    except CheckpointException as error:
        shutil.rmtree(folder, ignore_errors=True)  # its files can fill the disk
        reasons = _reasons(error) if group is None else f"process {_reasons(error, named=True)}"
        raise InvalidFile(f"{folder}: could not be written: {reasons}") from error
    discard_other_states(folder)  # by all processes: their machines may not share the folder


def discard_other_states(folder: Path) -> None:
    """Remove the other states of a run: older ones, and what a killed run has left."""
    for other in folder.parent.glob("step-*"):
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)


class _Writer(FileSystemWriter):
    """Writes the tensors of each process to a file and, on process 0, the index with the checksums of all files.

    torch's writer of safetensors files copies all tensors twice and stops other threads meanwhile.
    """

    def __init__(self, folder: Path, fields: Mapping[str, Any]) -> None:
        super().__init__(str(folder))
        self.folder, self.fields = folder, fields

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Empty the folder, on process 0, before any process writes, and name the files."""
        shutil.rmtree(self.folder, ignore_errors=True)  # a killed run with more processes leaves more files
        self.folder.mkdir(parents=True)
        total = len(plans)
        return [
            replace(plan, storage_data=f"shard-{number:05d}-of-{total:05d}.safetensors")
            for number, plan in enumerate(plans, start=1)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write and flush the file of this process; the result carries its checksum to process 0."""
        items: list[Any] = plan.items
        tensors: Any = {item.index.fqn: planner.resolve_data(item) for item in items}
        offsets = {item.index.fqn: {"saved_offsets": [*item.tensor_data.chunk.offsets]} for item in items}
        path = self.folder / plan.storage_data
        try:
            save_file(
                {name: tensor.contiguous() for name, tensor in tensors.items()}, path, {OFFSETS: json.dumps(offsets)}
            )
        except SafetensorError as error:
            code = re.search(r"\(os error (\d+)\)", str(error))
            raise OSError(int(code[1]), os.strerror(int(code[1]))) if code else error from error
        path.chmod(self.folder.stat().st_mode & 0o666)  # safetensors ignores the umask: mode 0600
        flush_to_disk(path)
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(MetadataIndex(path.name), path.stat().st_size, {path.name: hash_file(path)})])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the index, which makes the state complete."""
        shards: dict[str, str] = {}
        for result in (result for process in results for result in process):
            shards |= result.storage_data
        fields = {**self.fields, "shards": dict(sorted(shards.items()))}
        flush_to_disk(self.folder)
        with atomic_write(self.folder / INDEX_FILE, text=True) as file:
            file.write(json.dumps({**fields, "checksum": _checksum(fields)}, indent=1) + "\n")
        flush_to_disk(self.folder)
        flush_to_disk(self.folder.parent)


def _folders(run: Path) -> list[Path]:
    """The folders of complete states, oldest first."""
    folders = (run / STATE_FOLDER).glob("step-" + "[0-9]" * 9)
    return sorted(folder for folder in folders if exists(folder / INDEX_FILE))


def _nested(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Tensors in dicts by the beginnings of their names: torch looks at each value of the outer dict, and logs it."""
    nested: dict[str, Any] = {}
    for name, tensor in tensors.items():
        part, _, rest = name.partition(".")
        nested.setdefault(part, {})[rest] = tensor
    return nested


def _is_valid(key: str, value: Any) -> bool:
    """Whether a value of the right type is one that a training writes."""
    if key in ("step", "num_processes", "num_worse"):
        return type(value) is int and value >= (key != "num_worse")
    return key != "shards" or (bool(value) and all(_is_shard(name, value[name]) for name in value))


def _is_shard(name: str, checksum: Any) -> bool:
    return Path(name).name == name and name.endswith(".safetensors") and isinstance(checksum, str)


def _checksum(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _damaged(path: Path) -> str:
    reason = "its checksum does not match its content; restore it, or choose another output_dir"
    return f"{path}: expected a training state, got a damaged file: {reason}"


def _reasons(error: CheckpointException, *, named: bool = False) -> str:
    """Why processes failed, in one line."""
    reasons = {
        rank: str(getattr(cause, "strerror", None) or cause).partition("\n")[0].rpartition("could not be written: ")[2]
        for rank, (cause, _) in error.failures.items()
    }
    return ", ".join(f"{rank}: {reason}" if named else reason for rank, reason in reasons.items())
