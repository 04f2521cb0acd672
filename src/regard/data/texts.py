"""Single texts, tokenized once into Arrow files: with a class each, or with words to be guessed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from regard.data.batching import ResumableLoader
from regard.data.token_dataset import cached, hash_files
from regard.errors import InvalidFile, did_you_mean
from regard.text.readers import read_labeled_texts, read_lines

MAX_CLASSES = 20
"""If there are more, and more than half as many as texts, they are no classes."""
_CHUNK = 10_000
_SCHEMA = pa.schema([("ids", pa.list_(pa.int32())), ("label", pa.int32())])


class TextBatch(NamedTuple):
    """A padded batch of labeled texts.

    Args:
        input_ids: Token ids with special tokens (batch, tokens), int64.
        lengths: Tokens of each text (batch,), int64.
        labels: Index of the class of each text (batch,), int64.
        num_targets: Number of texts.
    """

    input_ids: Tensor
    lengths: Tensor
    labels: Tensor
    num_targets: int


@dataclass(frozen=True)
class TextDataset:
    """Tokenized texts in memory-mapped Arrow files.

    Args:
        dataset: Columns ``ids`` (special tokens included) and ``label`` (-1 where there is none).
        num_truncated: Texts that were longer than allowed, and lost their ends.
        num_empty: Lines left out because they were empty.
    """

    dataset: datasets.Dataset
    num_truncated: int
    num_empty: int

    def __len__(self) -> int:
        return len(self.dataset)

    def rows(self, rows: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """Give the ids of the texts at these places, in this order, and their labels."""
        found: Any = self.dataset.with_format("arrow")[rows]
        lists = found.column("ids").combine_chunks()
        ids = np.split(lists.flatten().to_numpy(), lists.offsets.to_numpy()[1:-1] - lists.offsets[0].as_py())
        return ids, found.column("label").to_numpy()

    def lengths(self) -> np.ndarray:
        """Give the number of words of each text, (texts,), int32."""
        chunks = self.dataset.data.column("ids").chunks
        return np.concatenate([np.diff(chunk.offsets.to_numpy()) for chunk in chunks]).astype(np.int32)


def read_label_names(files: Sequence[Path]) -> tuple[str, ...]:
    """The classes that occur in files, sorted.

    Raises:
        InvalidFile: As :func:`read_labeled_texts`, or if there are fewer than two, or so many that they are no classes.
    """
    counts = Counter(label for _, _, label in read_labeled_texts(files))
    found = tuple(sorted(counts))
    if len(found) > MAX_CLASSES and 2 * len(found) > counts.total():
        came = f"{counts.total()} texts have {len(found)}: are these pairs of a translation?"
        raise InvalidFile(f"{' and '.join(map(str, files))}: expected texts of a few classes, but {came}")
    if len(found) < 2:
        came = f"there is only {found[0]!r}" if found else "there is none"
        raise InvalidFile(f"{' and '.join(map(str, files))}: expected texts of at least two classes, but {came}")
    return found


def tokenize_texts(
    files: Sequence[Path],
    tokenizer: Any,
    cache: Path,
    *,
    max_length: int,
    labels: Sequence[str] | None = None,
) -> TextDataset:
    """Tokenize texts once, and take them from the cache ever after.

    Args:
        files: With labels, as for :func:`read_labeled_texts`; else each line is a text.
        tokenizer: Makes the ids.
        cache: The folder for Arrow files.
        max_length: Longer texts are cut, so that their last special token stays.
        labels: The classes. Default: the texts have none.

    Raises:
        InvalidFile: If a file cannot be read, a class is none of the labels, or there is no text.
        InvalidArgument: If the vocabulary lacks a character.
    """
    key = f"sentences\n{max_length}\n{labels}\n{tokenizer.fingerprint}\n{hash_files(files)}"
    folder = cached(cache, key, lambda draft: _tokenize(files, tokenizer, draft, max_length, labels))
    dataset = datasets.Dataset.from_file(str(folder / "sentences.arrow"))
    counts = json.loads((folder / "counts.json").read_text())
    if not len(dataset):
        raise InvalidFile(f"{' and '.join(map(str, files))}: holds no text")
    return TextDataset(dataset, **counts)


def _tokenize(
    files: Sequence[Path], tokenizer: Any, folder: Path, max_length: int, labels: Sequence[str] | None
) -> None:
    counts = {"num_truncated": 0, "num_empty": 0}
    with pa.OSFile(str(folder / "sentences.arrow"), "wb") as file, pa.ipc.new_stream(file, _SCHEMA) as stream:
        waiting = _texts(files, labels, counts)
        while chunk := list(islice(waiting, _CHUNK)):
            texts, numbers = zip(*chunk, strict=True)
            rows = []
            # which words are hidden, batches decide; what has a class is read as a TextEncoder reads it
            for ids in tokenizer.encode(texts, add_special_tokens=True, split_special_tokens=labels is None):
                counts["num_truncated"] += len(ids) > max_length
                rows.append(ids if len(ids) <= max_length else [*ids[: max_length - 1], ids[-1]])
            stream.write_table(pa.table([rows, list(numbers)], schema=_SCHEMA))
    (folder / "counts.json").write_text(json.dumps(counts))


def _texts(files: Sequence[Path], labels: Sequence[str] | None, counts: dict[str, int]) -> Iterator[tuple[str, int]]:
    if labels is None:
        for line in (line for path in files for line in read_lines(path)):
            if line.strip():
                yield line.strip(), -1
            else:
                counts["num_empty"] += 1
        return
    numbers = {label: number for number, label in enumerate(labels)}
    for where, text, label in read_labeled_texts(files):
        if label not in numbers:
            more = f" and {len(labels) - 10} more" if len(labels) > 10 else ""
            known = ", ".join(map(repr, labels[:10])) + more
            raise InvalidFile(f"{where}: the class {label!r} is none of {known}{did_you_mean(label, labels)}")
        yield text, numbers[label]


class TextLoader(ResumableLoader):
    """So many texts a batch, with their classes; see `ResumableLoader`.

    Args:
        corpus: The texts.
        batch: Texts of a batch.
        pad_id: The word that fills up.
        seed: As for `ResumableLoader`.
        rank: As for `ResumableLoader`.
        world_size: As for `ResumableLoader`.
    """

    def __init__(
        self,
        corpus: TextDataset,
        batch: int,
        pad_id: int,
        *,
        seed: int | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__(seed=seed, rank=rank, world_size=world_size)
        self.corpus, self.batch, self.pad_id = corpus, batch, pad_id

    def batches(self, rng: np.random.Generator | None) -> list[np.ndarray]:
        count = len(self.corpus)
        order = np.argsort(-self.corpus.lengths(), kind="stable") if rng is None else rng.permutation(count)
        return [order[start : start + self.batch] for start in range(0, count, self.batch)]

    def collate(self, rows: np.ndarray) -> TextBatch:
        ids, labels = self.corpus.rows(rows)
        words, lengths = padded_rows(ids, self.pad_id)
        return TextBatch(torch.from_numpy(words), lengths, torch.from_numpy(labels.astype(np.int64)), len(rows))


def padded_rows(ids: list[np.ndarray], pad_id: int) -> tuple[np.ndarray, Tensor]:
    """Pad rows on the right; returns them (rows, longest) and their lengths (rows,)."""
    lengths = np.array([len(each) for each in ids])
    words = np.full((len(ids), lengths.max()), pad_id, dtype=np.int64)
    words[np.arange(words.shape[1]) < lengths[:, None]] = np.concatenate(ids)
    return words, torch.from_numpy(lengths)
