"""Texts with or without labels: tokenized files, and batches for classification."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.checks import Checks
from regard.data.batching import BatchIndices, ResumableLoader, shuffled_batches
from regard.data.streaming import Corpus, FilePart, StreamLoader
from regard.data.token_dataset import Columns, FileHashes, TokenDataset, chunked, tokenize_once
from regard.errors import InvalidFile, did_you_mean, short_repr
from regard.text.readers import read_labeled_rows, read_labeled_texts
from regard.text.tables import read_texts

MAX_LABELS = 20
"""More labels than this are refused if there are also more than half as many as texts."""


@dataclass(frozen=True)
class TextDataset:
    """Tokenized texts.

    Args:
        texts: Token ids of the texts, with special tokens.
        labels: Index of the label of each text (texts,), int32, or -1.
        num_truncated: Texts that were longer than allowed.
        num_empty: Empty lines, which are skipped.
    """

    texts: TokenDataset
    labels: np.ndarray
    num_truncated: int
    num_empty: int

    def __len__(self) -> int:
        return len(self.texts)


class TextBatch(NamedTuple):
    """A padded batch of texts with labels, or with masked tokens.

    Args:
        input_ids: Token ids with special tokens (batch, tokens), int64.
        lengths: Tokens of each text (batch,), int64.
        labels: Index of the label of each text (batch,), int64. With masked tokens: the original ids of the tokens to
            predict, `IGNORE_INDEX` elsewhere (batch, tokens).
        num_targets: Number of texts, or of tokens to predict.
    """

    input_ids: Tensor
    lengths: Tensor
    labels: Tensor
    num_targets: int


def read_label_names(files: Sequence[str | Path], **columns: str) -> tuple[str, ...]:
    """The labels that occur in files, sorted.

    Args:
        files: As for `read_labeled_texts`.
        columns: Its ``text_column`` and ``label_column``.

    Raises:
        InvalidFile: If `read_labeled_texts` cannot read a file, if there are fewer than two labels, or so many that
            they cannot be labels.
    """
    counts = Counter(label for _, _, label in read_labeled_texts(files, **columns))
    names, paths = tuple(sorted(counts)), " and ".join(map(str, files))
    if len(names) > MAX_LABELS and 2 * len(names) > counts.total():
        raise InvalidFile(
            f"{paths}: expected texts with a few labels, got {len(names)} labels for {counts.total()} texts; are these "
            "pairs for translation?"
        )
    if len(names) < 2:
        raise InvalidFile(f"{paths}: expected at least two labels, got {f'only {names[0]!r}' if names else 'none'}")
    return names


def tokenize_texts(
    files: Sequence[str | Path],
    tokenizer: Any,
    cache: str | Path,
    *,
    max_length: int,
    labels: Sequence[str] | None = None,
    text_column: str = "text",
    label_column: str = "label",
    hashes: FileHashes | None = None,
) -> TextDataset:
    """Tokenize texts, or reopen them from the cache.

    Args:
        files: With labels, as for `read_labeled_texts`; else each line is a text, or each row of Parquet or JSON Lines.
        tokenizer: The tokenizer.
        cache: Folder of tokenized datasets. They depend on what the files contain, not on their names.
        max_length: Longer texts are truncated to as many tokens; they keep their last special token. It leaves room
            for at least one token that is not special.
        labels: Names of the labels. Default: texts have no labels.
        text_column: The column of the texts in Parquet and JSON Lines, as for `regard.text.read_texts`.
        label_column: The column of the labels.
        hashes: Computes the hashes of the files; pass the same one to read each file once for several datasets.

    Raises:
        InvalidFile: If a file cannot be read, a label is unknown, there is no text, or the cache cannot be written.
        InvalidType: If files are not a sequence, or ``max_length`` is not an int.
        InvalidArgument: If ``max_length`` is too small, or a text has characters that the vocabulary lacks.
    """
    with Checks() as checks:
        num_special = len(tokenizer.encode([""], add_special_tokens=True)[0])
        checks.integer("max_length", max_length, low=num_special + 1)
    columns = {"text_column": text_column, "label_column": label_column}
    options = {"tokenizer": tokenizer, "max_length": max_length, "labels": labels, **columns}
    (texts, indices), counts = tokenize_once(cache, ["texts", "labels"], _tokenize, files, hashes=hashes, **options)
    if not len(texts):
        raise InvalidFile(f"{' and '.join(map(str, files))}: expected at least one text, got none")
    return TextDataset(texts, indices.ids, counts["num_truncated"], counts["num_empty"])


def _tokenize(
    files: Sequence[str | Path],
    counts: Counter[str],
    *,
    tokenizer: Any,
    max_length: int,
    labels: Sequence[str] | None,
    text_column: str,
    label_column: str,
) -> Iterator[Columns]:
    if labels is None:
        texts = (text for path in files for text in read_texts(path, text_column))
        rows = ((text, -1) for text in nonempty(texts, counts))
    else:
        columns = {"text_column": text_column, "label_column": label_column}
        rows = (row for path in files for row in _read_labeled(path, labels, **columns))
    # "[MASK]" is text in masked language modeling, where batches mask tokens; a classifier reads it as a token
    yield from _encode(rows, counts, tokenizer, max_length, split_special_tokens=labels is None)


def _encode(
    rows: Iterable[tuple[str, int]], counts: Counter[str], tokenizer: Any, max_length: int, **options: Any
) -> Iterator[Columns]:
    for chunk in chunked(rows, _length):
        texts, indices = zip(*chunk, strict=True)
        yield encode_texts(texts, tokenizer, max_length, counts, **options), [[index] for index in indices]


def _length(row: tuple[str, int]) -> int:
    return len(row[0])


def nonempty(texts: Iterable[str], counts: Counter[str]) -> Iterator[str]:
    """Texts without surrounding white space, except empty ones, which are counted."""
    for text in map(str.strip, texts):
        counts["num_empty"] += not text
        if text:
            yield text


def encode_texts(
    texts: Sequence[str], tokenizer: Any, max_length: int, counts: Counter[str], **options: Any
) -> list[list[int]]:
    """Token ids of texts with special tokens, truncated to ``max_length``."""
    encoded = tokenizer.encode(texts, add_special_tokens=True, **options)
    counts["num_truncated"] += sum(len(ids) > max_length for ids in encoded)
    return truncate(encoded, max_length, tokenizer)


def truncate(sequences: Sequence[list[int]], max_length: int, tokenizer: Any) -> list[list[int]]:
    """Truncate token ids with special tokens; they keep the last one, if the tokenizer adds one at the end."""
    end = tokenizer.encode([""], add_special_tokens=True)[0][-1:]
    rows = ((ids, end if ids[-1:] == end else []) for ids in sequences)
    return [ids if len(ids) <= max_length else [*ids[: max_length - len(last)], *last] for ids, last in rows]


def _read_labeled(path: str | Path, labels: Sequence[str], **options: Any) -> Iterator[tuple[str, int]]:
    indices = {label: index for index, label in enumerate(labels)}
    for row, text, label in read_labeled_rows(path, **options):
        if label not in indices:
            more = f" and {len(labels) - 10} more" if len(labels) > 10 else ""
            known, hint = ", ".join(map(repr, labels[:10])) + more, did_you_mean(label, labels)
            raise InvalidFile(f"{row.where}: expected one of {known}, got {short_repr(label)}{hint}")
        yield text, indices[label]


def text_loader(dataset: TextDataset, batch_size: int, pad_id: int, **options: Any) -> ResumableLoader:
    """Batches of labeled texts of similar length: `TextBatch`. In validation, longer texts come first.

    Args:
        dataset: The texts.
        batch_size: Texts of a batch.
        pad_id: Id of the padding token.
        options: Those of `ResumableLoader`, whose errors are raised.

    Raises:
        InvalidType: If ``batch_size`` is not an int.
        InvalidArgument: If it is not positive.
    """
    make_batches = shuffled_batches(dataset.texts.lengths, batch_size)
    return ResumableLoader(dataset, make_batches, partial(collate_texts, pad_id=pad_id), **options)


def stream_labeled(
    parts: Sequence[FilePart],
    tokenizer: Any,
    batch_size: int,
    *,
    labels: Sequence[str],
    max_length: int,
    seed: int,
    buffer_size: int,
    text_column: str = "text",
    label_column: str = "label",
    **options: Any,
) -> StreamLoader:
    """Batches of labeled texts that are tokenized in passing: `TextBatch`. The last batch of a buffer may be smaller.

    Args:
        parts: Parts of files, from `split_files`.
        tokenizer: The tokenizer.
        batch_size: Texts of a batch.
        labels: Names of the labels.
        max_length: Longer texts are truncated to as many tokens, as in `tokenize_texts`.
        seed: Seed of the order.
        buffer_size: Characters of the texts that are shuffled together.
        text_column: The column of the texts in Parquet and JSON Lines.
        label_column: The column of the labels.
        options: Those of `StreamLoader`, whose errors are raised.
    """
    read = partial(_read_part, labels=labels, text_column=text_column, label_column=label_column)
    make_loader = partial(_load_buffer, batch_size=batch_size, tokenizer=tokenizer, max_length=max_length)
    return StreamLoader(Corpus(parts, read, _length, make_loader, buffer_size, seed), **options)


def _read_part(part: FilePart, *, labels: Sequence[str], **columns: str) -> Iterator[tuple[str, int]]:
    return _read_labeled(part.path, labels, part=part.part, **columns)


def _load_buffer(
    rows: Sequence[tuple[str, int]], *, batch_size: int, tokenizer: Any, max_length: int
) -> ResumableLoader:
    counts: Counter[str] = Counter()
    texts, indices = TokenDataset.from_chunks(_encode(rows, counts, tokenizer, max_length), 2)
    dataset = TextDataset(texts, indices.ids, counts["num_truncated"], counts["num_empty"])
    return text_loader(dataset, batch_size, tokenizer.pad_id)


def collate_texts(dataset: TextDataset, indices: BatchIndices, *, pad_id: int) -> TextBatch:
    """Pad texts, with their labels."""
    input_ids, lengths = dataset.texts.pad(indices.rows, pad_id)
    labels = torch.from_numpy(dataset.labels[indices.rows].astype(np.int64))
    return TextBatch(input_ids, lengths, labels, len(labels))
