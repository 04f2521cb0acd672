"""The data of a run: tokenizer and token ids in its folder, the hashes of their files, and the batches."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from lightning.fabric import Fabric

from regard.data.batching import ResumableLoader
from regard.errors import InvalidFile, InvalidRecipe, raise_problems
from regard.files import atomic_write
from regard.input_files import exists, read_json
from regard.text.tokenizer import TOKENIZER_FILE, Tokenizer
from regard.training.recipe_file import write_recipe
from regard.training.state_file import STATE_FILE
from regard.training.tasks.base import Task

log = logging.getLogger("regard.training")
DATA_FOLDER = "data"
HASHES_FILE = "files.json"
TOKENIZER_KEY = "tokenizer"


def prepare_data(task: Task) -> None:
    """Write the tokenizer and the token ids, and the recipe of a resumed run. Rank 0 does this for all processes.

    Raises:
        InvalidRecipe: If the data files of a resumed run have changed.
        InvalidFile: If its tokenizer has changed, or a file in its ``data/`` is damaged.
    """
    recipe, folder = task.recipe, task.recipe.output_dir / DATA_FOLDER
    is_resumed = (recipe.output_dir / STATE_FILE).is_file()
    path = folder / HASHES_FILE
    hashes = {key: task.hashes(files) for key, files in recipe.files.items()}
    if is_resumed and exists(path):
        old, expected = _read_hashes(task, path), "expected the data that the run began with"
        changed = [key for key, value in hashes.items() if value != old.get(key)]
        got = {key: "other data" if recipe.files[key] else "none" for key in changed}
        raise_problems([f"{key}: {expected}, got {got[key]}" for key in changed], InvalidRecipe)
    if is_resumed:
        write_recipe(recipe)  # it holds the paths of the data: only after their contents have been checked
    # the tokenizer of a run without a saved state can be of other data
    if not is_resumed or not folder.is_dir():
        task.train_tokenizer().save(folder)
    _load(task)
    if not is_resumed or not exists(path):
        with atomic_write(path, text=True) as file:
            file.write(json.dumps({**hashes, TOKENIZER_KEY: task.tokenizer.fingerprint}))


def open_data(task: Task) -> None:
    """Load what rank 0 has prepared; the data files themselves are not read."""
    hashes = _read_hashes(task, task.recipe.output_dir / DATA_FOLDER / HASHES_FILE)
    for key, files in task.recipe.files.items():
        task.hashes.add(files, hashes[key])
    _load(task)


def _load(task: Task) -> None:
    """Set the tokenizer and the datasets. All processes map the token ids of one file into memory."""
    folder = task.recipe.output_dir / DATA_FOLDER
    task.tokenizer = Tokenizer.load(folder)
    task.train_data = task.tokenize(task.train_files, "train", folder)
    valid_files = task.valid_files or task.train_files
    task.valid_data = task.tokenize(valid_files, "valid", folder) if task.recipe.has_validation else None


def build_loaders(task: Task, fabric: Fabric) -> tuple[ResumableLoader, ResumableLoader | None]:
    """The endless training batches and the validation batches of this process.

    Raises:
        InvalidFile: If there are fewer rows for validation than processes.
    """
    options = {
        "rank": fabric.global_rank,
        "world_size": fabric.world_size,
        "num_workers": task.recipe.trainer.num_workers,
        "pin_memory": fabric.device.type == "cuda",
    }
    loader = task.loader(task.train_data, seed=task.recipe.seed, **options)
    log.info("tokenizer: %d tokens", task.tokenizer.vocab_size)
    log.info("training: %s", task.describe(task.train_data))
    if task.valid_data is not None:
        log.info("validation: %s", task.describe(task.valid_data))
    log.info("batches: %d per epoch", len(loader.sampler.plan(loader.sampler.epoch)))
    for line in task.statistics(loader):
        log.info(line)
    if task.valid_data is None:
        return loader, None
    valid_loader = task.loader(task.valid_data, **options)
    num_batches = len(valid_loader.sampler.plan(0))
    if num_batches < fabric.world_size:
        path = (*task.valid_files, *task.train_files)[0]
        expected = f"at least {fabric.world_size} rows for validation on {fabric.world_size} processes"
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
