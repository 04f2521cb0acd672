"""Datasets that are tokenized once."""

from __future__ import annotations

from regard.data.token_dataset import tokenize_once


def test_two_processes_that_write_one_dataset_share_the_first(tmp_path):
    cache = tmp_path / "cache"

    def fast(counts):
        counts["fast"] += 1
        yield ([[1, 2], [], [3]],)

    def slow(counts):
        tokenize_once(cache, "key", ["column"], fast)
        counts["slow"] += 1
        yield ([[4]],)

    (column,), counts = tokenize_once(cache, "key", ["column"], slow)
    assert [row.tolist() for row in column] == [[1, 2], [], [3]]
    assert column.lengths.tolist() == [2, 0, 1]
    assert counts == {"fast": 1}
    assert len(list(cache.iterdir())) == 1


def test_a_dataset_without_tokens_can_be_opened(tmp_path):
    (column,), counts = tokenize_once(tmp_path, "key", ["column"], lambda counts: iter([]))
    assert (len(column), column.ids.tolist(), counts) == (0, [], {})
