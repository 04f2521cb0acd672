"""Batches of a corpus that is read, tokenized and shuffled while a model trains, without a tokenized copy on disk."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import distributed
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from regard.checks import Checks
from regard.data.batching import BatchIndices, ResumableLoader, check_rank, ignore_ctrl_c
from regard.errors import InvalidArgument, InvalidFile, RegardError, short_repr
from regard.input_files import check_file
from regard.text.lines import Part
from regard.text.parquet import row_group_sizes

PART_BYTES = 8 << 20
"""Plain files are cut into equal parts of at most this size, at lines."""
_MAX_EMPTY_EPOCHS = 10  # a stream that gets a part without a batch gets others in the next epochs


class FilePart(NamedTuple):
    """A part of a file that is read by itself, from its beginning to its end.

    Args:
        path: The file.
        part: Its row groups or bytes; None for a whole file.
        is_last: Whether the file ends with it.
    """

    path: Path
    part: Part | None
    is_last: bool


def split_files(files: Sequence[str | Path]) -> list[FilePart]:
    """Cut files into parts: row groups of Parquet, about 8 MiB of plain files. Compressed files are not cut.

    Raises:
        InvalidFile: If a file is missing or damaged, or all are empty.
        MissingExtra: If there is a Parquet file and pyarrow is not installed.
    """
    parts: list[FilePart] = []
    for path in map(Path, files):
        if path.suffix == ".gz":
            parts.append(FilePart(path, None, is_last=True))
            continue
        if path.suffix == ".parquet":
            size, step = len(row_group_sizes(path)), 1
        else:
            check_file(path)
            size = path.stat().st_size
            step = math.ceil(size / math.ceil(size / PART_BYTES)) if size else 1
        ranges = [(start, min(start + step, size)) for start in range(0, size, step)]
        parts += [FilePart(path, part, is_last=part[1] == size) for part in ranges]
    if not parts:
        raise InvalidFile(f"{', '.join(map(str, files))}: expected text, got none")
    return parts


class StreamPosition(NamedTuple):
    """A place in one stream: before a batch of a buffer.

    Args:
        epoch: The pass through the corpus.
        part: The part of the files in which the buffer begins, counted in the order of the epoch.
        item: The text in that part with which it begins.
        batch: Batches of the buffer that come before.
    """

    epoch: int = 0
    part: int = 0
    item: int = 0
    batch: int = 0


class Corpus(NamedTuple):
    """What is streamed, and how texts become batches.

    Args:
        parts: Parts of the files, from `split_files`.
        read: The texts of a part, or what stands for them.
        length: The characters of what `read` yields.
        make_loader: Tokenizes a buffer and cuts it into batches.
        buffer_size: Characters of a buffer, whose texts are shuffled together.
        seed: Seed of the order, and of random choices within batches.
    """

    parts: Sequence[FilePart]
    read: Callable[[FilePart], Iterator[Any]]
    length: Callable[[Any], int]
    make_loader: Callable[[list[Any]], ResumableLoader]
    buffer_size: int
    seed: int

    def batches(self, stream: int, num_streams: int, position: StreamPosition) -> Iterator[tuple[Any, StreamPosition]]:
        """The batches of one of several streams, epoch after epoch, each with the position after it.

        The parts are shuffled in each epoch and dealt to the streams; with fewer parts than streams, each stream reads
        all parts and takes every ``num_streams``-th text.

        Raises:
            InvalidFile: If a file cannot be read, or several epochs have no batch.
        """
        epoch, *start, num_done = position
        num_empty = 0
        while num_empty < _MAX_EMPTY_EPOCHS:
            order = np.random.default_rng((self.seed, epoch)).permutation(len(self.parts))
            is_dealt = len(order) >= num_streams
            parts = [self.parts[index] for index in (order[stream::num_streams] if is_dealt else order)]
            step = (0, 1) if is_dealt else (stream, num_streams)
            num_empty += 1
            for (part, item), end, loader in _prepared_ahead(self._buffers(parts, step, *start)):
                seed = (self.seed, epoch, stream, part, item)
                batches = loader.sampler.make_batches(np.random.default_rng(seed))
                num_empty = 0 if batches else num_empty
                for number, rows in enumerate(batches[num_done:], start=num_done + 1):
                    after = (epoch, *end, 0) if number == len(batches) else (epoch, part, item, number)
                    yield loader.dataset[BatchIndices(rows, (*seed, number))], StreamPosition(*after)
                num_done = 0
            epoch, start = epoch + 1, [0, 0]
        names = ", ".join(dict.fromkeys(str(part.path) for part in self.parts))
        raise InvalidFile(f"{names}: expected text for a batch in each of {num_streams} streams, got too little")

    def _buffers(
        self, parts: Sequence[FilePart], step: tuple[int, int], first_part: int, first_item: int
    ) -> Iterator[tuple[tuple[int, int], tuple[int, int], ResumableLoader]]:
        """Buffers from a position to the end of the epoch: where each begins, where the next does, and its batches."""
        start, items, size = (first_part, first_item), [], 0
        for number in range(first_part, len(parts)):
            skipped = first_item if number == first_part else 0
            for item, value in enumerate(itertools.islice(self.read(parts[number]), skipped, None), start=skipped):
                if item % step[1] != step[0]:
                    continue
                items.append(value)
                size += self.length(value) + 1  # empty ones count, too
                if size >= self.buffer_size:
                    end = (number, item + 1)
                    yield start, end, self.make_loader(items)
                    start, items, size = end, [], 0
        if items:
            yield start, (len(parts), 0), self.make_loader(items)


def _prepared_ahead(items: Iterator[Any]) -> Iterator[Any]:
    """The items, each prepared in a thread while the one before is used."""
    pool = ThreadPool(1)  # whose thread does not keep a worker from ending, unlike that of an executor
    following = pool.apply_async(next, (items, None))
    try:
        while (item := following.get()) is not None:
            following = pool.apply_async(next, (items, None))
            yield item
    finally:
        if get_worker_info() is None:  # a thread that runs while Python ends could crash it
            following.wait()
        pool.terminate()


class StreamSampler:
    """Which stream each batch is from, and how far each stream is.

    Batch k of all processes together is from stream k modulo ``num_streams``. A process takes every
    ``world_size``-th batch and its workers take turns, so each stream is read by one worker.

    Args:
        rank: Rank of this process, below ``world_size``.
        world_size: Number of processes.
        num_workers: Workers of each process; 0: the process reads by itself.
    """

    def __init__(self, *, rank: int, world_size: int, num_workers: int) -> None:
        with Checks() as checks:
            check_rank(checks, rank, world_size)
            checks.integer("num_workers", num_workers, low=0)
        self.rank, self.world_size, self.num_workers = rank, world_size, max(1, num_workers)
        self.epoch = self.num_batches = 0  # of all processes together
        self.positions = [StreamPosition()] * (self.world_size * self.num_workers)

    def streams(self, worker: int) -> Iterator[int]:
        """The streams of the batches that a worker makes, one after the other without end."""
        first = self.num_batches // self.world_size + worker
        for number in itertools.count(first, self.num_workers):
            yield (number * self.world_size + self.rank) % len(self.positions)

    def advance(self, stream: int, position: StreamPosition) -> None:
        """Count a batch of a stream as delivered."""
        self.positions[stream] = position
        self.epoch = position.epoch
        self.num_batches += self.world_size

    def state_dict(self) -> dict[str, Any]:
        """The positions of all streams. Every process calls this, because each knows those of its own streams."""
        positions = self.positions
        if distributed.is_available() and distributed.is_initialized() and self.world_size > 1:
            gathered: list[Any] = [None] * distributed.get_world_size()
            distributed.all_gather_object(gathered, (self.rank, positions))
            of_ranks = dict(gathered)  # processes that share a model can have the same rank
            positions = [of_ranks[stream % self.world_size][stream] for stream in range(len(positions))]
        return {"num_batches": self.num_batches, "positions": [list(position) for position in positions]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Start the next iteration at a saved position.

        Raises:
            InvalidType: If the state lacks a number or the positions.
            InvalidArgument: If another number of processes and workers cannot share the streams.
        """
        with Checks() as checks:
            checks.integer("state['num_batches']", state.get("num_batches"), low=0)
            positions = state.get("positions")
            is_valid = isinstance(positions, list) and bool(positions) and all(map(_is_position, positions))
            checks.that(is_valid, f"state['positions']: expected lists of 4 ints, got {short_repr(positions)}")
        num_streams, num_readers = len(state["positions"]), self.world_size * self.num_workers
        if num_streams % num_readers:
            raise InvalidArgument(
                f"num_workers: expected a number whose product with the {self.world_size} processes divides "
                f"{num_streams}, the streams that the run began with, got {self.num_workers}"
            )
        self.positions = [StreamPosition(*position) for position in state["positions"]]
        self.num_batches = state["num_batches"]
        self.epoch = min(position.epoch for position in self.positions)


def _is_position(value: Any) -> bool:
    is_list = isinstance(value, list) and len(value) == len(StreamPosition._fields)
    return is_list and all(type(number) is int and number >= 0 for number in value)


class StreamLoader:
    """Batches of a `Corpus` without end, whose state counts delivered batches only.

    The order is determined by the seed and the number of streams: at the beginning one for each worker of each process.
    A loader with another number of workers continues the same streams, if they can be shared evenly.

    Args:
        corpus: What is streamed.
        num_workers: Processes that read, tokenize and make batches; 0: this process does.
        pin_memory: Whether to copy batches into pinned memory.
        rank: Rank of this process, below ``world_size``.
        world_size: Number of processes.

    Raises:
        InvalidType: If a number is not an int.
        InvalidArgument: If a number is out of range.
    """

    def __init__(
        self, corpus: Corpus, *, num_workers: int = 0, pin_memory: bool = False, rank: int = 0, world_size: int = 1
    ) -> None:
        with Checks() as checks:
            checks.integer("buffer_size", corpus.buffer_size, low=1)
            checks.integer("seed", corpus.seed, low=0)
        self.corpus, self.num_workers, self.pin_memory = corpus, num_workers, pin_memory
        self.sampler = StreamSampler(rank=rank, world_size=world_size, num_workers=num_workers)

    def __iter__(self) -> Iterator[Any]:
        loader = DataLoader(
            _Streams(self.corpus, self.sampler),
            batch_size=None,
            num_workers=self.num_workers,
            pin_memory=self.pin_memory,
            worker_init_fn=_start_worker,
            generator=torch.Generator(),  # else each iterator would draw a number from torch's global generator
        )
        for result in loader:
            if isinstance(result, RegardError):
                raise result
            batch, position, stream = result
            self.sampler.advance(stream, position)
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """The state of the sampler; every process calls this."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Start the next iteration at a saved position; errors are those of `StreamSampler`."""
        self.sampler.load_state_dict(state)


class _Streams(IterableDataset[Any]):
    """The batches of one worker, each with its stream and the position after it."""

    def __init__(self, corpus: Corpus, sampler: StreamSampler) -> None:
        self.corpus, self.sampler = corpus, sampler

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        positions, open_streams = list(self.sampler.positions), {}
        try:
            for stream in self.sampler.streams(0 if info is None else info.id):
                if stream not in open_streams:
                    open_streams[stream] = self.corpus.batches(stream, len(positions), positions[stream])
                yield (*next(open_streams[stream]), stream)
        except RegardError as error:  # as it is: a DataLoader would put the traceback of the worker into its message
            yield error


def _start_worker(worker: int) -> None:
    ignore_ctrl_c(worker)
    os.environ["TOKENIZERS_PARALLELISM"] = (
        "false"  # in this worker: threads of the process it is forked from are not here
    )
