"""The base class of tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from regard.data.batching import ResumableLoader
from regard.data.streaming import FilePart, StreamLoader
from regard.data.token_dataset import FileHashes
from regard.text.tokenizer import Tokenizer
from regard.training.recipe import Recipe

Split = Literal["train", "valid"]


class Task(ABC):
    """What differs between tasks: tokenizer, datasets, model, losses and metrics.

    `prepare_data` and `open_data` set ``tokenizer``, ``train_data`` and ``valid_data`` (None without validation).

    Args:
        recipe: The recipe.
    """

    tokenizer: Tokenizer
    train_data: Any
    valid_data: Any

    def __init__(self, recipe: Recipe) -> None:
        self.recipe: Any = recipe
        self.hashes = FileHashes()
        self.train_files, self.valid_files = recipe.files["data.train"], recipe.files["data.valid"]

    @abstractmethod
    def train_tokenizer(self) -> Tokenizer:
        """Train the tokenizer, or take that of the pretrained model."""

    @abstractmethod
    def tokenize(self, files: Sequence[Path], split: Split, cache: Path) -> Any:
        """Tokenize files into a dataset, or read it from the cache; ``hashes`` has those of the data files."""

    @abstractmethod
    def describe(self, dataset: Any) -> str:
        """The sizes of a dataset, for the log."""

    def statistics(self, loader: ResumableLoader) -> list[str]:
        """More lines for the log."""
        return []

    @abstractmethod
    def loader(self, dataset: Any, **options: Any) -> ResumableLoader:
        """The batches of one process; options are those of `ResumableLoader`."""

    def stream(self, parts: Sequence[FilePart], **options: Any) -> StreamLoader:
        """The training batches of one process with ``data.streaming``; options are those of `StreamLoader`."""
        raise NotImplementedError

    def tokenizer_texts(self, texts: Iterable[str]) -> Iterator[str]:
        """The texts, or their beginning, that a BPE is trained on."""
        limit, total = self.recipe.tokenizer.max_characters, 0
        for text in texts:
            yield text
            total += len(text)
            if limit is not None and total >= limit:
                return

    @abstractmethod
    def build_model(self) -> Any:
        """Build the model with initial or pretrained weights."""

    @abstractmethod
    def losses(self, model: Any, batch: Any) -> dict[str, Tensor]:
        """The mean losses of a batch: ``"loss"``, and those in the recipe's ``loss_weights`` in their order."""

    @abstractmethod
    def validation_sums(self, model: Any, batch: Any) -> Sequence[float | Tensor]:
        """Numbers of a validation batch that are summed over all batches and processes."""

    @abstractmethod
    def compute_metrics(self, model: Any, sums: Sequence[float]) -> dict[str, float]:
        """``valid_loss`` and the other metrics, computed on every process from the sums."""
