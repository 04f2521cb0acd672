"""What goes into a decoding cache comes out of it."""

from __future__ import annotations

import pytest
import torch

from regard.errors import InvalidArgument
from regard.nn import DecoderCache, FixedCache, GrowingCache


def test_what_is_appended_comes_back_in_order():
    cache, key, value = GrowingCache(capacity=1), torch.randn(3, 2, 11, 4), torch.randn(3, 2, 11, 5)
    for step in range(11):
        keys, values = cache.append(key[:, :, step : step + 1], value[:, :, step : step + 1])
        assert torch.equal(keys, key[:, :, : step + 1])
        assert torch.equal(values, value[:, :, : step + 1])
    assert cache.length == 11


@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [1, 0, 2, 2], [3, 3, 3, 3], [2, 0], [1]])
def test_rows_go_on_from_where_they_are_sent(rows):
    cache, key = GrowingCache(), torch.randn(4, 2, 3, 4)
    cache.append(key, -key)
    cache.reorder(torch.tensor(rows))
    new = torch.randn(len(rows), 2, 1, 4)
    keys, values = cache.append(new, -new)
    assert torch.equal(keys, torch.cat([key[rows], new], dim=2))
    assert torch.equal(values, -keys)


def test_an_empty_cache_may_be_reordered():
    cache = DecoderCache(2)
    cache.reorder(torch.tensor([1, 0]))
    cache.keep(torch.tensor([0]), torch.tensor([0, 1]))
    assert cache.length == 0


def test_sentences_leave_both_caches():
    cache, key = DecoderCache(1), torch.randn(4, 2, 3, 4)
    cache.layers[0].self_attention.append(key, key)
    cache.layers[0].cross_attention.fill(key[:2], key[2:])
    cache.keep(torch.tensor([1]), torch.tensor([2, 3]))
    fixed = cache.layers[0].cross_attention
    assert fixed.held is not None
    assert torch.equal(fixed.held[0], key[1:2])
    assert torch.equal(fixed.held[1], key[3:4])
    assert torch.equal(cache.layers[0].self_attention.append(key[:2], key[:2])[0], torch.cat([key[2:], key[:2]], dim=2))


def test_rows_that_do_not_fit_are_refused():
    cache = GrowingCache()
    cache.append(torch.zeros(4, 1, 1, 2), torch.zeros(4, 1, 1, 2))
    with pytest.raises(InvalidArgument, match="holds 4 rows, but the new key has 3"):
        cache.append(torch.zeros(3, 1, 1, 2), torch.zeros(3, 1, 1, 2))


def test_an_empty_fixed_cache_keeps_nothing():
    cache = FixedCache()
    cache.keep(torch.tensor([0]))
    assert cache.held is None
