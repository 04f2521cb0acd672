"""SamplingParams."""

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


@pytest.mark.parametrize(
    "options", [{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-4}, {"temperature": 1e-39}, {"temperature": 1e-300}]
)
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


def test_of_words_that_share_the_last_place_no_more_are_kept():
    logits = torch.tensor([[0.0, 2.0, 2.0, 2.0, 1.0]])
    assert keep_likely(logits, 2, None).isfinite().sum() == 2
    assert keep_likely(torch.zeros(1, 8), 1, None).isfinite().nonzero().tolist() == [[0, 0]]


def test_the_hottest_draw_leaves_out_what_must_not_come(model, sources):
    for drawn in sample(model, *sources, seed=1, temperature=1e300, max_length=20):
        assert not {0, 1} & set(drawn.tokens)


def test_a_generator_goes_on_where_it_stands(model, sources):
    generator = torch.Generator().manual_seed(1)
    first, second = (sample(model, *sources, seed=generator, temperature=3.0, max_length=20) for _ in range(2))
    assert first == sample(model, *sources, seed=1, temperature=3.0, max_length=20) != second


def test_all_objections_come_at_once(model, sources):
    with pytest.raises(InvalidArgument) as caught:
        sample(model, *sources, temperature=0.0, top_k=0, top_p=1.5, seed=-(2**63) - 1)
    for part in (
        "temperature must be above 0 and finite, but is 0.0",
        "top_k must be at least 1, but is 0",
        "but is 1.5",
        "seed must be an integer from -2^63 to 2^64 - 1, but is -9223372036854775809",
    ):
        assert part in str(caught.value)
