"""Sentences whose words have tags: tokenized files, and batches for tagging."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from regard.checks import Checks
from regard.data.batching import BatchIndices, ResumableLoader, shuffled_batches
from regard.data.masking import IGNORE_INDEX
from regard.data.texts import MAX_LABELS, TextBatch, truncate
from regard.data.token_dataset import Columns, FileHashes, TokenDataset, chunked, tokenize_once
from regard.errors import InvalidFile, short_repr
from regard.text.tagged import read_tagged_sentences


@dataclass(frozen=True)
class TaggedDataset:
    """Tokenized sentences whose words have tags.

    Args:
        texts: Token ids of the sentences, with special tokens.
        tags: For each token the index of its word's tag, if it is the first token of a word, else `IGNORE_INDEX`.
        num_truncated: Sentences that were longer than allowed.
        num_empty: Sentences of which the tokenizer leaves no word, which are skipped.
    """

    texts: TokenDataset
    tags: TokenDataset
    num_truncated: int
    num_empty: int

    def __len__(self) -> int:
        return len(self.texts)


def read_tag_names(files: Sequence[str | Path]) -> tuple[str, ...]:
    """The tags that occur in files, sorted.

    Raises:
        InvalidFile: If `read_tagged_sentences` cannot read a file, if there are fewer than two tags, or so many that
            they cannot be tags.
    """
    counts: Counter[str] = Counter()
    for sentence in read_tagged_sentences(files):
        counts.update(sentence.tags)
    names, paths = tuple(sorted(counts)), " and ".join(map(str, files))
    if len(names) > MAX_LABELS and 2 * len(names) > counts.total():
        raise InvalidFile(
            f"{paths}: expected words with a few different tags in the last column, got {len(names)} tags for "
            f"{counts.total()} words; is the tag in another column?"
        )
    if len(names) < 2:
        raise InvalidFile(f"{paths}: expected at least two tags, got {f'only {names[0]!r}' if names else 'none'}")
    return names


def tokenize_tagged(
    files: Sequence[str | Path],
    tokenizer: Any,
    cache: str | Path,
    *,
    max_length: int,
    tags: Sequence[str],
    hashes: FileHashes | None = None,
) -> TaggedDataset:
    """Tokenize sentences whose words have tags, or reopen them from the cache.

    The first token of a word has the word's tag; its other tokens are not predicted.

    Args:
        files: As for `regard.text.read_tagged_sentences`.
        tokenizer: A `regard.text.Tokenizer`.
        cache: Folder of tokenized datasets. They depend on what the files contain, not on their names.
        max_length: Longer sentences are truncated to as many tokens; they keep their last special token.
        tags: Names of the tags.
        hashes: Computes the hashes of the files; pass the same one to read each file once for several datasets.

    Raises:
        InvalidFile: If a file cannot be read, a tag is unknown, there is no sentence, or the cache cannot be written.
        InvalidType: If files are not a sequence, or ``max_length`` is not an int.
        InvalidArgument: If ``max_length`` is too small, or a word has characters that the vocabulary lacks.
    """
    with Checks() as checks:
        num_special = len(tokenizer.encode([""], add_special_tokens=True)[0])
        checks.integer("max_length", max_length, low=num_special + 1)
    options = {"tokenizer": tokenizer, "max_length": max_length, "tags": tags}
    (texts, labels), counts = tokenize_once(cache, ["texts", "tags"], _tokenize, files, hashes=hashes, **options)
    if not len(texts):
        raise InvalidFile(f"{' and '.join(map(str, files))}: expected at least one sentence, got none")
    return TaggedDataset(texts, labels, counts["num_truncated"], counts["num_empty"])


def _tokenize(
    files: Sequence[str | Path], counts: Counter[str], *, tokenizer: Any, max_length: int, tags: Sequence[str]
) -> Iterator[Columns]:
    indices = {tag: index for index, tag in enumerate(tags)}
    for sentences in chunked(read_tagged_sentences(files), lambda sentence: sum(map(len, sentence.words))):
        encoded = tokenizer.encode_words([sentence.words for sentence in sentences])
        truncated = truncate([ids for ids, _ in encoded], max_length, tokenizer)
        rows: list[list[int]] = []
        targets: list[list[int]] = []
        for sentence, (ids, firsts), kept in zip(sentences, encoded, truncated, strict=True):
            end = len(ids) if len(ids) <= max_length else max_length - 1  # the last token is special
            row = [IGNORE_INDEX] * len(kept)
            for first, tag in zip(firsts, sentence.tags, strict=True):
                if tag not in indices:
                    raise InvalidFile(f"{sentence.where}: expected tags of {', '.join(tags)}, got {short_repr(tag)}")
                if 0 <= first < end:
                    row[first] = indices[tag]
            if all(index == IGNORE_INDEX for index in row):
                counts["num_empty"] += 1
                continue
            counts["num_truncated"] += len(ids) > max_length
            rows.append(kept)
            targets.append(row)
        yield rows, targets


def tag_loader(dataset: TaggedDataset, batch_size: int, pad_id: int, **options: Any) -> ResumableLoader:
    """Batches of tagged sentences of similar length: `TextBatch`. In validation, longer sentences come first.

    Args:
        dataset: The sentences.
        batch_size: Sentences of a batch.
        pad_id: Id of the padding token.
        options: Those of `ResumableLoader`, whose errors are raised.

    Raises:
        InvalidType: If ``batch_size`` is not an int.
        InvalidArgument: If it is not positive.
    """
    make_batches = shuffled_batches(dataset.texts.lengths, batch_size)
    return ResumableLoader(dataset, make_batches, partial(collate_tagged, pad_id=pad_id), **options)


def collate_tagged(dataset: TaggedDataset, indices: BatchIndices, *, pad_id: int) -> TextBatch:
    """Pad sentences, with `IGNORE_INDEX` as the tag of padding."""
    input_ids, lengths = dataset.texts.pad(indices.rows, pad_id)
    labels, _ = dataset.tags.pad(indices.rows, IGNORE_INDEX)
    return TextBatch(input_ids, lengths, labels, int((labels != IGNORE_INDEX).sum()))
