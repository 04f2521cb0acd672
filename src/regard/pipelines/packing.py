"""Lines of text on their way into batches."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

SENTENCE = re.compile(r"\S.*?(?:[.!?…。！？][\"'”’»)\]]*(?=\s)|$)", re.DOTALL)


def sentences_of(line: str) -> list[str]:
    """Cut a line at the ends of its sentences.

    Example:
        >>> sentences_of('"Stay!" he said. Then he left')
        ['"Stay!"', 'he said.', 'Then he left']
    """
    return [match.group().rstrip() for match in SENTENCE.finditer(line)]


def batches_by_length(lengths: Sequence[int], most_words: int, more: int = 0) -> Iterator[list[int]]:
    """Places of like length together, longest first, so that a lack of memory shows at once.

    Args:
        lengths: How many words each has.
        most_words: How many a batch may have.
        more: So many words more are counted for each.

    Example:
        >>> list(batches_by_length([3, 9, 4, 1], most_words=12))
        [[1], [2, 0, 3]]
    """
    places = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    batch: list[int] = []
    for place in places:
        if batch and (len(batch) + 1) * (lengths[batch[0]] + more) > most_words:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def joined_up_to(most_words: int, sentences: Sequence[list[int]]) -> Iterator[list[int]]:
    """Sentences one after another in as few parts as the limit allows; a longer sentence is a part of its own.

    Example:
        >>> list(joined_up_to(5, [[1, 2], [3, 4], [5, 6]]))
        [[1, 2, 3, 4], [5, 6]]
    """
    part: list[int] = []
    for sentence in sentences:
        if part and len(part) + len(sentence) > most_words:
            yield part
            part = []
        part = part + sentence
    if part:
        yield part
