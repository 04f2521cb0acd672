"""Running text for language models: one stream of token ids, and batches of blocks of it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from regard.checks import Checks
from regard.data.batching import BatchIndices, ResumableLoader, split
from regard.data.token_dataset import Columns, FileHashes, chunked, tokenize_once
from regard.errors import InvalidFile
from regard.text.readers import check_files, read_lines
from regard.text.tokenizer import SampleBy

_PIECE_SIZE = 1 << 20  # characters of a document that are tokenized together


@dataclass(frozen=True)
class TokenStream:
    """Token ids of running text.

    Args:
        ids: (tokens,), int32, memory-mapped.
        num_characters: Characters of the text, with line ends.
    """

    ids: np.ndarray
    num_characters: int

    def __len__(self) -> int:
        return len(self.ids)


class BlockBatch(NamedTuple):
    """A batch of blocks for next-token prediction.

    Args:
        input_ids: Token ids (blocks, block_size), int64.
        labels: The next token of each (blocks, block_size), int64.
        num_targets: Number of labels.
    """

    input_ids: Tensor
    labels: Tensor
    num_targets: int


def read_text(files: Sequence[str | Path], fraction_range: tuple[float, float] = (0.0, 1.0)) -> Iterator[list[str]]:
    r"""Read a part of each file as lines that end with ``\n``; yields one list per file.

    Args:
        files: UTF-8, plain or ``.gz``.
        fraction_range: Where the part starts and ends, as fractions of the file's characters. Lines may be cut.

    Raises:
        InvalidFile: If a file cannot be read.
    """
    check_files(files)
    for path in files:
        lines = [f"{line}\n" for line in read_lines(path)]
        offsets = [*itertools.accumulate(map(len, lines), initial=0)]
        first, last = (int(fraction * offsets[-1]) for fraction in fraction_range)
        parts = (line[max(first - at, 0) : max(last - at, 0)] for line, at in zip(lines, offsets, strict=False))
        yield [part for part in parts if part]


def tokenize_stream(
    files: Sequence[str | Path],
    tokenizer: Any,
    cache: str | Path,
    *,
    fraction_range: tuple[float, float] = (0.0, 1.0),
    sample_by: SampleBy = "document",
    hashes: FileHashes | None = None,
) -> TokenStream:
    """Tokenize running text, or reopen it from the cache.

    Args:
        files: UTF-8, plain or ``.gz``.
        tokenizer: The tokenizer. Its ``eos_id``, unless None, ends each text.
        cache: Folder of tokenized datasets. They depend on what the files contain, not on their names.
        fraction_range: Part of each file, as in `read_text`.
        sample_by: Whether a text is a file or a line; empty lines are then skipped.
        hashes: Computes the hashes of the files; pass the same one to read each file once for several datasets.

    Raises:
        InvalidFile: If a file cannot be read, there are fewer than two tokens, or the cache cannot be written.
        InvalidArgument: If the text has characters that the vocabulary lacks, or ``sample_by`` is unknown.
    """
    with Checks() as checks:
        checks.choice("sample_by", sample_by, get_args(SampleBy))
    options = {"tokenizer": tokenizer, "fraction_range": fraction_range, "sample_by": sample_by}
    (stream,), counts = tokenize_once(cache, ["stream"], _tokenize, files, hashes=hashes, **options)
    if len(stream.ids) < 2:
        raise InvalidFile(f"{' and '.join(map(str, files))}: expected at least two tokens, got {len(stream.ids)}")
    return TokenStream(stream.ids, counts["num_characters"])


def _tokenize(
    files: Sequence[str | Path],
    counts: Counter[str],
    *,
    tokenizer: Any,
    fraction_range: tuple[float, float],
    sample_by: SampleBy,
) -> Iterator[Columns]:
    end = [] if tokenizer.eos_id is None else [tokenizer.eos_id]
    for lines in read_text(files, fraction_range):
        if sample_by == "line":
            chunks, line_end = chunked(line.rstrip("\n") for line in lines if line.strip()), end
        else:
            offsets = itertools.accumulate(map(len, lines), initial=0)
            pieces = itertools.groupby(zip(lines, offsets, strict=False), lambda pair: pair[1] // _PIECE_SIZE)
            chunks, line_end = (["".join(line for line, _ in piece)] for _, piece in pieces), []
        for texts in chunks:
            counts["num_characters"] += sum(map(len, texts))
            yield ([[*ids, *line_end] for ids in tokenizer.encode(texts)],)
        if sample_by == "document":
            yield ([end],)


def block_loader(stream: TokenStream, block_size: int, batch_size: int, **options: Any) -> ResumableLoader:
    """Batches of blocks of a stream: `BlockBatch`.

    Training: each epoch starts at a random offset, cuts the stream into blocks and shuffles them; the remainders at
    both ends and an incomplete last batch are skipped. Validation: every token but the first is predicted exactly once,
    in order.

    Args:
        stream: The token ids.
        block_size: Tokens of a block.
        batch_size: Blocks of a batch.
        options: Those of `ResumableLoader`, whose errors are raised.

    Raises:
        InvalidType: If a size is not an int.
        InvalidArgument: If a size is not positive.
        InvalidFile: If the stream is too short for one block in training.

    Examples:
        >>> loader = block_loader(TokenStream(np.arange(8), 8), block_size=3, batch_size=2)
        >>> [batch.input_ids.tolist() for batch in loader]
        [[[0, 1, 2], [3, 4, 5]], [[6]]]
    """
    with Checks() as checks:
        checks.integer("block_size", block_size, low=1)
        checks.integer("batch_size", batch_size, low=1)
    if options.get("seed") is not None and len(stream) <= block_size:
        raise InvalidFile(
            f"block_size: expected a text of at least {block_size + 1} tokens, a block and the next token, got "
            f"{len(stream)}; provide more text or smaller blocks"
        )
    make_batches = partial(_block_batches, len(stream) - 1, block_size, batch_size)
    return ResumableLoader(stream, make_batches, partial(collate_blocks, block_size=block_size), **options)


def _block_batches(
    num_targets: int, block_size: int, batch_size: int, rng: np.random.Generator | None
) -> list[np.ndarray]:
    """The first positions of the blocks of each batch."""
    if rng is None:
        starts, num_whole = np.arange(0, num_targets, block_size), num_targets // block_size
        return [*split(starts[:num_whole], batch_size), *split(starts[num_whole:], batch_size)]  # the last is shorter
    offset = int(rng.integers(min(block_size, num_targets - block_size + 1)))
    starts = np.arange(offset, num_targets - block_size + 1, block_size)
    batches = split(rng.permutation(starts), batch_size)
    return [batch for batch in batches if len(batch) == batch_size] or batches


def collate_blocks(stream: TokenStream, indices: BatchIndices, *, block_size: int) -> BlockBatch:
    """Cut blocks out of a stream; the last one of a stream may be shorter, and is a batch by itself."""
    width = min(block_size, len(stream) - 1 - int(indices.rows.max()))
    ids = torch.from_numpy(stream.ids[indices.rows[:, None] + np.arange(width + 1)].astype(np.int64))
    return BlockBatch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), len(ids) * width)
