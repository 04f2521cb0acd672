"""Batches contain every pair once, within the budget, in an order that can be resumed anywhere."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batching import (
    BatchIndices,
    ResumableLoader,
    ResumableSampler,
    pad_batch,
    padding_fraction,
    shuffled_batches,
    split,
    token_budget_batches,
)
from regard.data.pairs import PairBatch, PairDataset, collate_pairs, pair_loader, tokenize_pairs
from regard.errors import InvalidArgument, InvalidType
from regard.text.tokenizer import train_translation_bpe

LENGTHS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=200)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> PairDataset:
    folder, draw = tmp_path_factory.mktemp("corpus"), random.Random(0)
    lines = (f"{number} {'a' * draw.randint(1, 30)}\t{number} {'b' * draw.randint(1, 30)}" for number in range(500))
    (folder / "a.tsv").write_text("\n".join(lines))
    return tokenize_pairs([folder / "a.tsv"], train_translation_bpe(["a"], vocab_size=259), folder)


@given(LENGTHS, st.integers(61, 500), st.one_of(st.none(), st.integers(0, 9)))
def test_every_pair_is_in_one_batch_within_the_budget(
    lengths: list[tuple[int, int]], tokens: int, seed: int | None
) -> None:
    src, tgt = np.array(lengths).T
    batches = token_budget_batches(src, tgt, tokens, None if seed is None else np.random.default_rng(seed))
    assert sorted(itertools.chain(*(rows.tolist() for rows in batches))) == list(range(len(lengths)))
    for rows in batches:
        assert len(rows) * max(src[rows].max() + 1, tgt[rows].max() + 1) <= tokens


def test_padding_fraction_is_that_of_the_tensors(corpus: PairDataset) -> None:
    loader = pair_loader(corpus, 400)
    cells = real = 0
    for batch in loader:
        cells += batch.input_ids.numel() + batch.labels.numel()
        real += int((batch.input_ids != 0).sum() + (batch.labels != 0).sum())
    assert padding_fraction(corpus.source.lengths, corpus.target.lengths, loader.sampler.plan(0)) == pytest.approx(
        1 - real / cells
    )


def test_batches_have_far_less_padding_than_random_ones() -> None:
    rng = np.random.default_rng(0)
    src = rng.poisson(9, 20_000) + 1  # as short sentences are
    tgt = np.maximum(1, src + rng.normal(0, 1.5, 20_000).round().astype(int))
    assert padding_fraction(src, tgt, token_budget_batches(src, tgt, 8000, rng)) < 0.1
    assert padding_fraction(src, tgt, np.array_split(rng.permutation(20_000), 25)) > 0.4


@given(st.lists(st.integers(1, 60), min_size=1, max_size=300), st.integers(1, 9), st.integers(0, 9))
def test_batches_of_a_size_have_each_row_once(lengths: list[int], batch_size: int, seed: int) -> None:
    batches = shuffled_batches(np.array(lengths), batch_size)(np.random.default_rng(seed))
    assert sorted(itertools.chain(*(rows.tolist() for rows in batches))) == list(range(len(lengths)))
    sizes = sorted(map(len, batches), reverse=True)
    assert sizes[:-1] == [batch_size] * (len(sizes) - 1)


def test_batches_of_a_size_have_far_less_padding_than_random_ones_and_differ_in_each_epoch() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.poisson(rng.gamma(4, 5, 9000)) + 1  # as the sentences of reviews are
    make_batches = shuffled_batches(lengths, 32)
    first, second = (
        [frozenset(rows.tolist()) for rows in make_batches(np.random.default_rng(seed))] for seed in (0, 1)
    )
    padding = padding_fraction(lengths, lengths, [np.array(list(rows)) for rows in first])
    assert padding < 0.05
    assert padding_fraction(lengths, lengths, np.array_split(rng.permutation(9000), 282)) > 0.4
    assert not set(first) & set(second)
    longest = [lengths[list(rows)].max() for rows in first]
    assert longest not in (sorted(longest), sorted(longest, reverse=True))


@pytest.mark.parametrize("num_rows", [1, 5, 8, 31, 100])
def test_few_rows_are_not_all_sorted_by_length_together(num_rows: int) -> None:
    lengths = np.arange(num_rows) + 1
    batches = shuffled_batches(lengths, 4)(np.random.default_rng(0))
    spans = [int(lengths[rows].max() - lengths[rows].min()) for rows in batches if len(rows) == 4]
    assert num_rows < 8 or max(spans) > 4


def test_a_pair_above_the_budget_is_refused() -> None:
    with pytest.raises(
        InvalidArgument, match="max_tokens: expected at least the 12 tokens of pair 1, got 10; allow more tokens"
    ):
        token_budget_batches(np.array([3, 11]), np.array([3, 3]), 10, None)


def test_a_batch_is_ready_for_teacher_forcing(corpus: PairDataset) -> None:
    batch = collate_pairs(corpus, BatchIndices(np.array([7, 3]), ()))
    for row, pair in enumerate([7, 3]):
        source, target = corpus.source[pair].tolist(), corpus.target[pair].tolist()
        assert batch.input_ids[row].tolist() == [*source, 2] + [0] * (batch.input_ids.shape[1] - len(source) - 1)
        assert batch.lengths[row] == len(source) + 1
        padding = [0] * (batch.labels.shape[1] - len(target) - 1)
        assert batch.decoder_input_ids[row].tolist() == [1, *target, *padding]
        assert batch.labels[row].tolist() == [*target, 2, *padding]
    assert batch.num_targets == len(corpus.target[7]) + len(corpus.target[3]) + 2
    assert batch.input_ids.dtype == batch.labels.dtype == torch.int64


def take(loader: ResumableLoader, count: int) -> list[PairBatch]:
    return list(itertools.islice(loader, count))


def same(left: list[PairBatch], right: list[PairBatch]) -> bool:
    return len(left) == len(right) and all(
        torch.equal(a.input_ids, b.input_ids) for a, b in zip(left, right, strict=True)
    )


def test_seed_and_epoch_determine_the_order(corpus: PairDataset) -> None:
    first = pair_loader(corpus, 400, seed=1)
    epoch = len(first.sampler.plan(0))
    batches = take(first, 3 * epoch)
    assert same(batches, take(pair_loader(corpus, 400, seed=1), 3 * epoch))
    assert not same(batches, take(pair_loader(corpus, 400, seed=2), 3 * epoch))
    assert not same(batches[:epoch], batches[epoch : 2 * epoch])
    pairs = [frozenset(tuple(row) for row in batch.input_ids.tolist()) for batch in batches]
    assert set(pairs[:epoch]) != set(pairs[epoch : 2 * epoch])  # other pairs share a batch


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("stop", [1, 17, 40, 41, 80, 95])
def test_a_resumed_loader_continues_at_the_next_batch(corpus: PairDataset, stop: int, world_size: int) -> None:
    full = take(pair_loader(corpus, 400, seed=1, rank=world_size - 1, world_size=world_size), 120)
    stopped = pair_loader(
        corpus, 400, seed=1, rank=0, world_size=world_size
    )  # the state that is saved is the first process's
    take(stopped, stop)
    resumed = pair_loader(corpus, 400, seed=1, rank=world_size - 1, world_size=world_size)
    resumed.load_state_dict(stopped.state_dict())
    assert same(take(resumed, 120 - stop), full[stop:])


@pytest.mark.parametrize("world_size", [2, 3, 7])
def test_processes_share_an_epoch_evenly(corpus: PairDataset, world_size: int) -> None:
    loaders = [pair_loader(corpus, 400, seed=1, rank=rank, world_size=world_size) for rank in range(world_size)]
    steps = len(loaders[0].sampler.plan(0)) // world_size
    assert len(loaders[0].sampler.plan(0)) == steps * world_size
    rows = [tuple(batch.input_ids[:, :4].flatten().tolist()) for loader in loaders for batch in take(loader, steps)]
    alone = pair_loader(corpus, 400, seed=1)
    expected = [tuple(batch.input_ids[:, :4].flatten().tolist()) for batch in take(alone, len(alone.sampler.plan(0)))]
    assert set(rows) == set(expected)
    assert len(rows) - len(expected) == -len(expected) % world_size


@pytest.mark.parametrize("world_size", [2, 3])
def test_random_choices_within_a_batch_do_not_depend_on_the_number_of_processes(world_size: int) -> None:
    """Which tokens are masked, so that several processes are one that accumulates as many batches."""

    def make_batches(rng: np.random.Generator | None) -> list[np.ndarray]:
        assert rng is not None
        return split(rng.permutation(12), 2)

    def first_epochs(count: int, **ranks: int) -> list[tuple[list[int], tuple[int, ...]]]:
        indices = itertools.islice(ResumableSampler(make_batches, seed=5, **ranks), count)
        return [(rows.tolist(), seed) for rows, seed in indices]

    alone = first_epochs(18)
    for rank in range(world_size):
        own = first_epochs(18 // world_size, rank=rank, world_size=world_size)
        assert own == alone[rank::world_size]
    assert len({seed for _, seed in alone}) == 18


def test_validation_has_every_pair_once(corpus: PairDataset) -> None:
    loaders = [pair_loader(corpus, 400, rank=rank, world_size=2) for rank in range(2)]
    for _ in range(2):
        batches = [list(loader) for loader in loaders]
        assert [len(of_process) for of_process in batches] == [len(loader) for loader in loaders]
        assert sum(len(batch.input_ids) for of_process in batches for batch in of_process) == len(corpus)


def test_a_small_validation_set_is_divided_among_all_processes(corpus: PairDataset) -> None:
    loaders = [pair_loader(corpus, 10**6, rank=rank, world_size=3) for rank in range(3)]
    assert [len(loader) for loader in loaders] == [1, 1, 1]
    assert sum(len(batch.input_ids) for loader in loaders for batch in loader) == len(corpus)


def test_the_state_is_plain_data(corpus: PairDataset, tmp_path: Path) -> None:
    loader = pair_loader(corpus, 400, seed=1)
    take(loader, 5)
    torch.save(loader.state_dict(), tmp_path / "state")
    assert torch.load(tmp_path / "state", weights_only=True) == {"epoch": 0, "position": 5}


@pytest.mark.parametrize(("then", "now"), [(1, 2), (2, 1), (3, 2), (4, 7)])
def test_another_number_of_processes_resumes_near_the_saved_position(corpus: PairDataset, then: int, now: int) -> None:
    stopped = pair_loader(corpus, 400, seed=1, world_size=then)
    for _ in range(60):
        take(stopped, 1)
        state = stopped.state_dict()
        resumed = [pair_loader(corpus, 400, seed=1, rank=rank, world_size=now) for rank in range(now)]
        for loader in resumed:
            loader.load_state_dict(state)
        resumed_batches = [next(iter(loader)).input_ids.tolist() for loader in resumed]
        plan = resumed[0].sampler.plan(state["epoch"])
        first = state["position"] - state["position"] % now
        assert resumed_batches == [
            collate_pairs(corpus, BatchIndices(plan[first + rank], ())).input_ids.tolist() for rank in range(now)
        ]


def counted(state: dict[str, int], steps: int) -> int:
    """Delivered batches of a state, for an epoch of so many."""
    return state["epoch"] * steps + state["position"]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_state_counts_delivered_batches_at_every_position(corpus: PairDataset, num_workers: int) -> None:
    full = take(pair_loader(corpus, 1500, seed=1), 40)
    loader = pair_loader(corpus, 1500, seed=1, num_workers=num_workers)
    steps = len(loader.sampler.plan(0))
    assert steps < 15  # several epochs
    states = []
    for count, batch in enumerate(itertools.islice(loader, 30)):
        assert torch.equal(batch.labels, full[count].labels)
        states.append(loader.state_dict())
    assert [counted(state, steps) for state in states] == list(range(1, 31))
    for count in [1, steps - 1, steps, 29] if num_workers else range(1, 31):
        resumed = pair_loader(corpus, 1500, seed=1, num_workers=num_workers)
        resumed.load_state_dict(states[count - 1])
        assert same(take(resumed, 40 - count), full[count:])


def test_loaders_do_not_use_the_global_generator(corpus: PairDataset) -> None:
    before = torch.get_rng_state()
    list(pair_loader(corpus, 400))
    take(pair_loader(corpus, 400, seed=1), 2)
    assert torch.equal(torch.get_rng_state(), before)


def test_training_batches_have_no_length(corpus: PairDataset) -> None:
    with pytest.raises(TypeError, match="training has no last batch"):
        len(pair_loader(corpus, 400, seed=1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 5, "world_size": 2}, "rank: expected an int of at least 0 and below 2, got 5"),
        ({"rank": -1}, "rank: expected an int of at least 0 and below 1, got -1"),
        ({"world_size": 0}, "world_size: expected an int of at least 1, got 0"),
        ({"seed": -1}, "seed: expected an int of at least 0, or None, got -1"),
        ({"seed": "a"}, "seed: expected an int of at least 0, or None, got 'a'"),
        ({"max_tokens": 0}, "max_tokens: expected an int of at least 1, got 0"),
    ],
)
def test_invalid_options_are_refused(corpus: PairDataset, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidType if options == {"seed": "a"} else InvalidArgument, match=message):
        list(pair_loader(corpus, **{"max_tokens": 400, **options}))


def test_an_invalid_state_is_refused(corpus: PairDataset) -> None:
    loader = pair_loader(corpus, 400, seed=1)
    with pytest.raises(InvalidType, match=r"state\['epoch'\]: expected an int of at least 0, got None"):
        loader.load_state_dict({})
    with pytest.raises(InvalidArgument, match=r"state\['position'\]: expected an int .* below \d+, got 999"):
        loader.load_state_dict({"epoch": 0, "position": 999})


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="sequences: expected at least one, got none"):
        pad_batch([], pad_id=0)
