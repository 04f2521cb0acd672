"""Top-k by groups."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.generation.topk import fast_topk


@given(st.integers(1, 3000), st.integers(1, 12), st.integers(0, 2**32))
def test_equals_topk(vocab, count, seed):
    logits = torch.randn(4, vocab, generator=torch.Generator().manual_seed(seed))
    count = min(count, vocab)
    values, indices = fast_topk(logits, count)
    assert torch.equal(values, logits.topk(count).values)
    assert torch.equal(values, logits.gather(1, indices))


@pytest.mark.parametrize("vocab", [100, 1024, 1000])
def test_suppressed_tokens_come_last(vocab):
    logits = torch.full((1, vocab), -torch.inf)
    logits[0, 37] = 1.0
    values, indices = fast_topk(logits, 2)
    assert (values[0, 0], indices[0, 0]) == (1.0, 37)
    assert len(set(indices[0].tolist())) == 2
