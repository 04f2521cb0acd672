"""Running text as one long row of ids on disk, and blocks of it in an order that seed and epoch decide."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.batching import ResumableLoader
from regard.data.token_dataset import cached, hash_files
from regard.errors import InvalidFile
from regard.text.readers import read_lines
from regard.text.tokenizer import SampleBy

_CHUNK = 1 << 20  # characters that are tokenized together


class BlockBatch(NamedTuple):
    """A batch of blocks for next-token prediction.

    Args:
        input_ids: Token ids (blocks, block), int64.
        labels: The next token of each (blocks, block), int64.
        num_targets: Number of labels.
    """

    input_ids: Tensor
    labels: Tensor
    num_targets: int


class TokenStream(NamedTuple):
    """Token ids of running text, memory-mapped.

    Args:
        ids: (tokens,), int32.
        num_characters: Characters of the text, with line ends.
    """

    ids: np.ndarray
    num_characters: int

    def __len__(self) -> int:
        return len(self.ids)


def read_text(files: Sequence[Path], share: tuple[float, float] = (0.0, 1.0)) -> Iterator[list[str]]:
    r"""Read a part of each file's characters, in lines with ``\n`` at their ends; a list for each file.

    Args:
        files: UTF-8, plain or ``.gz``.
        share: From where to where, as shares of a file.

    Raises:
        InvalidFile: If a file cannot be read.
    """
    for path in files:
        first, last = 0, None
        if share != (0.0, 1.0):
            characters = sum(len(line) + 1 for line in read_lines(path))
            first, last = (int(part * characters) for part in share)
        yield list(_between(read_lines(path), first, last))


def _between(lines: Iterator[str], first: int, last: int | None) -> Iterator[str]:
    place = 0
    for line in lines:
        text = f"{line}\n"
        start, stop = max(first - place, 0), len(text) if last is None else min(last - place, len(text))
        if start < stop:
            yield text[start:stop]
        place += len(text)


def tokenize_stream(
    files: Sequence[Path],
    tokenizer: Any,
    cache: Path,
    *,
    share: tuple[float, float] = (0.0, 1.0),
    sample_by: SampleBy = "document",
) -> TokenStream:
    """Tokenize text once, and take it from the cache ever after.

    Args:
        files: As for :func:`read_text`.
        tokenizer: Makes the ids; where it has one, its ``eos_id`` stands behind each document.
        cache: The folder for the ids; an entry is keyed on the files' bytes, the vocabulary and the other arguments.
        share: As for :func:`read_text`.
        sample_by: Whether a text is a whole file (``"document"``) or a ``"line"``; empty lines are skipped.

    Raises:
        InvalidFile: If a file cannot be read, or there is too little text, or the cache cannot be written.
        InvalidArgument: If the vocabulary lacks a character.
    """
    named = f"stream\n{share}\n{sample_by}\n{tokenizer.fingerprint}\n{hash_files(files)}"

    def write(folder: Path) -> None:
        parts, characters = [], 0
        for lines in read_text(files, share):
            for texts in _texts(lines, sample_by):
                characters += sum(map(len, texts))
                ids = tokenizer.encode(texts)
                ends = sample_by == "line" and tokenizer.eos_id is not None
                parts += [np.array([*each, tokenizer.eos_id] if ends else each, dtype=np.int32) for each in ids]
            if sample_by == "document" and tokenizer.eos_id is not None:
                parts.append(np.array([tokenizer.eos_id], dtype=np.int32))
        np.save(folder / "ids.npy", np.concatenate(parts) if parts else np.empty(0, np.int32))
        (folder / "characters.json").write_text(json.dumps(characters))

    folder = cached(cache, named, write)
    ids = np.load(folder / "ids.npy", mmap_mode="r")
    if len(ids) < 2:
        raise InvalidFile(f"{' and '.join(map(str, files))}: holds no text to learn from")
    return TokenStream(ids, json.loads((folder / "characters.json").read_text()))


def _texts(lines: list[str], sample_by: SampleBy) -> Iterator[list[str]]:
    """What is tokenized together: documents, or pieces of one that end with a line."""
    if sample_by == "line":
        whole = [line.rstrip("\n") for line in lines if line.strip()]
        for start in range(0, len(whole), 10_000):
            yield whole[start : start + 10_000]
        return
    piece: list[str] = []
    size = 0
    for line in lines:
        piece.append(line)
        size += len(line)
        if size >= _CHUNK:
            yield ["".join(piece)]
            piece, size = [], 0
    if piece:
        yield ["".join(piece)]


class BlockLoader(ResumableLoader):
    """Blocks of a stream, so many a batch; see `ResumableLoader`.

    In training each epoch cuts the stream anew, from a random place on, and shuffles the blocks; what is left over at
    its ends waits for another epoch. In validation every word is told once, in order.

    Args:
        stream: The ids.
        block: Words of a block.
        batch: Blocks of a batch.
        seed: As for `ResumableLoader`.
        rank: As for `ResumableLoader`.
        world_size: As for `ResumableLoader`.

    Raises:
        InvalidFile: If the stream is shorter than a block.

    Example:
        >>> loader = BlockLoader(TokenStream(np.arange(8), 8), block=3, batch=2)
        >>> [batch.input_ids.tolist() for batch in loader]
        [[[0, 1, 2], [3, 4, 5]], [[6]]]
    """

    def __init__(
        self,
        stream: TokenStream,
        block: int,
        batch: int,
        *,
        seed: int | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__(seed=seed, rank=rank, world_size=world_size)
        if seed is not None and len(stream) <= block:
            raise InvalidFile(f"the text has {len(stream)} words, but a block {block}, and one to tell: give more text")
        self.stream, self.block, self.batch = stream, block, batch

    def batches(self, rng: np.random.Generator | None) -> list[np.ndarray]:
        told = len(self.stream) - 1
        if rng is None:
            starts = np.arange(0, told, self.block)
            whole = starts[starts + self.block <= told]
            rest = [starts[len(whole) :]] if len(whole) < len(starts) else []
            return [*_groups(whole, self.batch), *rest]
        offset = int(rng.integers(min(self.block, told - self.block + 1)))
        starts = np.arange(offset, told - self.block + 1, self.block)
        groups = _groups(rng.permutation(starts), self.batch)
        return [group for group in groups if len(group) == self.batch] or groups

    def collate(self, rows: np.ndarray) -> BlockBatch:
        width = min(self.block, len(self.stream) - 1 - int(rows.max()))
        ids = self.stream.ids[rows[:, None] + np.arange(width + 1)].astype(np.int64)
        found = torch.from_numpy(ids)
        return BlockBatch(found[:, :-1].contiguous(), found[:, 1:].contiguous(), len(rows) * width)


def _groups(starts: np.ndarray, size: int) -> list[np.ndarray]:
    return [starts[at : at + size] for at in range(0, len(starts), size)]


def all_lines(files: Sequence[Path], share: tuple[float, float]) -> Iterator[str]:
    """The lines of the parts of all files, one after another: for training a tokenizer."""
    return itertools.chain.from_iterable(read_text(files, share))
