"""Token-budget batches of pairs of like length, in an order that seed and epoch decide, resumable at any batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.errors import InvalidArgument
from regard.text.tokenizer import PAD_ID

ENDLESS = 2**31  # a length that no training reaches


def token_budget_batches(
    src: np.ndarray, tgt: np.ndarray, tokens: int, rng: np.random.Generator | None
) -> list[np.ndarray]:
    """Cut a corpus into batches of pairs of like length.

    A batch of B pairs costs B · max(longest source, longest target), padding counted and one special token a sentence.

    Args:
        src: Tokens of each source (pairs,).
        tgt: Tokens of each target (pairs,).
        tokens: The most a batch may cost.
        rng: Draws which of like pairs meet, and the order of batches; None: longest first, always the same.

    Returns:
        For each batch the indices of its pairs (rows,), int64. Every pair is in exactly one batch.

    Raises:
        InvalidArgument: If one pair alone costs more than ``tokens``.
    """
    src, tgt = src + 1, tgt + 1
    longest = np.maximum(src, tgt)
    if len(longest) and longest.max() > tokens:
        raise InvalidArgument(
            f"a batch holds {tokens} tokens, but pair {int(longest.argmax())} alone has {int(longest.max())}; "
            "give batches more tokens or keep a lower max_length"
        )
    if rng is None:
        return _cut(np.lexsort((src, tgt, longest))[::-1], longest, tokens)
    # like by the longer side, and nearly by the source: pairs that meet differ from epoch to epoch, at 2 % more padding
    batches = _cut(np.lexsort((rng.random(len(src)), src // 2, longest)), longest, tokens)
    return [batches[place] for place in rng.permutation(len(batches))]


def _cut(order: np.ndarray, longest: np.ndarray, tokens: int) -> list[np.ndarray]:
    batches: list[np.ndarray] = []
    start = widest = 0
    for place, length in enumerate(longest[order].tolist()):
        widest = max(widest, length)
        if (place + 1 - start) * widest > tokens:
            batches.append(order[start:place])
            start, widest = place, length
    return [*batches, order[start:]] if len(order) else []


def padding_fraction(src: np.ndarray, tgt: np.ndarray, batches: Sequence[np.ndarray]) -> float:
    """Give the share of padding among all cells of all batches, both sides counted, between 0 and 1.

    Example:
        >>> lengths = np.array([3, 1])
        >>> padding_fraction(lengths, lengths, [np.array([0, 1])])
        0.25
    """
    real = cells = 0
    for side in (src + 1, tgt + 1):
        for rows in batches:
            real += int(side[rows].sum())
            cells += int(side[rows].max()) * len(rows)
    return 1 - real / cells


class ResumableLoader(ABC):
    """Batches of a corpus: without end, epoch after epoch, for training; once over for validation.

    The order follows from ``seed`` and the epoch alone. Over several processes each takes every ``world_size``-th
    batch; in training the first batches of an epoch fill up its end, so that all processes take equally many; in
    validation batches are cut where there would be fewer than processes.
    :meth:`state_dict` says how far it came, and :meth:`load_state_dict` makes the next iteration begin there.

    Args:
        seed: Decides the order; None: always the same order, one epoch (validation).
        rank: Which process this is.
        world_size: How many there are.
    """

    def __init__(self, *, seed: int | None = None, rank: int = 0, world_size: int = 1) -> None:
        self.seed, self.rank, self.world_size = seed, rank, world_size
        self.epoch = self.position = 0
        self._planned: tuple[int, list[np.ndarray]] | None = None

    @abstractmethod
    def batches(self, rng: np.random.Generator | None) -> list[np.ndarray]:
        """Cut the corpus into batches: for each the places of its entries; None: always the same way."""

    @abstractmethod
    def collate(self, rows: np.ndarray) -> Any:
        """Make the batch of the entries at these places."""

    def plan(self, epoch: int) -> list[np.ndarray]:
        """Give the batches of an epoch, of all processes together, as places of entries."""
        if self._planned is None or self._planned[0] != epoch:
            rng = None if self.seed is None else np.random.default_rng((self.seed, epoch))
            batches = self.batches(rng)
            if self.seed is not None:
                batches += [batches[place % len(batches)] for place in range(-len(batches) % self.world_size)]
            while self.seed is None and len(batches) < self.world_size and max(map(len, batches)) > 1:
                largest = max(range(len(batches)), key=lambda place: len(batches[place]))
                batches[largest : largest + 1] = np.array_split(batches[largest], 2)
            self._planned = (epoch, batches)
        return self._planned[1]

    def __len__(self) -> int:
        return len(self.plan(0)[self.rank :: self.world_size]) if self.seed is None else ENDLESS

    def __iter__(self) -> Iterator[Any]:
        if self.seed is None:
            yield from (self.collate(rows) for rows in self.plan(0)[self.rank :: self.world_size])
            return
        self.position -= self.position % self.world_size  # where other numbers of processes have come to
        while True:
            plan = self.plan(self.epoch)
            rows = plan[self.position + self.rank]
            self.position += self.world_size
            if self.position >= len(plan):
                self.epoch, self.position = self.epoch + 1, 0
            yield self.collate(rows)

    def state_dict(self) -> dict[str, Any]:
        """Say how far the iteration came, in plain numbers."""
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next iteration begin where another stood when it gave this state."""
        self.epoch, self.position = state["epoch"], state["position"]


def pad_sequences(sequences: Sequence[Sequence[int]], pad_id: int = PAD_ID) -> Tensor:
    """Put sequences into one tensor, padded on the right: (rows, longest), int64.

    Example:
        >>> pad_sequences([[5, 6, 7], [8]])
        tensor([[5, 6, 7],
                [8, 0, 0]])
    """
    padded = torch.full((len(sequences), max(map(len, sequences), default=0)), pad_id, dtype=torch.long)
    for row, sequence in enumerate(sequences):
        padded[row, : len(sequence)] = torch.as_tensor(sequence, dtype=torch.long)
    return padded
