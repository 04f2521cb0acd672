"""Pairs for translation: tokenized files with or without word alignments, and their batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from regard.data.batching import BatchIndices, ResumableLoader, pad_batch, token_budget_batches
from regard.data.streaming import Corpus, FilePart, StreamLoader
from regard.data.substitution import SUBSTITUTED, Substitution
from regard.data.token_dataset import Columns, FileHashes, TokenDataset, chunked, tokenize_once
from regard.errors import InvalidFile
from regard.text.numerals import LanguageCode
from regard.text.readers import read_alignments, read_pairs, read_pairs_of_file
from regard.text.tokenizer import BOS_ID, EOS_ID, PAD_ID, Tokenizer


@dataclass(frozen=True)
class PairDataset:
    """A tokenized parallel corpus.

    Args:
        source: Token ids of the sources, without special tokens.
        target: Token ids of the targets, without special tokens.
        alignment: For each target token the position of a source token, or -1. None without alignments.
        num_empty: Pairs skipped because a side was empty.
        num_too_long: Pairs skipped because a side had more tokens than allowed.
        num_derived: Pairs derived by `Substitution`.
        num_with: Pairs that have what can be substituted, by its kind.
    """

    source: TokenDataset
    target: TokenDataset
    alignment: TokenDataset | None
    num_empty: int
    num_too_long: int
    num_derived: int = 0
    num_with: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.source)


class PairBatch(NamedTuple):
    """A padded batch of pairs for teacher forcing.

    Args:
        input_ids: Source token ids with a final EOS (batch, source), int64.
        lengths: Source lengths with EOS (batch,), int64.
        decoder_input_ids: BOS and the target token ids (batch, target), int64.
        labels: Target token ids and EOS, padded with the padding token (batch, target), int64.
        num_targets: Labels without padding.
        alignment: The source position that each label is aligned with, or -1 (batch, target), int64. None without
            alignments.
    """

    input_ids: Tensor
    lengths: Tensor
    decoder_input_ids: Tensor
    labels: Tensor
    num_targets: int
    alignment: Tensor | None = None


def tokenize_pairs(
    files: Sequence[str | Path],
    tokenizer: Tokenizer,
    cache: str | Path,
    *,
    max_length: int | None = None,
    alignments: str | Path | None = None,
    source_column: str = "source",
    target_column: str = "target",
    substitutions: float = 0.0,
    languages: tuple[LanguageCode, LanguageCode] = ("en", "de"),
    seed: int = 1,
    hashes: FileHashes | None = None,
) -> PairDataset:
    """Tokenize parallel text, or reopen it from the cache.

    Args:
        files: One TSV, two line-aligned files, or Parquet or JSON Lines files, as for `read_pairs`.
        tokenizer: The tokenizer.
        cache: Folder of tokenized datasets. They depend on what the files contain, not on their names.
        max_length: Pairs with more tokens on a side are skipped, and counted. Default: no limit.
        alignments: File with one line per pair, as for `read_alignments`. Every token of a target word is aligned with
            the first token of its source word.
        source_column: The column of the sources in Parquet and JSON Lines, as for `regard.text.read_texts`.
        target_column: The column of the targets.
        substitutions: Number of pairs that `Substitution` derives from those of the files, relative to theirs; they
            follow them. It holds all pairs in memory. Default: none.
        languages: The languages of sources and targets, for substitutions.
        seed: The seed of substitutions.
        hashes: Computes the hashes of the files; pass the same one to read each file once for several datasets.

    Raises:
        InvalidFile: If a file cannot be read, no pair is left, or the cache cannot be written.
    """
    aligned = None if alignments is None else Path(alignments)
    names = ["source", "target"] if aligned is None else ["source", "target", "alignment"]
    columns = {"source_column": source_column, "target_column": target_column}
    options = {"tokenizer": tokenizer, "max_length": max_length, "alignments": aligned, **columns}
    if substitutions:
        options |= {"substitutions": substitutions, "languages": languages, "seed": seed}
    (source, target, *rest), counts = tokenize_once(cache, names, _tokenize, files, hashes=hashes, **options)
    if not len(source):
        skipped = f"{counts['num_empty']} empty, {counts['num_too_long']} too long"
        raise InvalidFile(f"{' and '.join(map(str, files))}: expected at least one usable pair, got none ({skipped})")
    num_with = {kind: counts[f"num_with_{kind}"] for kind in SUBSTITUTED} if substitutions else {}
    skipped = counts["num_empty"], counts["num_too_long"]
    return PairDataset(source, target, rest[0] if rest else None, *skipped, counts["num_derived"], num_with)


def _tokenize(
    files: Sequence[str | Path],
    counts: Counter[str],
    *,
    tokenizer: Tokenizer,
    max_length: int | None,
    alignments: Path | None,
    source_column: str,
    target_column: str,
    substitutions: float = 0.0,
    languages: tuple[LanguageCode, LanguageCode] = ("en", "de"),
    seed: int = 1,
) -> Iterator[Columns]:
    pairs: Iterable[tuple[str, str]] = read_pairs(files, source_column=source_column, target_column=target_column)
    if substitutions:
        pairs = list(pairs)
        substitution = Substitution(pairs, languages, seed)
        derived = list(substitution.derive(round(substitutions * len(pairs))))
        pairs += derived
        counts["num_derived"] = len(derived)
        counts.update({f"num_with_{kind}": count for kind, count in substitution.counts.items()})
    yield from _encode(pairs, counts, tokenizer=tokenizer, max_length=max_length, alignments=alignments)


def _encode(
    pairs: Iterable[tuple[str, str]],
    counts: Counter[str],
    *,
    tokenizer: Tokenizer,
    max_length: int | None,
    alignments: Path | None = None,
) -> Iterator[Columns]:
    links = None if alignments is None else read_alignments(alignments)
    for chunk in chunked(enumerate(pairs, start=1), lambda item: _length(item[1])):
        sources, targets = (tokenizer.encode([pair[side] for _, pair in chunk]) for side in (0, 1))
        rows: list[tuple[list[int], ...]] = []
        for (line, _), source, target in zip(chunk, sources, targets, strict=True):
            where = f"{alignments}, line {line}"
            aligned = () if links is None else (_align_tokens(tokenizer, source, target, links, where),)
            if not source or not target:
                counts["num_empty"] += 1
            elif max_length is not None and max(len(source), len(target)) > max_length:
                counts["num_too_long"] += 1
            else:
                rows.append((source, target, *aligned))
        if rows:
            yield list(zip(*rows, strict=True))
    if links is not None and next(links, None) is not None:
        raise InvalidFile(f"{alignments}: expected one line per pair, got more")


def _align_tokens(
    tokenizer: Tokenizer, source: list[int], target: list[int], links: Iterator[list[tuple[int, int]]], where: str
) -> list[int]:
    """For each target token the position of the first token of the source word that its word is aligned with, or -1."""
    pairs = next(links, None)
    if pairs is None:
        raise InvalidFile(f"{where}: expected one line per pair, got the end of the file")
    source_words, target_words = tokenizer.word_ids(source), tokenizer.word_ids(target)
    for pair in pairs:
        for side, word, words in zip(("source", "target"), pair, (source_words, target_words), strict=True):
            if word not in words:
                raise InvalidFile(f"{where}: expected a word of the {side} below {len(set(words))}, got {word}")
    positions = {target: source_words.index(source) for source, target in reversed(pairs)}  # the first of several
    return [positions.get(word, -1) for word in target_words]


def pair_loader(dataset: PairDataset, max_tokens: int, **options: Any) -> ResumableLoader:
    """Token-budget batches of pairs: `PairBatch`.

    Args:
        dataset: The pairs.
        max_tokens: Maximum tokens of a batch, as in `token_budget_batches`.
        options: Those of `ResumableLoader`, whose errors are raised.
    """
    make_batches = partial(token_budget_batches, dataset.source.lengths, dataset.target.lengths, max_tokens)
    return ResumableLoader(dataset, make_batches, collate_pairs, **options)


def stream_pairs(
    parts: Sequence[FilePart],
    tokenizer: Tokenizer,
    max_tokens: int,
    *,
    max_length: int,
    seed: int,
    buffer_size: int,
    source_column: str = "source",
    target_column: str = "target",
    **options: Any,
) -> StreamLoader:
    """Token-budget batches of pairs that are tokenized in passing: `PairBatch`.

    Args:
        parts: Parts of TSV, Parquet or JSON Lines files, from `split_files`.
        tokenizer: The tokenizer.
        max_tokens: Maximum tokens of a batch, as in `token_budget_batches`.
        max_length: Pairs with more tokens on a side are skipped.
        seed: Seed of the order.
        buffer_size: Characters of the pairs of which similarly long ones are shuffled together.
        source_column: The column of the sources in Parquet and JSON Lines.
        target_column: The column of the targets.
        options: Those of `StreamLoader`, whose errors are raised.
    """
    read = partial(_read_part, source_column=source_column, target_column=target_column)
    make_loader = partial(_load_buffer, max_tokens=max_tokens, tokenizer=tokenizer, max_length=max_length)
    return StreamLoader(Corpus(parts, read, _length, make_loader, buffer_size, seed), **options)


def _read_part(part: FilePart, **columns: str) -> Iterator[tuple[str, str]]:
    return read_pairs_of_file(part.path, part=part.part, **columns)


def _load_buffer(pairs: Sequence[tuple[str, str]], *, max_tokens: int, **options: Any) -> ResumableLoader:
    counts: Counter[str] = Counter()
    source, target = TokenDataset.from_chunks(_encode(pairs, counts, **options), 2)
    return pair_loader(PairDataset(source, target, None, counts["num_empty"], counts["num_too_long"]), max_tokens)


def _length(pair: tuple[str, str]) -> int:
    return len(pair[0]) + len(pair[1])


def collate_pairs(dataset: PairDataset, indices: BatchIndices) -> PairBatch:
    """Pad pairs for teacher forcing."""
    input_ids, lengths = _append(*dataset.source.pad(indices.rows, PAD_ID), EOS_ID, PAD_ID)
    targets, target_lengths = dataset.target.pad(indices.rows, PAD_ID)
    decoder_input_ids = functional.pad(targets, (1, 0), value=BOS_ID)
    labels, _ = _append(targets, target_lengths, EOS_ID, PAD_ID)
    alignment = None
    if dataset.alignment is not None:
        alignment = functional.pad(dataset.alignment.pad(indices.rows, -1)[0], (0, 1), value=-1)
    num_targets = int(target_lengths.sum()) + len(targets)
    return PairBatch(input_ids, lengths, decoder_input_ids, labels, num_targets, alignment)


def collate_sources(
    sequences: Sequence[Sequence[int]], *, eos_id: int = EOS_ID, pad_id: int = PAD_ID
) -> tuple[Tensor, Tensor]:
    """Append EOS to token ids of sources and pad them on the right: (batch, source) and the lengths (batch,), int64.

    Raises:
        InvalidArgument: If there are no sequences.

    Examples:
        >>> collate_sources([[5, 6], [8]])
        (tensor([[5, 6, 2],
                [8, 2, 0]]), tensor([3, 2]))
    """
    return _append(*pad_batch(sequences, pad_id), eos_id, pad_id)


def _append(padded: Tensor, lengths: Tensor, token_id: int, pad_id: int) -> tuple[Tensor, Tensor]:
    """Append a token to each padded row."""
    longer = functional.pad(padded, (0, 1), value=pad_id)
    longer[torch.arange(len(lengths), device="cpu"), lengths] = token_id
    return longer, lengths + 1
