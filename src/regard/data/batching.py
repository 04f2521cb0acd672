"""Token-budget batches of pairs of like length, in an order that seed and epoch decide, resumable at any batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from regard.data.pairs import PairDataset
from regard.errors import InvalidArgument
from regard.text.tokenizer import BOS_ID, EOS_ID, PAD_ID

ENDLESS = 2**31  # a length that no training reaches


class PairBatch(NamedTuple):
    """A padded batch of pairs, ready for teacher forcing.

    Args:
        src: Source ids, ending in ``</s>`` (batch, source).
        src_lengths: Real tokens of each source (batch,).
        tgt: Target ids that the decoder reads, beginning with ``<s>`` (batch, target).
        labels: Target ids that it should write, ending in ``</s>`` (batch, target).
        tokens: Real tokens in ``labels``.
        aligned: The token of the source that each label is aligned with, or -1 (batch, target); None: nothing is known.
    """

    src: Tensor
    src_lengths: Tensor
    tgt: Tensor
    labels: Tensor
    tokens: int
    aligned: Tensor | None = None


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


class Loader(ABC):
    """Batches of a corpus: without end, epoch after epoch, for training; once over for validation.

    The order follows from ``seed`` and the epoch alone. Over several processes each takes every ``world``-th batch; in
    training the last batches of an epoch are filled up from its first, so that all processes take equally many; in
    validation batches are cut where there would be fewer than processes.
    :meth:`state_dict` says how far it came, and :meth:`load_state_dict` makes the next iteration begin there.

    Args:
        seed: Decides the order; None: always the same order, one epoch (validation).
        rank: Which process this is.
        world: How many there are.
    """

    def __init__(self, *, seed: int | None = None, rank: int = 0, world: int = 1) -> None:
        self.seed, self.rank, self.world = seed, rank, world
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
                batches += [batches[place % len(batches)] for place in range(-len(batches) % self.world)]
            while self.seed is None and len(batches) < self.world and max(map(len, batches)) > 1:
                largest = max(range(len(batches)), key=lambda place: len(batches[place]))
                batches[largest : largest + 1] = np.array_split(batches[largest], 2)
            self._planned = (epoch, batches)
        return self._planned[1]

    def __len__(self) -> int:
        return len(self.plan(0)[self.rank :: self.world]) if self.seed is None else ENDLESS

    def __iter__(self) -> Iterator[Any]:
        if self.seed is None:
            yield from (self.collate(rows) for rows in self.plan(0)[self.rank :: self.world])
            return
        self.position -= self.position % self.world  # where other numbers of processes have come to
        while True:
            plan = self.plan(self.epoch)
            rows = plan[self.position + self.rank]
            self.position += self.world
            if self.position >= len(plan):
                self.epoch, self.position = self.epoch + 1, 0
            yield self.collate(rows)

    def state_dict(self) -> dict[str, Any]:
        """Say how far the iteration came, in plain numbers."""
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next iteration begin where another stood when it gave this state."""
        self.epoch, self.position = state["epoch"], state["position"]


class BatchLoader(Loader):
    """Token-budget batches of pairs; see `Loader`.

    Args:
        corpus: The pairs.
        tokens: The most a batch may cost, as in :func:`token_budget_batches`.
        seed: As for `Loader`.
        rank: As for `Loader`.
        world: As for `Loader`.
    """

    def __init__(
        self, corpus: PairDataset, tokens: int, *, seed: int | None = None, rank: int = 0, world: int = 1
    ) -> None:
        super().__init__(seed=seed, rank=rank, world=world)
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
        if "aligned" in table.column_names:
            aligned, _ = padded(table.column("aligned"), end=-1, fill=-1)
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
