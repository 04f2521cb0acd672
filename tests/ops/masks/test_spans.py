"""Ranges of keys: there and back, and what they are not."""

from __future__ import annotations

import pytest
import torch

from ops.rules import allowed, masks
from regard.errors import InvalidArgument, InvalidType
from regard.ops import weights
from regard.ops.masks import Spans, spans, to_dense, to_spans

SHAPE = 2, 3, 21, 34
RULES = [name for name in masks(1, 1, 1, 1) if name != "none"]


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("block", [2**22, 500])
def test_every_mask_becomes_ranges_and_they_the_mask(name, block, monkeypatch):
    monkeypatch.setattr(spans, "BLOCK", block)
    made = to_spans(masks(*SHAPE)[name], SHAPE, most=20)
    assert made is not None
    truth = allowed(name, *SHAPE, 13)
    assert torch.equal(to_dense(made, SHAPE), truth)
    ranges = (truth & ~truth.roll(1, -1)).sum(-1) + (truth[..., 0] & truth[..., -1])
    assert made.starts.shape[3] == max(1, int(ranges.max()))


def test_a_mask_of_many_ranges_becomes_none():
    assert to_spans(lambda batch, head, query, key: key % 2 == 0, SHAPE, most=16) is None
    assert to_spans(lambda batch, head, query, key: key % 5 == 0, SHAPE).starts.shape == (1, 1, 21, 7)


def test_what_does_not_fit_is_named():
    ones = torch.ones(1, 1, 5, 2, dtype=torch.int64)
    with pytest.raises(InvalidType, match=r"Spans: starts holds numbers of keys as integers, not torch\.float32"):
        Spans(ones.float(), ones)
    with pytest.raises(InvalidType, match=r"starts and stops are both .*, not \(1, 1, 5, 2\) and \(1, 1, 5, 1\)"):
        Spans(ones, ones[..., :1])
    x = torch.zeros(1, 2, 4, 8)
    with pytest.raises(InvalidArgument, match=r"Spans holds \(1, 1, 5\) rows, expected .* of \(1, 2, 4\)"):
        weights(x, x, mask=Spans(ones, ones))
