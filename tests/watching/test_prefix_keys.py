"""Keys in front of those of the sequence: entries, ranges and indices are where a plain loop puts them."""

from __future__ import annotations

import pytest
import torch

from regard.ops.masks import Spans
from regard.watching.prefix_keys import KeyPlacement, as_in_model, as_prefix

KEYS = 6
PLACEMENTS = [(0, 0), (3, 0), (0, 2), (3, 2), (1, KEYS)]


def placed(key, offset, num_prefix):
    return key if key < num_prefix else key + offset


@pytest.mark.parametrize(("offset", "num_prefix"), PLACEMENTS)
def test_entries_and_indices_of_keys_are_shifted_behind_the_prefix(offset, num_prefix):
    placement, entries = KeyPlacement(offset, num_prefix), torch.arange(1.0, 25.0).view(4, KEYS)
    expected = torch.zeros(4, KEYS + offset)
    for key in range(KEYS):
        expected[:, placed(key, offset, num_prefix)] = entries[:, key]
    assert torch.equal(placement.entries(entries, 1), expected)
    assert torch.equal(placement.entries(entries.T, 0), expected.T)
    indices = torch.tensor([-1, *range(KEYS)])
    assert placement.indices(indices).tolist() == [
        -1 if key < 0 else placed(key, offset, num_prefix) for key in indices.tolist()
    ]


@pytest.mark.parametrize(("offset", "num_prefix"), PLACEMENTS)
def test_ranges_of_keys_are_cut_at_the_end_of_the_prefix(offset, num_prefix):
    ranges = [(0, 4), (1, 2), (2, 6), (3, 3)]
    sides = (torch.tensor(side).view(1, 1, 4, 1) for side in zip(*ranges, strict=True))
    starts, stops = KeyPlacement(offset, num_prefix).spans(Spans(*sides))
    for row, (first, end) in enumerate(ranges):
        actual = {
            key
            for start, stop in zip(starts[0, 0, row].tolist(), stops[0, 0, row].tolist(), strict=True)
            for key in range(start, stop)
        }
        assert actual == {placed(key, offset, num_prefix) for key in range(first, end)}


def test_the_order_of_the_model_comes_back():
    keys = torch.arange(7)
    assert as_prefix(keys, 2, 0).tolist() == [5, 6, 0, 1, 2, 3, 4]
    assert torch.equal(as_in_model(as_prefix(keys, 2, 0), 2, 0), keys)
