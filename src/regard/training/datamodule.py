"""The Lightning data module of all tasks."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import lightning as L

from regard.data.batching import ResumableLoader
from regard.errors import InvalidFile, InvalidRecipe, raise_problems
from regard.files import atomic_write
from regard.input_files import exists, read_json
from regard.text.tokenizer import TOKENIZER_FILE, Tokenizer
from regard.training.checkpoint_io import STATE_FILE
from regard.training.recipe_file import write_recipe
from regard.training.tasks.base import Task

log = logging.getLogger("regard.training")
HASHES_FILE = "files.json"
TOKENIZER_KEY = "tokenizer"


class TaskDataModule(L.LightningDataModule):
    """Trains the tokenizer, tokenizes the data files, and makes batches.

    Rank 0 writes tokenizer and token ids into ``data/`` in the run folder; all processes map these files into memory.
    """

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.prepare_data_per_node = False  # all machines share the run folder
        self.task, self.recipe = task, task.recipe
        self.folder: Path = task.recipe.output_dir / "data"
        self.is_set_up = False

    def prepare_data(self) -> None:
        """Write the tokenizer and the token ids, and the recipe of a resumed run (on rank 0).

        Raises:
            InvalidRecipe: If the data files of a resumed run have changed.
            InvalidFile: If its tokenizer has changed, or a file in its ``data/`` is damaged.
        """
        is_resumed = (self.recipe.output_dir / STATE_FILE).is_file()
        path = self.folder / HASHES_FILE
        hashes = {key: self.task.hashes(files) for key, files in self.recipe.files.items()}
        if is_resumed and exists(path):
            old, expected = self._read_hashes(path), "expected the data that the run began with"
            changed = [key for key, value in hashes.items() if value != old.get(key)]
            got = {key: "other data" if self.recipe.files[key] else "none" for key in changed}
            raise_problems([f"{key}: {expected}, got {got[key]}" for key in changed], InvalidRecipe)
        if is_resumed:
            write_recipe(self.recipe)  # it holds the paths of the data: only after their contents have been checked
        # the tokenizer of a run without a saved state can be of other data
        if not is_resumed or not self.folder.is_dir():
            self.task.train_tokenizer().save(self.folder)
        self._load_data()
        if not is_resumed or not exists(path):
            with atomic_write(path, text=True) as file:
                file.write(json.dumps({**hashes, TOKENIZER_KEY: self.task.tokenizer.fingerprint}))

    def _read_hashes(self, path: Path) -> dict[str, str]:
        """The hashes of a run's data, if its tokenizer is still the one that it began with."""
        expected = {*self.recipe.files, TOKENIZER_KEY}
        try:
            values = read_json(path)
            if not isinstance(values, dict) or not expected <= values.keys():
                raise InvalidFile(f"{path}: expected the hashes of {', '.join(sorted(expected))}, got others")
        except InvalidFile as error:
            raise InvalidFile(f"{error}; remove it to go on without comparing the data") from None
        if Tokenizer.load(self.folder).fingerprint != values[TOKENIZER_KEY]:
            message = "expected the tokenizer that the run began with, got another; restore it"
            raise InvalidFile(f"{self.folder / TOKENIZER_FILE}: {message}")
        return values

    def setup(self, stage: str) -> None:
        """Load the tokenizer and the datasets (once on every process), whose files only rank 0 reads."""
        if self.is_set_up:  # by `prepare_data`, on rank 0
            return
        hashes = self._read_hashes(self.folder / HASHES_FILE)
        for key, files in self.recipe.files.items():
            self.task.hashes.add(files, hashes[key])
        self._load_data()

    def _load_data(self) -> None:
        task = self.task
        task.tokenizer = Tokenizer.load(self.folder)
        task.train_data = task.tokenize(task.train_files, "train", self.folder)
        valid_files = task.valid_files or task.train_files
        task.valid_data = task.tokenize(valid_files, "valid", self.folder) if self.recipe.has_validation else None
        self.is_set_up = True

    def train_dataloader(self) -> ResumableLoader:
        """The endless training batches of this process."""
        task = self.task
        loader = task.loader(task.train_data, seed=self.recipe.seed, **self._loader_options())
        log.info("tokenizer: %d tokens", task.tokenizer.vocab_size)
        log.info("training: %s", task.describe(task.train_data))
        if task.valid_data is not None:
            log.info("validation: %s", task.describe(task.valid_data))
        log.info("batches: %d per epoch", len(loader.sampler.plan(loader.sampler.epoch)))
        for line in task.statistics(loader):
            log.info(line)
        return loader

    def val_dataloader(self) -> ResumableLoader | list[object]:
        """The validation batches of this process.

        Raises:
            InvalidFile: If there are fewer rows than processes.
        """
        task = self.task
        if task.valid_data is None:
            return []
        loader = task.loader(task.valid_data, **self._loader_options())
        num_batches, world_size = len(loader.sampler.plan(0)), loader.sampler.world_size
        if num_batches < world_size:
            path = (*task.valid_files, *task.train_files)[0]
            expected = f"at least {world_size} rows for validation on {world_size} processes"
            raise InvalidFile(f"{path}: expected {expected}, got {num_batches}")
        return loader

    def _loader_options(self) -> dict[str, Any]:
        assert self.trainer is not None
        return {
            "rank": self.trainer.global_rank,
            "world_size": self.trainer.world_size,
            "num_workers": self.recipe.trainer.num_workers,
            "pin_memory": self.trainer.strategy.root_device.type == "cuda",
        }
