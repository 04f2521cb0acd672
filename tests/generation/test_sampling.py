"""Sampling."""

from __future__ import annotations

import pytest
import torch

from regard.errors import InvalidArgument
from regard.generation import greedy, sample
from regard.generation.sampling import filter_top_k_top_p


def test_a_seed_draws_the_same_again(model, sources):
    draws = [[h.tokens for h in sample(model, *sources, seed=seed, max_new_tokens=20)] for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]


def test_a_seed_leaves_torchs_random_state(model, sources):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    sample(model, *sources, seed=1, max_new_tokens=3)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize(
    "options", [{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-4}, {"temperature": 1e-39}, {"temperature": 1e-300}]
)
def test_the_narrowest_distribution_is_greedy(model, sources, options):
    for drawn, best in zip(sample(model, *sources, seed=1, **options), greedy(model, *sources), strict=True):
        assert drawn.tokens == best.tokens
        assert drawn.score == pytest.approx(best.score, abs=1e-3)


def test_tokens_are_drawn_with_their_probabilities(model):
    count = 20_000
    src = torch.tensor([[5, 6, 7]])
    logits = model(src, torch.tensor([[1]])).logits[0, 0] / 0.7
    logits[:2] = -torch.inf
    expected = filter_top_k_top_p(logits[None], 10, 0.8).softmax(-1)[0]
    drawn = sample(model, src.expand(count, -1), temperature=0.7, top_k=10, top_p=0.8, seed=1, max_new_tokens=1)
    counts = torch.bincount(torch.tensor([h.tokens[0] if h.tokens else 2 for h in drawn]), minlength=30)
    assert (counts[expected == 0] == 0).all()
    torch.testing.assert_close(counts / count, expected, rtol=0, atol=0.015)


def test_top_k_and_top_p_keep_the_smallest_set():
    logits = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log()
    assert filter_top_k_top_p(logits, 2, None).isfinite().tolist() == [[False, True, False, True]]
    assert filter_top_k_top_p(logits, None, 0.65).isfinite().tolist() == [[False, True, False, True]]
    assert filter_top_k_top_p(logits, None, 0.75).isfinite().tolist() == [[False, True, True, True]]
    assert filter_top_k_top_p(logits, 3, 0.1).isfinite().tolist() == [[False, True, False, False]]
    assert torch.equal(filter_top_k_top_p(logits, 9, 1.0), logits)


def test_exactly_k_of_equal_logits_are_kept():
    logits = torch.tensor([[0.0, 2.0, 2.0, 2.0, 1.0]])
    assert filter_top_k_top_p(logits, 2, None).isfinite().sum() == 2
    assert filter_top_k_top_p(torch.zeros(1, 8), 1, None).isfinite().nonzero().tolist() == [[0, 0]]


def test_the_highest_temperature_respects_suppressed_tokens(model, sources):
    for drawn in sample(model, *sources, seed=1, temperature=1e300, max_new_tokens=20):
        assert not {0, 1} & set(drawn.tokens)


def test_a_generator_keeps_its_state(model, sources):
    generator = torch.Generator().manual_seed(1)
    first, second = (sample(model, *sources, seed=generator, temperature=3.0, max_new_tokens=20) for _ in range(2))
    assert first == sample(model, *sources, seed=1, temperature=3.0, max_new_tokens=20) != second


def test_all_problems_are_in_one_error(model, sources):
    with pytest.raises(InvalidArgument) as caught:
        sample(model, *sources, temperature=0.0, top_k=0, top_p=1.5, seed=-(2**63) - 1)
    for part in (
        "temperature: expected a finite number above 0, got 0.0",
        "top_k: expected an int of at least 1, or None, got 0",
        "top_p: expected a finite number above 0 and at most 1, or None, got 1.5",
        "seed: expected an int of at least -2**63 and below 2**64, or None, got -9223372036854775809",
    ):
        assert part in str(caught.value)
