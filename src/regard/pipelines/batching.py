"""Sentences of a line, and batches of sequences of similar length."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

SENTENCE = re.compile(r"\S.*?(?:[.!?…。！？][\"'”’»)\]]*(?=\s)|$)", re.DOTALL)


def split_sentences(line: str) -> list[str]:
    """Split a line after the punctuation that ends a sentence.

    Examples:
        >>> split_sentences('"Stay!" he said. Then he left')
        ['"Stay!"', 'he said.', 'Then he left']
    """
    return [match.group().rstrip() for match in SENTENCE.finditer(line)]


def pack(sentences: Sequence[list[int]], max_tokens: int) -> Iterator[list[int]]:
    """Concatenate consecutive sentences up to a number of tokens; a longer sentence stays alone.

    Examples:
        >>> list(pack([[1, 2], [3, 4], [5, 6]], max_tokens=5))
        [[1, 2, 3, 4], [5, 6]]
    """
    packed: list[int] = []
    for sentence in sentences:
        if packed and len(packed) + len(sentence) > max_tokens:
            yield packed
            packed = []
        packed = packed + sentence
    if packed:
        yield packed


def batches_by_length(lengths: Sequence[int], max_tokens: int, extra: int = 0) -> Iterator[list[int]]:
    """Group indices into batches of similar length, longest first, so that a lack of memory shows at once.

    Args:
        lengths: Number of tokens of each sequence.
        max_tokens: Maximum number of tokens in a batch, with padding; a longer sequence is a batch of its own.
        extra: Number of tokens to add to each length.

    Yields:
        Indices of the sequences of a batch.

    Examples:
        >>> list(batches_by_length([3, 9, 4, 1], max_tokens=12))
        [[1], [2, 0, 3]]
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if batch and (len(batch) + 1) * (lengths[batch[0]] + extra) > max_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
