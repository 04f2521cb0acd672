"""Running text for language models: one stream of token ids, and batches of blocks of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from regard.checks import Checks
from regard.data.batching import BatchIndices, ResumableLoader, split
from regard.data.streaming import Corpus, FilePart, StreamLoader
from regard.data.token_dataset import Columns, FileHashes, TokenDataset, chunked, tokenize_once
from regard.errors import InvalidFile
from regard.text.lines import check_files
from regard.text.tables import is_table, read_texts
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


def read_text(
    files: Sequence[str | Path],
    fraction_range: tuple[float, float] = (0.0, 1.0),
    *,
    sample_by: SampleBy = "document",
    text_column: str = "text",
) -> Iterator[Iterator[str]]:
    r"""Read a part of each file: as lines that end with ``\n``, or the texts in a column of Parquet or JSON Lines.

    Args:
        files: UTF-8, plain or ``.gz``, or ``.parquet``.
        fraction_range: Where the part starts and ends, as fractions of the file's characters; the file is then read
            twice. Lines may be cut.
        sample_by: With ``"line"``, the texts in a column end with ``\n``, too.
        text_column: The column, as for `regard.text.read_texts`.

    Yields:
        The lines or texts of each file, to be read before those of the next.

    Raises:
        InvalidFile: If a file cannot be read.
    """
    check_files(files)
    for path in files:
        yield _read_part(path, text_column, _line_end(path, sample_by), fraction_range)


def _line_end(path: str | Path, sample_by: SampleBy) -> str:
    return "\n" if sample_by == "line" or not is_table(path) else ""


def _read_part(path: str | Path, text_column: str, end: str, fraction_range: tuple[float, float]) -> Iterator[str]:
    if fraction_range == (0.0, 1.0):
        yield from (text + end for text in read_texts(path, text_column))
        return
    size = sum(len(text) + len(end) for text in read_texts(path, text_column))
    first, last = (int(fraction * size) for fraction in fraction_range)
    offset = 0
    for text in read_texts(path, text_column):
        text += end
        if part := text[max(first - offset, 0) : max(last - offset, 0)]:
            yield part
        offset += len(text)


def tokenize_stream(
    files: Sequence[str | Path],
    tokenizer: Any,
    cache: str | Path,
    *,
    fraction_range: tuple[float, float] = (0.0, 1.0),
    sample_by: SampleBy = "document",
    text_column: str = "text",
    hashes: FileHashes | None = None,
) -> TokenStream:
    """Tokenize running text, or reopen it from the cache.

    Args:
        files: UTF-8, plain or ``.gz``, or ``.parquet``.
        tokenizer: The tokenizer. Its ``eos_id``, unless None, ends each text.
        cache: Folder of tokenized datasets. They depend on what the files contain, not on their names.
        fraction_range: Part of each file, as in `read_text`.
        sample_by: Whether a text is a file or a line; empty lines are then skipped. In Parquet and JSON Lines, each row
            is a text; empty ones are skipped.
        text_column: The column of the texts, as for `regard.text.read_texts`.
        hashes: Computes the hashes of the files; pass the same one to read each file once for several datasets.

    Raises:
        InvalidFile: If a file cannot be read, there are fewer than two tokens, or the cache cannot be written.
        InvalidArgument: If the text has characters that the vocabulary lacks, or ``sample_by`` is unknown.
    """
    with Checks() as checks:
        checks.choice("sample_by", sample_by, get_args(SampleBy))
    reading = {"fraction_range": fraction_range, "sample_by": sample_by, "text_column": text_column}
    options = {"tokenizer": tokenizer, **reading}
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
    text_column: str,
) -> Iterator[Columns]:
    parts = read_text(files, fraction_range, sample_by=sample_by, text_column=text_column)
    for path, texts in zip(files, parts, strict=True):
        for chunk in chunked(split_documents(path, texts, sample_by), _length):
            yield (encode_pieces(chunk, tokenizer, counts),)


def split_documents(path: str | Path, texts: Iterable[str], sample_by: SampleBy) -> Iterator[tuple[str, bool]]:
    """What is tokenized as one text, and whether a document ends there.

    Args:
        path: The file: rows of a table are documents.
        texts: Its texts, from `read_text`.
        sample_by: Whether a text file is a document, or each line.
    """
    if sample_by == "line":
        yield from ((text.removesuffix("\n"), True) for text in texts if text.strip())
    elif is_table(path):
        yield from ((text, True) for text in texts if text.strip())
    else:
        piece: list[str] = []
        offset = 0
        for line in texts:
            if piece and offset // _PIECE_SIZE > (offset - len(piece[-1])) // _PIECE_SIZE:
                yield "".join(piece), False
                piece = []
            piece.append(line)
            offset += len(line)
        yield "".join(piece), True


def encode_pieces(pieces: Sequence[tuple[str, bool]], tokenizer: Any, counts: Counter[str]) -> list[list[int]]:
    """Token ids of each piece, with the tokenizer's ``eos_id``, unless None, after the last of a document."""
    end = [] if tokenizer.eos_id is None else [tokenizer.eos_id]
    texts = [text for text, _ in pieces]
    counts["num_characters"] += sum(map(len, texts))
    encoded = zip(tokenizer.encode(texts), pieces, strict=True)
    return [[*ids, *end] if is_end else ids for ids, (_, is_end) in encoded]


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


def stream_blocks(
    parts: Sequence[FilePart],
    tokenizer: Any,
    block_size: int,
    batch_size: int,
    *,
    seed: int,
    buffer_size: int,
    sample_by: SampleBy = "document",
    text_column: str = "text",
    **options: Any,
) -> StreamLoader:
    """Batches of blocks of text that is tokenized in passing: `BlockBatch`.

    The texts of a buffer are one stream of token ids, of which each epoch takes what `block_loader` takes.

    Args:
        parts: Parts of files, from `split_files`.
        tokenizer: The tokenizer. Its ``eos_id``, unless None, ends each text.
        block_size: Tokens of a block.
        batch_size: Blocks of a batch.
        seed: Seed of the order.
        buffer_size: Characters that are tokenized, cut into blocks and shuffled together.
        sample_by: Whether a text is a file or a line, as for `tokenize_stream`.
        text_column: The column of the texts in Parquet and JSON Lines.
        options: Those of `StreamLoader`, whose errors are raised.

    Raises:
        InvalidType: If a size is not an int.
        InvalidArgument: If a size is not positive.
    """
    with Checks() as checks:
        checks.integer("block_size", block_size, low=1)
        checks.integer("batch_size", batch_size, low=1)
    read = partial(_read_part_of_stream, sample_by=sample_by, text_column=text_column)
    make_loader = partial(_load_buffer, tokenizer=tokenizer, block_size=block_size, batch_size=batch_size)
    return StreamLoader(Corpus(parts, read, _length, make_loader, buffer_size, seed), **options)


def _read_part_of_stream(part: FilePart, *, sample_by: SampleBy, text_column: str) -> Iterator[tuple[str, bool]]:
    end = _line_end(part.path, sample_by)
    texts = (text + end for text in read_texts(part.path, text_column, part.part))
    for text, is_end in split_documents(part.path, texts, sample_by):
        yield text, is_end and (part.is_last or is_table(part.path) or sample_by == "line")


def _load_buffer(
    pieces: Sequence[tuple[str, bool]], *, tokenizer: Any, block_size: int, batch_size: int
) -> ResumableLoader:
    counts: Counter[str] = Counter()
    chunks = ([encode_pieces(chunk, tokenizer, counts)] for chunk in chunked(pieces, _length))
    (dataset,) = TokenDataset.from_chunks(chunks)
    return block_loader(TokenStream(dataset.ids, counts["num_characters"]), block_size, batch_size)


def _length(piece: tuple[str, bool]) -> int:
    return len(piece[0])


def _block_batches(
    num_targets: int, block_size: int, batch_size: int, rng: np.random.Generator | None
) -> list[np.ndarray]:
    """The first positions of the blocks of each batch."""
    if rng is None:
        starts, num_whole = np.arange(0, num_targets, block_size), num_targets // block_size
        return [*split(starts[:num_whole], batch_size), *split(starts[num_whole:], batch_size)]  # the last is shorter
    if num_targets < block_size:  # the end of a corpus that is streamed
        return []
    offset = int(rng.integers(min(block_size, num_targets - block_size + 1)))
    starts = np.arange(offset, num_targets - block_size + 1, block_size)
    batches = split(rng.permutation(starts), batch_size)
    return [batch for batch in batches if len(batch) == batch_size] or batches


def collate_blocks(stream: TokenStream, indices: BatchIndices, *, block_size: int) -> BlockBatch:
    """Cut blocks out of a stream; the last one of a stream may be shorter, and is a batch by itself."""
    width = min(block_size, len(stream) - 1 - int(indices.rows.max()))
    ids = torch.from_numpy(stream.ids[indices.rows[:, None] + np.arange(width + 1)].astype(np.int64))
    return BlockBatch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), len(ids) * width)
