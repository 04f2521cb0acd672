"""Sampling."""

from __future__ import annotations

import pytest
import torch

from regard.errors import InvalidArgument
from regard.generation import greedy, sample
from regard.generation.sampling import keep_likely


def test_a_seed_draws_the_same_again(model, sources):
    draws = [[h.tokens for h in sample(model, *sources, seed=seed, max_length=20)] for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]


def test_a_seed_leaves_torchs_random_state(model, sources):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    sample(model, *sources, seed=1, max_length=3)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-4}])
def test_the_narrowest_draw_is_greedy(model, sources, options):
    for drawn, best in zip(sample(model, *sources, seed=1, **options), greedy(model, *sources), strict=True):
        assert drawn.tokens == best.tokens
        assert drawn.score == pytest.approx(best.score, abs=1e-3)


def test_words_are_drawn_as_likely_as_they_are(model):
    count = 20_000
    src = torch.tensor([[5, 6, 7]])
    logits = model(src, torch.tensor([[1]])).logits[0, 0] / 0.7
    logits[:2] = -torch.inf
    expected = keep_likely(logits[None], 10, 0.8).softmax(-1)[0]
    drawn = sample(model, src.expand(count, -1), temperature=0.7, top_k=10, top_p=0.8, seed=1, max_length=1)
    counts = torch.bincount(torch.tensor([h.tokens[0] if h.tokens else 2 for h in drawn]), minlength=30)
    assert (counts[expected == 0] == 0).all()
    torch.testing.assert_close(counts / count, expected, rtol=0, atol=0.015)


def test_top_k_and_top_p_keep_the_fewest_that_are_enough():
    logits = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log()
    assert keep_likely(logits, 2, None).isfinite().tolist() == [[False, True, False, True]]
    assert keep_likely(logits, None, 0.65).isfinite().tolist() == [[False, True, False, True]]
    assert keep_likely(logits, None, 0.75).isfinite().tolist() == [[False, True, True, True]]
    assert keep_likely(logits, 3, 0.1).isfinite().tolist() == [[False, True, False, False]]
    assert torch.equal(keep_likely(logits, 9, 1.0), logits)


def test_all_objections_come_at_once(model, sources):
    with pytest.raises(InvalidArgument) as caught:
        sample(model, *sources, temperature=0.0, top_k=0, top_p=1.5)
    for part in (
        "temperature must be above 0 and finite, but is 0.0",
        "top_k must be at least 1, but is 0",
        "but is 1.5",
    ):
        assert part in str(caught.value)
