"""Batches in an order that seed and epoch determine: token-budget planning, a resumable sampler and its loader."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler

from regard.checks import Checks
from regard.errors import InvalidArgument


class BatchIndices(NamedTuple):
    """What a sampler yields for one batch.

    Args:
        rows: Rows of the dataset (batch,), int64.
        seed: Seed of random choices within the batch, which a resumed run repeats. It depends on the batch and the
            epoch, so that the number of processes does not matter.
    """

    rows: np.ndarray
    seed: tuple[int, ...]


MakeBatches = Callable[[np.random.Generator | None], list[np.ndarray]]
"""Cuts a dataset into the rows of batches, in random order, or always in the same if there is no generator."""


class ResumableSampler(Sampler[BatchIndices]):
    """Indices of batches: epoch after epoch without end in training, one epoch in validation.

    Seed and epoch determine the order. Each process takes every ``world_size``-th batch. In training, the first batches
    of an epoch are repeated at its end so that all processes get equally many. In validation, batches are divided if
    there are fewer than processes.

    Args:
        make_batches: Cuts the dataset into batches.
        seed: Seed of the order. Default: validation.
        rank: Rank of this process, below ``world_size``.
        world_size: Number of processes.

    Raises:
        InvalidType: If a number is not an int.
        InvalidArgument: If a number is out of range.
    """

    def __init__(
        self, make_batches: MakeBatches, *, seed: int | None = None, rank: int = 0, world_size: int = 1
    ) -> None:
        with Checks() as checks:
            checks.integer("seed", seed, low=0, optional=True)
            check_rank(checks, rank, world_size)
        self.make_batches, self.seed, self.rank, self.world_size = make_batches, seed, rank, world_size
        self.epoch = self.position = 0  # after the last batch that was delivered
        self._plan: tuple[int, list[np.ndarray]] | None = None
        self._positions: deque[tuple[int, int]] = deque()  # after each batch that is yielded but not delivered

    def plan(self, epoch: int) -> list[np.ndarray]:
        """The rows of all batches of an epoch, of all processes together."""
        if self._plan is None or self._plan[0] != epoch:
            batches = self.make_batches(None if self.seed is None else np.random.default_rng((self.seed, epoch)))
            if self.seed is not None:
                batches += [batches[index % len(batches)] for index in range(-len(batches) % self.world_size)]
            while self.seed is None and len(batches) < self.world_size and max(map(len, batches)) > 1:
                largest = max(range(len(batches)), key=lambda index: len(batches[index]))
                batches[largest : largest + 1] = np.array_split(batches[largest], 2)
            self._plan = (epoch, batches)
        return self._plan[1]

    def __len__(self) -> int:
        if self.seed is not None:
            raise TypeError("training has no last batch")
        return len(self.plan(0)[self.rank :: self.world_size])

    def __iter__(self) -> Iterator[BatchIndices]:
        if self.seed is None:
            for rows in self.plan(0)[self.rank :: self.world_size]:
                yield BatchIndices(rows, (int(rows[0]),))
            return
        self._positions.clear()
        epoch, position = self.epoch, self.position - self.position % self.world_size  # if their number has changed
        while True:
            plan = self.plan(epoch)
            index = position + self.rank
            indices = BatchIndices(plan[index], (self.seed, epoch, index))
            position += self.world_size
            if position >= len(plan):
                epoch, position = epoch + 1, 0
            self._positions.append((epoch, position))
            yield indices

    def advance(self) -> None:
        """Count one batch as delivered."""
        if self._positions:
            self.epoch, self.position = self._positions.popleft()

    def state_dict(self) -> dict[str, int]:
        """Epoch and position after the last delivered batch."""
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Start the next iteration at a saved position.

        Raises:
            InvalidType: If the state lacks an int.
            InvalidArgument: If the epoch has no such position.
        """
        epoch: Any = state.get("epoch")
        position: Any = state.get("position")
        with Checks() as checks:
            has_plan = checks.integer("state['epoch']", epoch, low=0) and self.seed is not None
            checks.integer("state['position']", position, low=0, below=len(self.plan(epoch)) if has_plan else None)
        self.epoch, self.position = epoch, position


def check_rank(checks: Checks, rank: int, world_size: int) -> None:
    """Check that ``rank`` is that of one of ``world_size`` processes."""
    has_size = checks.integer("world_size", world_size, low=1)
    checks.integer("rank", rank, low=0, below=world_size if has_size else None)


class ResumableLoader(DataLoader[Any]):
    """Batches of a dataset in the order of a `ResumableSampler`, whose state counts delivered batches only.

    Args:
        dataset: The dataset.
        make_batches: Cuts the dataset into batches.
        collate_fn: Makes a batch of the dataset and its indices.
        num_workers: Processes that make batches; 0: this process does.
        pin_memory: Whether to copy batches into pinned memory.
        order: ``seed``, ``rank`` and ``world_size`` of the `ResumableSampler`, whose errors are raised.
    """

    sampler: ResumableSampler  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(
        self,
        dataset: Any,
        make_batches: MakeBatches,
        collate_fn: Callable[[Any, BatchIndices], Any],
        *,
        num_workers: int = 0,
        pin_memory: bool = False,
        **order: Any,
    ) -> None:
        super().__init__(
            _Batches(dataset, collate_fn),
            batch_size=None,  # the sampler's indices are those of whole batches
            sampler=ResumableSampler(make_batches, **order),
            num_workers=num_workers,
            pin_memory=pin_memory,
            worker_init_fn=ignore_ctrl_c,
            generator=torch.Generator(),  # else each iterator would draw a number from torch's global generator
        )

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            self.sampler.advance()
            yield batch

    def state_dict(self) -> dict[str, int]:
        """The state of the sampler."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Start the next iteration at a saved position."""
        self.sampler.load_state_dict(state)


def ignore_ctrl_c(worker: int) -> None:
    """The main process may need further batches before it stops."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class _Batches(Dataset[Any]):
    def __init__(self, dataset: Any, collate_fn: Callable[[Any, BatchIndices], Any]) -> None:
        self.dataset, self.collate_fn = dataset, collate_fn

    def __getitem__(self, indices: BatchIndices) -> Any:
        return self.collate_fn(self.dataset, indices)


def token_budget_batches(
    source_lengths: np.ndarray, target_lengths: np.ndarray, max_tokens: int, rng: np.random.Generator | None
) -> list[np.ndarray]:
    """Cut a dataset into batches of pairs of similar length.

    A batch of B pairs has B · max(longest source, longest target) tokens, with padding and one special token a
    sentence.

    Args:
        source_lengths: Tokens of each source (pairs,).
        target_lengths: Tokens of each target (pairs,).
        max_tokens: Maximum tokens of a batch.
        rng: Shuffles pairs of similar length, and the batches. None: longest first, always in the same order.

    Returns:
        The rows of each batch (rows,), int64. Every pair is in exactly one batch.

    Raises:
        InvalidType: If ``max_tokens`` is not an int.
        InvalidArgument: If it is not positive, or a single pair has more.
    """
    with Checks() as checks:
        checks.integer("max_tokens", max_tokens, low=1)
    source_lengths, target_lengths = source_lengths + 1, target_lengths + 1
    longest = np.maximum(source_lengths, target_lengths)
    if len(longest) and longest.max() > max_tokens:
        raise InvalidArgument(
            f"max_tokens: expected at least the {int(longest.max())} tokens of pair {int(longest.argmax())}, got "
            f"{max_tokens}; allow more tokens per batch or lower max_length"
        )
    if rng is None:
        return _cut(np.lexsort((source_lengths, target_lengths, longest))[::-1], longest, max_tokens)
    # similar in the longer side, nearly in the source: pairs meet others in each epoch, for 2 % more padding
    order = np.lexsort((rng.random(len(longest)), source_lengths // 2, longest))
    batches = _cut(order, longest, max_tokens)
    return [batches[index] for index in rng.permutation(len(batches))]


def _cut(order: np.ndarray, longest: np.ndarray, max_tokens: int) -> list[np.ndarray]:
    batches: list[np.ndarray] = []
    start = width = 0
    in_order = (length for rows in split(order, 1 << 16) for length in longest[rows].tolist())  # not one long list
    for index, length in enumerate(in_order):
        width = max(width, length)
        if (index + 1 - start) * width > max_tokens:
            batches.append(order[start:index])
            start, width = index, length
    return [*batches, order[start:]] if len(order) else []


MAX_POOL = 50
"""Batches of a pool at most; random ones of short texts are nearly half padding, those of such a pool about 3 %."""


def shuffled_batches(lengths: np.ndarray, batch_size: int) -> MakeBatches:
    """Batches of a size: in training of rows of similar length, shuffled; in validation, longer rows come first.

    In each epoch of the training, rows are dealt to at least four random pools, and cut into batches by length there.

    Raises:
        InvalidType: If ``batch_size`` is not an int.
        InvalidArgument: If it is not positive.
    """
    with Checks() as checks:
        checks.integer("batch_size", batch_size, low=1)

    def make_batches(rng: np.random.Generator | None) -> list[np.ndarray]:
        if rng is None:
            return split(np.argsort(-lengths, kind="stable"), batch_size)
        pool_size = batch_size * min(max(len(lengths) // (4 * batch_size), 1), MAX_POOL)
        pools = split(rng.permutation(len(lengths)), pool_size)
        batches = [rows for pool in pools for rows in split(pool[np.argsort(lengths[pool], kind="stable")], batch_size)]
        return [batches[index] for index in rng.permutation(len(batches))]

    return make_batches


def split(rows: np.ndarray, size: int) -> list[np.ndarray]:
    """Cut rows into batches of a size; the last may be smaller."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def padding_fraction(source_lengths: np.ndarray, target_lengths: np.ndarray, batches: Sequence[np.ndarray]) -> float:
    """The fraction of padding in all tokens of batches of pairs, on both sides, from 0 to 1.

    Examples:
        >>> lengths = np.array([3, 1])
        >>> padding_fraction(lengths, lengths, [np.array([0, 1])])
        0.25
    """
    real = total = 0
    for lengths in (source_lengths + 1, target_lengths + 1):
        for rows in batches:
            real += int(lengths[rows].sum())
            total += int(lengths[rows].max()) * len(rows)
    return 1 - real / total


def pad_batch(sequences: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Pad sequences of token ids on the right: (batch, longest) and their lengths (batch,), int64.

    Raises:
        InvalidArgument: If there are no sequences.

    Examples:
        >>> pad_batch([[5, 6, 7], [8]], pad_id=0)
        (tensor([[5, 6, 7],
                [8, 0, 0]]), tensor([3, 1]))
    """
    with Checks() as checks:
        checks.that(len(sequences) > 0, "sequences: expected at least one, got none")
    rows = [torch.as_tensor(sequence, dtype=torch.long) for sequence in sequences]
    lengths = torch.tensor([len(row) for row in rows], device="cpu")
    return pad_sequence(rows, batch_first=True, padding_value=pad_id), lengths
