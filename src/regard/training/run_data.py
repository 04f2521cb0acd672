"""The data of a run: tokenizer and token ids in its folder, the hashes of their files, and the batches."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from lightning_fabric import Fabric

from regard.data.batching import ResumableLoader
from regard.data.streaming import StreamLoader, split_files
from regard.data.token_dataset import hash_samples
from regard.errors import InvalidArgument, InvalidFile, InvalidRecipe, raise_problems
from regard.files import atomic_folder, atomic_write
from regard.input_files import exists, read_json
from regard.text.tokenizer import TOKENIZER_FILE, Tokenizer
from regard.training.fabric import data_share
from regard.training.processes import Processes
from regard.training.recipe_file import write_recipe
from regard.training.run_folder import OUTPUTS
from regard.training.state import has_state
from regard.training.tasks.base import Task

log = logging.getLogger("regard.training")
DATA_FOLDER = "data"
HASHES_FILE = "files.json"
TOKENIZER_KEY = "tokenizer"


def prepare_data(task: Task) -> None:
    """Write the tokenizer and the token ids, and the recipe of a resumed run. Rank 0 does this.

    Raises:
        InvalidRecipe: If the data files of a resumed run have changed.
        InvalidFile: If its tokenizer has changed, or a file in its ``data/`` is damaged.
    """
    recipe, folder = task.recipe, task.recipe.output_dir / DATA_FOLDER
    is_resumed = has_state(recipe.output_dir)
    path = folder / HASHES_FILE
    hashes = {key: _hash(task, key) for key in recipe.files}
    if is_resumed and exists(path):
        old, expected = _read_hashes(task, path), "expected the data that the run began with"
        changed = [key for key, value in hashes.items() if value != old.get(key)]
        got = {key: f"other data in {', '.join(map(str, recipe.files[key]))}" for key in changed if recipe.files[key]}
        raise_problems([f"{key}: {expected}, got {got.get(key, 'none')}" for key in changed], InvalidRecipe)
    if is_resumed:
        write_recipe(recipe)  # it holds the paths of the data: only after their contents have been checked
    # the tokenizer of a run without a saved state can be of other data
    if not is_resumed or not folder.is_dir():
        task.train_tokenizer().save(folder)
    _load(task, folder)
    if not is_resumed or not exists(path):
        with atomic_write(path, text=True) as file:
            file.write(json.dumps({**hashes, TOKENIZER_KEY: task.tokenizer.fingerprint}))


def open_data(task: Task, files: Mapping[str, bytes], machine: int = 0) -> bool:
    """Load what rank 0 has prepared; the data files themselves are read only without a shared folder.

    Args:
        task: The task.
        files: What rank 0 has in its ``data/``: the tokenizer and the hashes.
        machine: Number of this machine. If its ``data/`` has other files, it does not share the run folder: it receives
            these files, and tokenizes its own copies of the data files.

    Returns:
        Whether it found them in its own folder.

    Raises:
        InvalidArgument: If the run folder of this machine holds another run.
        InvalidFile: If its data files are not those of rank 0, or a file in ``data/`` is damaged.
    """
    folder = task.recipe.output_dir / DATA_FOLDER
    hashes = json.loads(files[HASHES_FILE])
    if files == data_files(task):
        for key, paths in task.recipe.files.items():
            task.hashes.add(paths, hashes[key])
        _load(task, folder)
        return True
    outputs = [name for name in OUTPUTS if name != DATA_FOLDER and exists(task.recipe.output_dir / name)]
    if outputs or (data_files(task) and not exists(folder / HASHES_FILE)):
        expected = f"expected an empty folder on machine {machine}, which does not share that of machine 0"
        got = ", ".join(outputs or [DATA_FOLDER])
        raise InvalidArgument(
            f"{task.recipe.output_dir}: {expected}, got {got}; remove it, or choose another output_dir"
        )
    expected = f"expected the data of machine 0 on machine {machine}, got other data"
    changed = {key: paths for key, paths in task.recipe.files.items() if _hash(task, key) != hashes[key]}
    raise_problems(
        [f"{key}: {expected}; copy {', '.join(map(str, paths))}" for key, paths in changed.items()], InvalidFile
    )
    with atomic_folder(folder) as staging:
        for name, content in files.items():
            (staging / name).write_bytes(content)
        _load(task, staging)
    return False


def distribute_data(task: Task, processes: Processes, machine: int, local_rank: int) -> bool:
    """Prepare the data once on each machine, and map them into the memory of all its processes.

    Args:
        task: The task.
        processes: The processes.
        machine: Number of this machine.
        local_rank: Number of this process on its machine.

    Returns:
        Whether all machines share the run folder.

    Raises:
        RegardError: On process 0, the error of the first process on which `prepare_data` or `open_data` fails.
    """
    with processes.together():
        if processes.rank == 0:
            prepare_data(task)
    files, is_shared = processes.broadcast(data_files(task)), True
    for is_first in (True, False):  # the others of a machine find what its first process has written
        with processes.together():
            if processes.rank != 0 and (local_rank == 0) == is_first:
                is_shared = open_data(task, files, machine)
    return all(processes.gather(is_shared))


def data_files(task: Task) -> dict[str, bytes]:
    """The files of the tokenizer and the hashes in ``data/``."""
    folder = task.recipe.output_dir / DATA_FOLDER
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return {path.name: path.read_bytes() for path in paths if path.is_file() and not path.name.startswith(".")}


def _load(task: Task, tokenizer: Path) -> None:
    """Set the tokenizer and the datasets. All processes of a machine map the token ids of one file into memory."""
    folder = task.recipe.output_dir / DATA_FOLDER
    task.tokenizer = Tokenizer.load(tokenizer)
    is_streamed = task.recipe.is_streamed
    task.train_data = split_files(task.train_files) if is_streamed else task.tokenize(task.train_files, "train", folder)
    valid_files = task.valid_files or task.train_files
    task.valid_data = task.tokenize(valid_files, "valid", folder) if task.recipe.has_validation else None


def _hash(task: Task, key: str) -> str:
    """The hash of the files of a key; that of a streamed corpus, which may be large, is of samples of its files."""
    files = task.recipe.files[key]
    return hash_samples(files) if task.recipe.is_streamed and key == "data.train" else task.hashes(files)


def build_loaders(task: Task, fabric: Fabric) -> tuple[ResumableLoader | StreamLoader, ResumableLoader | None]:
    """The endless training batches and the validation batches of this process.

    Raises:
        InvalidFile: If there are fewer rows for validation than processes.
    """
    share = data_share(fabric)
    options = {
        "rank": share.rank,
        "world_size": share.size,
        "num_workers": task.recipe.trainer.num_workers,
        "pin_memory": fabric.device.type == "cuda",
    }
    log.info("tokenizer: %d tokens", task.tokenizer.vocab_size)
    if task.recipe.is_streamed:
        loader = task.stream(task.train_data, seed=task.recipe.seed, **options)
        num_files, num_parts = len(task.train_files), len(task.train_data)
        log.info("training: %d files in %d parts, streamed", num_files, num_parts)
    else:
        loader = task.loader(task.train_data, seed=task.recipe.seed, **options)
        log.info("training: %s", task.describe(task.train_data))
        log.info("batches: %d per epoch", len(loader.sampler.plan(loader.sampler.epoch)))
        for line in task.statistics(loader):
            log.info(line)
    if task.valid_data is not None:
        log.info("validation: %s", task.describe(task.valid_data))
    if task.valid_data is None:
        return loader, None
    valid_loader = task.loader(task.valid_data, **options)
    num_batches = len(valid_loader.sampler.plan(0))
    if num_batches < share.size:
        path = (*task.valid_files, *task.train_files)[0]
        expected = f"at least {share.size} rows for validation on {share.size} processes"
        raise InvalidFile(f"{path}: expected {expected}, got {num_batches}")
    return loader, valid_loader


def _read_hashes(task: Task, path: Path) -> dict[str, str]:
    """The hashes of a run's data, if its tokenizer is still the one that it began with."""
    expected = {*task.recipe.files, TOKENIZER_KEY}
    try:
        values = read_json(path)
        if not isinstance(values, dict) or not expected <= values.keys():
            raise InvalidFile(f"{path}: expected the hashes of {', '.join(sorted(expected))}, got others")
    except InvalidFile as error:
        raise InvalidFile(f"{error}; remove it to go on without comparing the data") from None
    if Tokenizer.load(path.parent).fingerprint != values[TOKENIZER_KEY]:
        message = "expected the tokenizer that the run began with, got another; restore it"
        raise InvalidFile(f"{path.with_name(TOKENIZER_FILE)}: {message}")
    return values
