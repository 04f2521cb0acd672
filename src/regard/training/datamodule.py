"""The data of a recipe: what the data modules of all tasks share."""

from __future__ import annotations

import json
import logging
from abc import abstractmethod
from pathlib import Path
from typing import Any

import lightning as L

from regard.data.batching import ResumableLoader
from regard.data.token_dataset import hash_files
from regard.errors import InvalidFile, InvalidRecipe, raise_problems
from regard.text.load import load_tokenizer
from regard.training.checkpoint_io import FILE as STATE
from regard.training.recipe import Recipe, write_recipe

log = logging.getLogger("regard.training")
_DIGESTS = "files.json"


class TaskDataModule(L.LightningDataModule):
    """Makes what a recipe's ``data`` and ``vocabulary`` ask for.

    The first process trains the tokenizer and tokenizes, into ``data/`` in the run folder; all map the same files.
    After :meth:`setup` there are ``tokenizer``, ``train`` and ``valid``.

    Args:
        recipe: The recipe.
    """

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.prepare_data_per_node = False  # all machines see the run folder
        self.recipe = recipe
        self.folder = recipe.output_dir / "data"
        self.train_files, self.valid_files = (
            recipe.data.paths(files) for files in (recipe.data.train, recipe.data.valid)
        )

    @property
    def files(self) -> dict[str, list[Path]]:
        """The files whose content must stay the same while a run goes on, by the keys that name them."""
        return {"data.train": self.train_files, "data.valid": self.valid_files}

    @abstractmethod
    def make_tokenizer(self) -> Any:
        """Train the tokenizer, or take that of a checkpoint."""

    @abstractmethod
    def corpora(self, tokenizer: Any) -> tuple[Any, Any]:
        """Tokenize, where it was not done yet: what is learned from, and what is validated with, or None."""

    @abstractmethod
    def loader(self, corpus: Any, **options: Any) -> ResumableLoader:
        """The batches of a process; options are those of `ResumableLoader`."""

    @abstractmethod
    def tell(self, loader: ResumableLoader) -> None:
        """Log how much data there is."""

    def read_tokenizer(self) -> Any:
        """Read the run's tokenizer."""
        return load_tokenizer(self.folder)

    def prepare_data(self) -> None:
        """Write the recipe, and make tokenizer and corpora where they are not there yet (on one process).

        Raises:
            InvalidRecipe: If a training is to go on with other data than it began with.
        """
        resumed = (self.recipe.output_dir / STATE).is_file()
        digests = {key: hash_files(files) for key, files in self.files.items()}
        if resumed and (self.folder / _DIGESTS).is_file():
            _check_same(json.loads((self.folder / _DIGESTS).read_text()), digests)
        write_recipe(self.recipe)  # which says where the data of a run lie: not before they are known to be its own
        # what a training that never saved a state has left may be of other data
        if not resumed or not self.folder.is_dir():
            self.make_tokenizer().save(self.folder)
        self.corpora(self.read_tokenizer())
        if not resumed or not (self.folder / _DIGESTS).is_file():
            (self.folder / _DIGESTS).write_text(json.dumps(digests))

    def setup(self, stage: str) -> None:
        """Map the corpora into memory (on every process)."""
        self.tokenizer = self.read_tokenizer()
        self.train, self.valid = self.corpora(self.tokenizer)

    def train_dataloader(self) -> ResumableLoader:
        """Give this process its endless training batches."""
        loader = self._make_loader(self.train, seed=self.recipe.seed)
        self.tell(loader)
        return loader

    def val_dataloader(self) -> ResumableLoader | list[object]:
        """Give this process its validation batches."""
        if self.valid is None:
            return []
        loader = self._make_loader(self.valid)
        world = loader.sampler.world_size
        if len(plan := loader.sampler.plan(0)) < world:
            named = (*self.valid_files, *self.train_files)[0]
            raise InvalidFile(f"{named}: makes {len(plan)} rows, but {world} processes validate, and each needs one")
        return loader

    def _make_loader(self, corpus: Any, seed: int | None = None) -> ResumableLoader:
        assert self.trainer is not None
        return self.loader(
            corpus,
            seed=seed,
            rank=self.trainer.global_rank,
            world_size=self.trainer.world_size,
            num_workers=self.recipe.trainer.num_workers,
            pin_memory=self.trainer.strategy.root_device.type == "cuda",
        )


def _check_same(then: dict[str, str], now: dict[str, str]) -> None:
    objections = [
        f"{key}: the files hold other data than when the run began; it can go on with the same data only"
        for key in now
        if now[key] != then.get(key)
    ]
    raise_problems(objections, InvalidRecipe)
