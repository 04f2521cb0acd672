"""Parallel corpora: pairs of lines, tokenized once into Arrow files."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa

from regard.data.cache import cached
from regard.errors import InvalidFile
from regard.text.readers import read_alignments, read_pairs
from regard.text.tokenizer import Tokenizer

_CHUNK = 10_000
_IDS = pa.list_(pa.int32())
_SCHEMA = pa.schema([("src", _IDS), ("tgt", _IDS)])
_ALIGNED = _SCHEMA.append(pa.field("aligned", _IDS))


@dataclass(frozen=True)
class PairDataset:
    """A tokenized parallel corpus in memory-mapped Arrow files.

    Args:
        dataset: Columns ``src`` and ``tgt``, ids without special tokens;
            where there are alignments, ``aligned``: for each id of ``tgt`` the place of one in ``src``, or -1.
        empty: Pairs left out because a side was empty.
        too_long: Pairs left out because a side had more tokens than allowed.
    """

    dataset: datasets.Dataset
    empty: int
    too_long: int

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
    keyed = digest([*files, *([] if alignments is None else [alignments])])
    key = f"{max_length}\n{tokenizer.fingerprint}\n{keyed}"
    folder = cached(Path(cache), key, lambda draft: _tokenize(files, tokenizer, draft, max_length, alignments))
    dataset = datasets.Dataset.from_file(str(folder / "pairs.arrow"))
    skipped = json.loads((folder / "skipped.json").read_text())
    if not len(dataset):
        why = f"{skipped['empty']} empty, {skipped['too_long']} too long"
        raise InvalidFile(f"{' and '.join(map(str, files))}: no usable pair ({why})")
    return PairDataset(dataset, **skipped)


def digest(files: Sequence[str | Path]) -> str:
    """A digest of what files hold, wherever they lie.

    Raises:
        InvalidFile: If one cannot be read.
    """
    states = []
    for path in map(Path, files):
        try:
            state = path.stat()
        except OSError as error:
            reason = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
            raise InvalidFile(f"{path}: {reason}") from None
        states.append((path.absolute(), state.st_size, state.st_mtime_ns))
    return _digest(tuple(states))


@lru_cache(maxsize=16)
def _digest(states: tuple[tuple[Path, int, int], ...]) -> str:
    """The digest of files of these sizes and times of modification: a run asks for it several times."""
    total = hashlib.sha256()
    for path, _, _ in states:
        try:
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    total.update(block)
        except OSError as error:
            raise InvalidFile(f"{path}: cannot be read: {error.strerror}") from error
        total.update(b"\n")
    return total.hexdigest()


def _tokenize(
    files: Sequence[str | Path],
    tokenizer: Tokenizer,
    folder: Path,
    max_length: int | None,
    alignments: str | Path | None,
) -> None:
    skipped = {"empty": 0, "too_long": 0}
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
                    skipped["empty"] += 1
                elif max_length is not None and max(len(src), len(tgt)) > max_length:
                    skipped["too_long"] += 1
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
