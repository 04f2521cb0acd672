"""Datasets that are tokenized once."""

from __future__ import annotations

import shutil

import pytest

from regard.data.token_dataset import tokenize_once
from regard.errors import InvalidFile


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


@pytest.mark.parametrize("name", ["a.bin", "a.npy", "counts.json", "checksums.json"])
@pytest.mark.parametrize("damage", ["truncated", "changed", "missing"])
def test_a_damaged_dataset_is_refused_and_can_be_removed(tmp_path, name, damage):
    def tokenize(counts):
        counts["lines"] += 2
        yield [[[1, 2, 3], [4, 5]]]

    def tokenized():
        (column,), counts = tokenize_once(tmp_path, "key", ["a"], tokenize)
        return [row.tolist() for row in column], counts

    expected = tokenized()
    assert expected == ([[1, 2, 3], [4, 5]], {"lines": 2})
    (folder,) = tmp_path.iterdir()
    path = folder / name
    data = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(
            data[: len(data) // 2] if damage == "truncated" else bytes([*data[:-3], data[-3] ^ 1, *data[-2:]])
        )
    with pytest.raises(InvalidFile) as error:
        tokenized()
    assert str(error.value).startswith(f"{folder}/")
    assert str(error.value).endswith(f"; remove the folder {folder}, which is then written again")
    shutil.rmtree(folder)
    assert tokenized() == expected
