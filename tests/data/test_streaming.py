"""A streamed corpus: each text once an epoch, however many read it, and the same batches after any interruption."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.corpora import write_rows, write_texts
from helpers.pairwise import each_value, pairwise
from regard.data import blocks, streaming
from regard.data.blocks import stream_blocks
from regard.data.masking import IGNORE_INDEX, stream_masked
from regard.data.pairs import PairBatch, stream_pairs
from regard.data.streaming import Corpus, StreamLoader, split_files
from regard.data.texts import stream_labeled
from regard.errors import InvalidArgument, InvalidFile, InvalidType
from regard.text.tokenizer import train_bpe, train_translation_bpe

TEXTS = [f"text {number} has {'many ' * (number % 7)}words" for number in range(60)]
TOKENIZER = train_bpe(TEXTS, 300)
PAIRS = [(text, text.replace("has", "hat").replace("words", "Wörter")) for text in TEXTS]
PAIR_TOKENIZER = train_translation_bpe([text for pair in PAIRS for text in pair], 300)
LABELS = ("few", "many")


class Numbers:
    """A tokenizer of texts that are numbers."""

    eos_id = None

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[*map(int, text.split())] for text in texts]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "PART_BYTES", 200)


def masked(files: Sequence[Path], **options: Any) -> StreamLoader:
    sizes = {"max_length": 40, "buffer_size": 700}
    options = {"seed": 1, **sizes, **options}
    return stream_masked(split_files(files), TOKENIZER, 200, mask_id=TOKENIZER.mask_id, **options)


def pairs(files: Sequence[Path], **options: Any) -> StreamLoader:
    options = {"seed": 1, "max_length": 60, "buffer_size": 1400, **options}
    return stream_pairs(split_files(files), PAIR_TOKENIZER, 200, **options)


def labeled(files: Sequence[Path], **options: Any) -> StreamLoader:
    options = {"seed": 1, "labels": LABELS, "max_length": 40, "buffer_size": 700, **options}
    return stream_labeled(split_files(files), TOKENIZER, 8, **options)


ROWS = {
    pairs: [{"source": source, "target": target} for source, target in PAIRS],
    labeled: [{"text": text, "label": LABELS["many" in text]} for text in TEXTS],
}


def texts_of(batch: Any) -> list[str]:
    """The texts of a batch; pairs and labeled texts with a tab, as in a line of a file."""
    if isinstance(batch, PairBatch):
        ids = [[row[: length - 1].tolist() for row, length in zip(batch.input_ids, batch.lengths, strict=True)]]
        ends = (batch.labels != PAIR_TOKENIZER.pad_id).sum(1)
        ids += [[row[: end - 1].tolist() for row, end in zip(batch.labels, ends, strict=True)]]
        return ["\t".join(pair) for pair in zip(*map(PAIR_TOKENIZER.decode, ids), strict=True)]
    if batch.labels.ndim == 1:
        rows = [row[1 : length - 1].tolist() for row, length in zip(batch.input_ids, batch.lengths, strict=True)]
        labels = [LABELS[index] for index in batch.labels.tolist()]
        return ["\t".join(row) for row in zip(TOKENIZER.decode(rows), labels, strict=True)]
    ids = torch.where(batch.labels == IGNORE_INDEX, batch.input_ids, batch.labels)
    rows = [row[1 : length - 1].tolist() for row, length in zip(ids, batch.lengths, strict=True)]
    return TOKENIZER.decode(rows)


def texts_of_epochs(loader: StreamLoader, num_epochs: int) -> list[Counter[str]]:
    epochs = [Counter[str]() for _ in range(num_epochs + 1)]
    sampler = loader.sampler
    for batch in loader:
        epochs[min(sampler.epoch, num_epochs)].update(texts_of(batch))
        positions = sampler.positions[sampler.rank :: sampler.world_size]
        if min(position.epoch for position in positions) == num_epochs:
            return epochs[:num_epochs]
    raise AssertionError


@pytest.mark.parametrize(
    ("num_workers", "world_size", "names"),
    pairwise([0, 2], [1, 2, 4], [["a.txt"], ["a.txt.gz"], ["a.jsonl", "b.jsonl.gz"], ["a.parquet", "b.txt"]]),
)
def test_each_text_is_seen_once_an_epoch(tmp_path: Path, names: list[str], world_size: int, num_workers: int) -> None:
    size = -(-len(TEXTS) // len(names))
    files = [write_texts(tmp_path / name, TEXTS[n * size : n * size + size]) for n, name in enumerate(names)]
    totals = [Counter[str](), Counter[str]()]
    for rank in range(world_size):
        loader = masked(files, rank=rank, world_size=world_size, num_workers=num_workers)
        for total, texts in zip(totals, texts_of_epochs(loader, 2), strict=True):
            total.update(texts)
    assert totals == [Counter(TEXTS), Counter(TEXTS)]


@pytest.mark.parametrize("load", ROWS)
@pytest.mark.parametrize(
    ("names", "world_size", "num_workers"),
    [(["a.tsv"], 1, 0), (["a.tsv"], 2, 2), (["a.tsv.gz"], 2, 0), (["a.parquet", "b.jsonl"], 2, 0)],
)
def test_each_row_is_seen_once_an_epoch(
    tmp_path: Path, load: Any, names: list[str], world_size: int, num_workers: int
) -> None:
    rows = ROWS[load]
    size = -(-len(rows) // len(names))
    files = [write_rows(tmp_path / name, rows[n * size : n * size + size]) for n, name in enumerate(names)]
    totals = [Counter[str](), Counter[str]()]
    for rank in range(world_size):
        loader = load(files, rank=rank, world_size=world_size, num_workers=num_workers)
        for total, texts in zip(totals, texts_of_epochs(loader, 2), strict=True):
            total.update(texts)
    assert totals == [Counter("\t".join(row.values()) for row in rows)] * 2


def test_pairs_of_similar_length_are_a_batch(tmp_path: Path) -> None:
    """Within the budget, with little padding, and without pairs that are too long."""
    files = [write_rows(tmp_path / "a.tsv", [*ROWS[pairs], {"source": "word " * 90, "target": "Wort " * 90}])]
    loader = pairs(files, buffer_size=10**6)
    sizes, num_real, count = [], 0, 0
    for batch in loader:
        if loader.sampler.epoch > 0:
            break
        sizes.append(max(batch.input_ids.numel(), batch.labels.numel()))
        num_real += int(batch.lengths.sum())
        count += batch.input_ids.numel()
    assert max(sizes) <= 200
    assert num_real > 0.9 * count
    assert "word word" not in "".join(text for batch in itertools.islice(loader, 20) for text in texts_of(batch))


@pytest.mark.parametrize("load", ROWS)
@pytest.mark.parametrize(("before", "after"), [(0, 0), (2, 1)])
def test_rows_resume_at_every_batch(tmp_path: Path, load: Any, before: int, after: int) -> None:
    files = [write_rows(tmp_path / "a.jsonl", ROWS[load])]
    whole = [texts_of(batch) for batch in itertools.islice(load(files, num_workers=before), 30)]
    stopped = load(files, num_workers=before)
    batches, step = iter(stopped), 3 if before + after else 1
    for start in range(0, 20, step):
        resumed = load(files, num_workers=after)
        resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
        assert [texts_of(batch) for batch in itertools.islice(resumed, 10)] == whole[start : start + 10], start
        for _ in range(step):
            next(batches)
    assert stopped.sampler.epoch >= 1


@pytest.mark.parametrize(
    ("load", "line", "message"),
    [
        (pairs, "no tab", "expected source, tab, target, got no tab in 'no tab'"),
        (labeled, "text\tsome", "expected one of 'few', 'many', got 'some'"),
        (labeled, "no tab", "expected text, tab, class, got 'no tab'"),
        (pairs, b"one\xe9\tx", "expected UTF-8, got 0xe9 at byte 4 of the line; "),
        (labeled, b"one\xe9\tx", "expected UTF-8, got 0xe9 at byte 4 of the line; "),
        (masked, b"one\xe9", "expected UTF-8, got 0xe9 at byte 4 of the line; "),
    ],
)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_bad_line_of_a_later_part_is_named(
    tmp_path: Path, load: Any, line: str | bytes, message: str, num_workers: int
) -> None:
    path = write_rows(tmp_path / "a.tsv", ROWS[labeled if load is masked else load])
    with path.open("ab") as file:
        file.write(line if isinstance(line, bytes) else line.encode())
    assert len(split_files([path])) > 5
    with pytest.raises(InvalidFile) as caught:
        ids_of(load([path], num_workers=num_workers), 200)
    assert str(caught.value).startswith(f"{path}, line 61: {message}")


def test_epochs_have_other_orders_and_other_masks(tmp_path: Path) -> None:
    loader = masked([write_texts(tmp_path / "a.txt", TEXTS)])
    seen: list[list[tuple[str, list[int]]]] = [[], []]
    for batch in loader:
        if loader.sampler.epoch == 2:
            break
        seen[loader.sampler.epoch] += zip(texts_of(batch), batch.input_ids.tolist(), strict=True)
    first, second = seen
    assert [text for text, _ in first] != [text for text, _ in second]
    unpadded = [{text: [token for token in ids if token] for text, ids in epoch} for epoch in seen]
    assert unpadded[0] != unpadded[1]
    assert [text for text, _ in first][:20] != TEXTS[:20]


def test_each_epoch_shuffles_parts_and_buffers(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "a.txt", TEXTS)
    corpus, reads = masked([path]).corpus, []
    recorded = corpus._replace(read=lambda part: reads.append(part) or corpus.read(part))
    for _, position in recorded.batches(0, 1, streaming.StreamPosition()):
        if position.epoch == 2:
            break
    size = len(corpus.parts)
    epochs = [reads[:size], reads[size : 2 * size]]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(corpus.parts)
    assert epochs[0] != epochs[1]
    one_part = corpus._replace(parts=[streaming.FilePart(path, None, is_last=True)], buffer_size=10**6)
    batches = itertools.islice(one_part.batches(0, 1, streaming.StreamPosition()), 100)
    by_epoch: dict[int, list[Any]] = {0: [], 1: []}
    for batch, position in batches:
        if position.epoch < 2:
            by_epoch[position.epoch] += zip(texts_of(batch), batch.input_ids.tolist(), strict=True)
    orders = [[text for text, _ in rows] for rows in by_epoch.values()]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(TEXTS)
    assert orders[0] != orders[1]


def ids_of(loader: StreamLoader, count: int) -> list[Any]:
    return [(batch.input_ids.tolist(), batch.labels.tolist()) for batch in itertools.islice(loader, count)]


@pytest.mark.parametrize(
    ("name", "workers"), each_value(["a.txt", "a.txt.gz", "a.parquet"], [(0, 0), (2, 2), (2, 0), (2, 1), (0, 1)])
)
def test_a_stream_resumes_at_every_batch(tmp_path: Path, name: str, workers: tuple[int, int]) -> None:
    before, after = workers
    files = [write_texts(tmp_path / name, TEXTS)]
    whole = ids_of(masked(files, num_workers=before), 40)
    stopped = masked(files, num_workers=before)
    assert stopped.sampler.epoch == 0
    batches = iter(stopped)
    for step in range(0, 30, 3 if before + after else 1):
        resumed = masked(files, num_workers=after)
        resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
        assert ids_of(resumed, 10) == whole[step : step + 10], step
        for _ in range(3 if before + after else 1):
            next(batches)
    assert stopped.sampler.epoch >= 1


def test_processes_are_resumed_by_fewer(tmp_path: Path) -> None:
    files = [write_texts(tmp_path / "a.txt", TEXTS)]
    loaders = [masked(files, rank=rank, world_size=2) for rank in range(2)]
    both = [ids_of(loader, 20) for loader in loaders]
    loaders = [masked(files, rank=rank, world_size=2) for rank in range(2)]
    for loader in loaders:
        ids_of(loader, 5)
    states = [loader.state_dict() for loader in loaders]
    positions = [states[stream]["positions"][stream] for stream in range(2)]  # as gathered from the processes
    alone = masked(files)
    alone.load_state_dict({"num_batches": states[0]["num_batches"], "positions": positions})
    assert ids_of(alone, 30) == [batch for pair in zip(*both, strict=True) for batch in pair][10:40]
    assert states[0]["num_batches"] == 10


def test_streams_that_cannot_be_shared_are_refused(tmp_path: Path) -> None:
    files = [write_texts(tmp_path / "a.txt", TEXTS)]
    state = masked(files, num_workers=4).state_dict()
    loader = masked(files, num_workers=3)
    message = "num_workers: expected a number whose product with the 1 processes divides 4, .* got 3"
    with pytest.raises(InvalidArgument, match=message):
        loader.load_state_dict(state)
    with pytest.raises(InvalidArgument, match="rank: expected an int of at least 0 and below 2, got 2"):
        masked(files, rank=2, world_size=2)
    with pytest.raises(InvalidType, match="num_workers: expected an int"):
        masked(files, num_workers=0.5)


@pytest.mark.parametrize("state", [{"epoch": 0, "position": 3}, {"num_batches": 1, "positions": [[0, 0, 0]]}])
def test_the_state_of_another_loader_is_refused(tmp_path: Path, state: dict[str, Any]) -> None:
    loader = masked([write_texts(tmp_path / "a.txt", TEXTS)])
    with pytest.raises((InvalidType, InvalidArgument), match=r"state\['positions'\]: expected lists of 4 ints, got "):
        loader.load_state_dict(state)


def numbered_blocks(path: Path, **options: Any) -> StreamLoader:
    options = {"seed": 1, "buffer_size": 2000, "sample_by": "line", **options}
    return stream_blocks(split_files([path]), Numbers(), 8, 4, **options)


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".parquet"])
@pytest.mark.parametrize("sample_by", ["line", "document"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_blocks_predict_nearly_every_token_once_an_epoch(
    tmp_path: Path, suffix: str, sample_by: str, num_workers: int
) -> None:
    numbers = iter(range(1000, 4000))
    texts = [" ".join(map(str, itertools.islice(numbers, 6))) for _ in range(500)]
    path = write_texts(tmp_path / f"a{suffix}", texts, row_group_size=40)
    for epoch in range(2):
        loader = numbered_blocks(path, sample_by=sample_by, num_workers=num_workers)
        labels: list[int] = []
        for batch in loader:
            if loader.sampler.epoch == epoch:
                labels += batch.labels.flatten().tolist()
                assert (batch.input_ids[:, 1:] == batch.labels[:, :-1]).all()
            if min(position.epoch for position in loader.sampler.positions) > epoch:
                break
        assert len(labels) == len(set(labels))
        num_buffers = 3000 * 5 / 2000 + 4
        assert 3000 - num_buffers * (4 * 8 + 8) < len(labels) <= 3000


def test_the_end_of_a_document_follows_its_last_part_only(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("".join(f"{number}\n" for number in range(100, 300)))
    parts = split_files([path])
    assert len(parts) == 4
    assert [part.is_last for part in parts] == [False, False, False, True]
    reading = {"sample_by": "document", "text_column": "text"}
    pieces = [piece for part in parts for piece in blocks._read_part_of_stream(part, **reading)]
    assert "".join(text for text, _ in pieces) == path.read_text()
    assert [is_end for _, is_end in pieces] == [False, False, False, True]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_bad_row_is_named(tmp_path: Path, num_workers: int) -> None:
    rows: list[dict[str, Any]] = [{"text": text} for text in TEXTS]
    rows[43] = {"text": 5}
    path = write_rows(tmp_path / "a.jsonl", rows)
    with pytest.raises(InvalidFile) as caught:
        ids_of(masked([path], num_workers=num_workers), 100)
    assert str(caught.value) == f"{path}, line 44: expected a str in the column 'text', got 5"


def test_a_file_that_disappears_is_named(tmp_path: Path) -> None:
    files = [write_texts(tmp_path / name, TEXTS) for name in ("a.parquet", "b.parquet")]
    loader = masked(files)
    files[1].unlink()
    with pytest.raises(InvalidFile, match=r"b\.parquet: no such file"):
        ids_of(loader, 100)
    with pytest.raises(InvalidFile, match=r"b\.parquet: no such file"):
        split_files(files)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "expected text, got none"),
        (["one"], "expected text for a batch in each of 2 streams, got too little"),
        (["", " "], "expected text for a batch in each of 2 streams, got too little"),
    ],
)
def test_too_little_text_is_refused(tmp_path: Path, texts: list[str], message: str) -> None:
    path = write_texts(tmp_path / "a.txt", texts)
    with pytest.raises(InvalidFile, match=rf"a\.txt: {message}"):
        ids_of(masked([path], num_workers=2), 5)


def test_a_part_without_text_stops_no_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "PART_BYTES", 10**6)
    files = [write_texts(tmp_path / "a.txt", TEXTS), write_texts(tmp_path / "b.txt", ["", " "])]
    assert len(split_files(files)) == 2
    for rank in range(2):
        assert len(ids_of(masked(files, rank=rank, world_size=2), 40)) == 40


def test_sizes_are_checked(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "a.txt", TEXTS)
    with pytest.raises(InvalidArgument, match="buffer_size: expected an int of at least 1, got 0"):
        numbered_blocks(path, buffer_size=0)
    with pytest.raises(InvalidArgument, match="buffer_size: expected an int of at least 1, got 0"):
        masked([path], buffer_size=0)


def number_pairs(path: Path, **options: Any) -> StreamLoader:
    return stream_pairs(split_files([path]), Numbers(), 500, max_length=60, seed=1, **options)


@pytest.mark.parametrize("load", [numbered_blocks, number_pairs])
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: Any) -> None:
    monkeypatch.setattr(streaming, "PART_BYTES", 1 << 18)
    peaks = []
    for number, size in enumerate((2_000, 20_000)):
        path = tmp_path / f"{number}.txt"
        middle = " " if load is numbered_blocks else "\t"
        lines = (f"{' '.join(map(str, range(n, n + 9)))}{middle}{' '.join(map(str, range(9)))}\n" for n in range(size))
        path.write_text("".join(lines))
        corpus = load(path, buffer_size=50_000).corpus
        tracemalloc.start()
        for _, position in Corpus(*corpus).batches(0, 1, streaming.StreamPosition()):
            if position.epoch:
                break
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]
