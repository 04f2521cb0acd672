"""The largest of many numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.generation.topk import top_words


@given(st.integers(1, 3000), st.integers(1, 12), st.integers(0, 2**32))
def test_equals_topk(vocab, count, seed):
    logits = torch.randn(4, vocab, generator=torch.Generator().manual_seed(seed))
    count = min(count, vocab)
    values, words = top_words(logits, count)
    assert torch.equal(values, logits.topk(count).values)
    assert torch.equal(values, logits.gather(1, words))


@pytest.mark.parametrize("vocab", [100, 1024, 1000])
def test_forbidden_words_come_last(vocab):
    logits = torch.full((1, vocab), -torch.inf)
    logits[0, 37] = 1.0
    values, words = top_words(logits, 2)
    assert (values[0, 0], words[0, 0]) == (1.0, 37)
    assert len(set(words[0].tolist())) == 2
