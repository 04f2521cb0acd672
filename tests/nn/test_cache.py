"""A decoding cache returns what was appended."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from regard.errors import InvalidArgument
from regard.nn import CrossAttentionCache, KVCache, SharedBeamCache
from regard.ops.masks import Causal


def test_appended_entries_are_returned_in_order():
    cache, key, value = KVCache(capacity=1), torch.randn(3, 2, 11, 4), torch.randn(3, 2, 11, 5)
    for step in range(11):
        keys, values = cache.append(key[:, :, step : step + 1], value[:, :, step : step + 1])
        assert torch.equal(keys, key[:, :, : step + 1])
        assert torch.equal(values, value[:, :, : step + 1])
    assert cache.length == 11


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("tokens", [1, 2])
def test_a_beam_sees_the_tokens_that_it_continues(beams, tokens):
    """Each key holds the number of its entry; each row keeps the list of its entries."""
    generator, cache, count = torch.Generator().manual_seed(0), SharedBeamCache(1), 2
    own: list[list[int]] = [[] for _ in range(2 * beams)]
    entries, most = 0, 0
    for _ in range(60):
        mask = cache.advance(count, beams, tokens, torch.device("cpu"))
        numbers = torch.arange(entries, entries + beams * tokens, dtype=torch.float32)
        new = numbers[None, None, :, None].expand(count, 1, -1, 1)
        keys, values = cache.layers[0].self_attention.append(new, -new)
        assert torch.equal(keys, -values)
        most = max(most, keys.shape[2])
        for row in range(count * beams):
            first = entries + (row % beams) * tokens
            for token in range(tokens):
                own[row].append(first + token)
                if isinstance(mask, Tensor):
                    visible = mask[row // beams, 0, (row % beams) * tokens + token].nonzero().flatten().tolist()
                    assert sorted(keys[row // beams, 0, visible, 0].tolist()) == sorted(own[row])
        assert beams > 1 or isinstance(mask, Causal if tokens > 1 else type(None))
        entries += beams * tokens
        rows = torch.randint(0, beams, (count, beams), generator=generator) + beams * torch.arange(count)[:, None]
        cache.reorder_cache(rows.flatten())
        own = [list(own[row]) for row in rows.flatten().tolist()]
    assert cache.length == 60 * tokens
    assert most < 60 * tokens * beams or beams == 1  # what no beam sees was dropped


def test_an_empty_cache_may_be_reordered():
    cache = SharedBeamCache(2)
    cache.reorder_cache(torch.tensor([1, 0]))
    cache.batch_select_indices(torch.tensor([0]), torch.tensor([0, 1]))
    assert cache.length == 0


def test_sentences_leave_both_caches():
    cache, key = SharedBeamCache(1), torch.randn(4, 2, 3, 4)
    cache.layers[0].self_attention.append(key[:2], key[2:])
    cache.layers[0].cross_attention.fill(key[:2], key[2:])
    cache.batch_select_indices(torch.tensor([1]), torch.tensor([2, 3]))
    fixed = cache.layers[0].cross_attention
    assert fixed.key_value is not None
    assert torch.equal(fixed.key_value[0], key[1:2])
    assert torch.equal(fixed.key_value[1], key[3:4])
    grown = cache.layers[0].self_attention.append(key[:1], key[:1])
    assert torch.equal(grown[0], torch.cat([key[1:2], key[:1]], dim=2))
    assert torch.equal(grown[1], torch.cat([key[3:4], key[:1]], dim=2))


def test_sentences_that_do_not_fit_are_refused():
    cache = KVCache()
    cache.append(torch.zeros(4, 1, 1, 2), torch.zeros(4, 1, 1, 2))
    with pytest.raises(InvalidArgument, match="key: expected rows = 4, as in the cache, got 3"):
        cache.append(torch.zeros(3, 1, 1, 2), torch.zeros(3, 1, 1, 2))


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_cache_without_room_is_refused(capacity):
    with pytest.raises(InvalidArgument, match=f"capacity: expected an int of at least 1, got {capacity}"):
        KVCache(capacity)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ((3, 2, 1, 4), (3, 2, 1, 5), "key: expected rows = 4, as in the cache, got 3"),
        ((4, 1, 1, 4), (4, 1, 1, 5), "key: expected kv_heads = 2, as in the cache, got 1"),
        ((4, 2, 1, 1), (4, 2, 1, 5), "key: expected dim = 4, as in the cache, got 1"),
        ((4, 2, 1, 4), (4, 2, 1, 1), "value: expected dim = 5, as in the cache, got 1"),
        ((4, 2, 1, 4), (4, 2, 2, 5), r"expected \(rows, .* got \(4, 2, 1, 4\) and \(4, 2, 2, 5\)"),
        ((4, 2, 4), (4, 2, 5), r"got \(4, 2, 4\) and \(4, 2, 5\)"),
    ],
)
def test_a_refused_append_changes_nothing(key, value, words):
    cache = KVCache()
    first = torch.randn(4, 2, 3, 4), torch.randn(4, 2, 3, 5)
    cache.append(*first)
    with pytest.raises(InvalidArgument, match=words):
        cache.append(torch.zeros(key), torch.zeros(value))
    assert cache.length == 3
    held = cache.append(torch.ones(4, 2, 1, 4), torch.ones(4, 2, 1, 5))
    for before, after in zip(first, held, strict=True):
        assert torch.equal(after[:, :, :3], before)
        assert (after[:, :, 3:] == 1).all()


def test_what_requires_grad_is_refused_unless_gradients_are_off():
    cache, key = KVCache(), torch.ones(1, 1, 1, 2, requires_grad=True)
    with pytest.raises(InvalidArgument, match=r"expected tensors without grad in a cache; decode under torch\.no_grad"):
        cache.append(key, key)
    assert cache.length == 0
    with torch.no_grad():
        cache.append(key, key)
    assert cache.length == 1


def test_rows_that_do_not_fit_are_refused():
    cache = SharedBeamCache(1)
    cache.advance(2, 5, 1, torch.device("cpu"))
    with pytest.raises(InvalidArgument, match="expected the 2 sentences of 5 rows that it holds, got 2 of 4"):
        cache.advance(2, 4, 1, torch.device("cpu"))


def test_an_empty_fixed_cache_keeps_nothing():
    cache = CrossAttentionCache()
    cache.batch_select_indices(torch.tensor([0]))
    assert cache.key_value is None


def test_on_a_cpu_16_bits_are_kept_as_float32():
    key = torch.randn(2, 1, 3, 4, dtype=torch.bfloat16)
    for stored in (*KVCache().append(key, key), *CrossAttentionCache().fill(key, key)):
        assert stored.dtype == torch.float32
        assert torch.equal(stored, key.float())
    assert KVCache().append(key.double(), key.double())[0].dtype == torch.float64


def test_entries_are_dropped_when_a_quarter_is_unused():
    cache, attention = SharedBeamCache(1), KVCache()
    cache.layers[0].self_attention = attention
    for step in range(12):
        cache.advance(1, 4, 1, torch.device("cpu"))
        attention.append(torch.zeros(1, 1, 4, 2), torch.zeros(1, 1, 4, 2))
        # Three beams continue themselves; the last one always the first, so that a quarter of the entries is unused.
        cache.reorder_cache(torch.tensor([0, 1, 2, 0]))
        assert attention.length == (24 if step == 7 else 4 * (step + 1) if step < 7 else 24 + 4 * (step - 7))
