"""Parallel corpora: pairs of lines, tokenized once into Arrow files."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import datasets
import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from regard.data.batching import ResumableLoader, pad_sequences, token_budget_batches
from regard.data.token_dataset import cached, hash_files
from regard.errors import InvalidFile
from regard.text.readers import read_alignments, read_pairs
from regard.text.tokenizer import BOS_ID, EOS_ID, PAD_ID, Tokenizer

_CHUNK = 10_000
_IDS = pa.list_(pa.int32())
_SCHEMA = pa.schema([("src", _IDS), ("tgt", _IDS)])
_ALIGNED = _SCHEMA.append(pa.field("alignment", _IDS))


class PairBatch(NamedTuple):
    """A padded batch of pairs for teacher forcing.

    Args:
        input_ids: Source token ids with a final EOS (batch, source), int64.
        lengths: Source lengths with EOS (batch,), int64.
        decoder_input_ids: BOS and the target token ids (batch, target), int64.
        labels: Target token ids and EOS, padded with ``pad_id`` (batch, target), int64.
        num_targets: Labels without padding.
        alignment: Source position that each label is aligned with, or -1 (batch, target), int64. None without
            alignments.
    """

    input_ids: Tensor
    lengths: Tensor
    decoder_input_ids: Tensor
    labels: Tensor
    num_targets: int
    alignment: Tensor | None = None


@dataclass(frozen=True)
class PairDataset:
    """A tokenized parallel corpus in memory-mapped Arrow files.

    Args:
        dataset: Columns ``src`` and ``tgt``, ids without special tokens;
            where there are alignments, ``alignment``: for each id of ``tgt`` the place of one in ``src``, or -1.
        num_empty: Pairs left out because a side was empty.
        num_too_long: Pairs left out because a side had more tokens than allowed.
    """

    dataset: datasets.Dataset
    num_empty: int
    num_too_long: int

    def __len__(self) -> int:
        return len(self.dataset)

    def rows(self, rows: np.ndarray) -> pa.Table:
        """Give the pairs at these places, in this order."""
        found = self.dataset.with_format("arrow")[rows]
        assert isinstance(found, pa.Table)
        return found

    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Give the number of tokens of each source and of each target, (pairs,), int32."""
        table = self.dataset.data
        src, tgt = (
            np.concatenate([np.diff(chunk.offsets.to_numpy()) for chunk in table.column(side).chunks] or [np.empty(0)])
            for side in ("src", "tgt")
        )
        return src.astype(np.int32), tgt.astype(np.int32)


def tokenize_pairs(
    files: Sequence[str | Path],
    tokenizer: Tokenizer,
    cache: str | Path,
    *,
    max_length: int | None = None,
    alignments: str | Path | None = None,
) -> PairDataset:
    """Tokenize a corpus once, and take it from the cache ever after.

    Args:
        files: One TSV or two line-aligned files, as for :func:`read_pairs`.
        tokenizer: Makes the ids.
        cache: The folder for Arrow files; an entry is keyed on the files' bytes, the vocabulary and ``max_length``.
        max_length: Pairs with more tokens on a side are left out, and counted; default: all are kept.
        alignments: A file with a line for each pair, as for :func:`read_alignments`. Every piece of a target word is
            aligned with the first piece of its source word.

    Returns:
        The corpus.

    Raises:
        InvalidFile: If a file cannot be read as a corpus, or holds no usable pair, or the cache cannot be written.
    """
    keyed = hash_files([*files, *([] if alignments is None else [alignments])])
    key = f"{max_length}\n{tokenizer.fingerprint}\n{keyed}"
    folder = cached(Path(cache), key, lambda draft: _tokenize(files, tokenizer, draft, max_length, alignments))
    dataset = datasets.Dataset.from_file(str(folder / "pairs.arrow"))
    skipped = json.loads((folder / "skipped.json").read_text())
    if not len(dataset):
        why = f"{skipped['num_empty']} empty, {skipped['num_too_long']} too long"
        raise InvalidFile(f"{' and '.join(map(str, files))}: no usable pair ({why})")
    return PairDataset(dataset, **skipped)


def _tokenize(
    files: Sequence[str | Path],
    tokenizer: Tokenizer,
    folder: Path,
    max_length: int | None,
    alignments: str | Path | None,
) -> None:
    skipped = {"num_empty": 0, "num_too_long": 0}
    numbered = enumerate(read_pairs(files), start=1)
    links = None if alignments is None else read_alignments(alignments)
    schema = _SCHEMA if links is None else _ALIGNED
    with pa.OSFile(str(folder / "pairs.arrow"), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
        while chunk := list(itertools.islice(numbered, _CHUNK)):
            kept: list[tuple[object, ...]] = []
            sources, targets = (tokenizer.encode([pair[side] for _, pair in chunk]) for side in (0, 1))
            for (line, _), src, tgt in zip(chunk, sources, targets, strict=True):
                aligned = () if links is None else (_aligned(tokenizer, src, tgt, links, f"{alignments}, line {line}"),)
                if not src or not tgt:
                    skipped["num_empty"] += 1
                elif max_length is not None and max(len(src), len(tgt)) > max_length:
                    skipped["num_too_long"] += 1
                else:
                    kept.append((src, tgt, *aligned))
            columns = [list(column) for column in zip(*kept, strict=True)] or [[] for _ in schema]
            stream.write_table(pa.table(columns, schema=schema))
    if links is not None and next(links, None) is not None:
        raise InvalidFile(f"{alignments}: has more lines than there are pairs")
    (folder / "skipped.json").write_text(json.dumps(skipped))


def _aligned(
    tokenizer: Tokenizer, src: list[int], tgt: list[int], links: Iterator[list[tuple[int, int]]], where: str
) -> list[int]:
    """For each piece of the target the first piece of the source word that its word is aligned with, or -1."""
    pairs = next(links, None)
    if pairs is None:
        raise InvalidFile(f"{where}: is missing; there must be a line for each pair")
    numbers = tokenizer.word_ids(src), tokenizer.word_ids(tgt)
    for pair in pairs:
        for side, number, words in zip(("source", "target"), pair, numbers, strict=True):
            if number not in words:
                raise InvalidFile(f"{where}: there is no word {number} in the {side}, which has {len(set(words))}")
    source_of = {target: numbers[0].index(source) for source, target in reversed(pairs)}  # of several the first
    return [source_of.get(word, -1) for word in numbers[1]]


class PairLoader(ResumableLoader):
    """Token-budget batches of pairs; see `ResumableLoader`.

    Args:
        corpus: The pairs.
        tokens: The most a batch may cost, as in :func:`token_budget_batches`.
        seed: As for `ResumableLoader`.
        rank: As for `ResumableLoader`.
        world_size: As for `ResumableLoader`.
    """

    def __init__(
        self, corpus: PairDataset, tokens: int, *, seed: int | None = None, rank: int = 0, world_size: int = 1
    ) -> None:
        super().__init__(seed=seed, rank=rank, world_size=world_size)
        self.corpus, self.tokens = corpus, tokens
        self.src_lengths, self.tgt_lengths = corpus.lengths()

    def batches(self, rng: np.random.Generator | None) -> list[np.ndarray]:
        return token_budget_batches(self.src_lengths, self.tgt_lengths, self.tokens, rng)

    def collate(self, rows: np.ndarray) -> PairBatch:
        table = self.corpus.rows(rows)
        src, src_lengths = padded(table.column("src"), end=EOS_ID)
        labels, tgt_lengths = padded(table.column("tgt"), end=EOS_ID)
        tgt, _ = padded(table.column("tgt"), begin=BOS_ID)
        aligned = None
        if "alignment" in table.column_names:
            aligned, _ = padded(table.column("alignment"), end=-1, fill=-1)
        return PairBatch(src, src_lengths, tgt, labels, int(tgt_lengths.sum()), aligned)


def padded(
    column: pa.ChunkedArray, *, begin: int | None = None, end: int | None = None, fill: int = PAD_ID
) -> tuple[Tensor, Tensor]:
    """A column of lists as a tensor (rows, longest + 1) with their ends or beginnings, and the lengths with these."""
    lists = column.combine_chunks()
    ids = lists.flatten().to_numpy()
    lengths = np.diff(lists.offsets.to_numpy())
    first = 0 if begin is None else 1
    padded = np.full((len(lengths), lengths.max() + 1), fill, dtype=np.int64)
    places = np.arange(padded.shape[1] - first)
    padded[:, first:][places < lengths[:, None]] = ids
    if begin is not None:
        padded[:, 0] = begin
    if end is not None:
        padded[np.arange(len(lengths)), lengths] = end
    return torch.from_numpy(padded), torch.from_numpy(lengths.astype(np.int64) + 1)


def encoder_batch(
    sequences: Sequence[Sequence[int]], *, eos_id: int = EOS_ID, pad_id: int = PAD_ID
) -> tuple[Tensor, Tensor]:
    """Make what an encoder reads of ids without special tokens: (src (batch, source), src_lengths (batch,)).

    Example:
        >>> encoder_batch([[5, 6], [8]])
        (tensor([[5, 6, 2],
                [8, 2, 0]]), tensor([3, 2]))
    """
    ended = [[*sequence, eos_id] for sequence in sequences]
    return pad_sequences(ended, pad_id), torch.tensor([len(sequence) for sequence in ended])
