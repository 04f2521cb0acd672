"""Masks as ranges of keys: converted and back, and invalid ones."""

from __future__ import annotations

import pytest
import torch

from helpers.ops.cases import allowed, masks
from regard.errors import InvalidArgument, InvalidType
from regard.ops import weights
from regard.ops.masks import Spans, to_dense, to_spans

SHAPE = 2, 3, 21, 34
RULES = [name for name in masks(1, 1, 1, 1) if name != "none"]


@pytest.mark.parametrize("max_cells", [2**22, 500])
def test_every_mask_is_converted_to_spans(max_cells, subtests):
    for name in RULES:
        with subtests.test(mask=name):
            converted = to_spans(masks(*SHAPE)[name], SHAPE, max_spans=20, max_cells=max_cells)
            assert converted is not None
            expected = allowed(name, *SHAPE, 13)
            assert torch.equal(to_dense(converted, SHAPE), expected)
            ranges = (expected & ~expected.roll(1, -1)).sum(-1) + (expected[..., 0] & expected[..., -1])
            assert converted.starts.shape[3] == max(1, int(ranges.max()))


def test_masks_with_too_many_ranges_are_not_converted():
    assert to_spans(lambda batch, head, query, key: key % 2 == 0, SHAPE, max_spans=16) is None
    assert to_spans(lambda batch, head, query, key: key % 5 == 0, SHAPE).starts.shape == (1, 1, 21, 7)


def test_invalid_spans_are_rejected():
    ones = torch.ones(1, 1, 5, 2, dtype=torch.int64)
    with pytest.raises(InvalidType, match=r"Spans\.starts: expected an integer tensor, got float32 \(1, 1, 5, 2\)"):
        Spans(ones.float(), ones)
    with pytest.raises(InvalidArgument, match=r"Spans: .* got \(1, 1, 5, 2\) and \(1, 1, 5, 1\)"):
        Spans(ones, ones[..., :1])
    x = torch.zeros(1, 2, 4, 8)
    with pytest.raises(
        InvalidArgument, match=r"Spans: expected starts and stops for .* = \(1, 2, 4\), got \(1, 1, 5\)"
    ):
        weights(x, x, mask=Spans(ones, ones))
