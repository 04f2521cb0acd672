"""Greedy search."""

from __future__ import annotations

import pytest
import torch

from regard.errors import InvalidArgument, InvalidType
from regard.generation import beam_search, greedy, sample


def step_by_step(model, src, limit):
    """The most probable tokens of one sequence, without batch and cache."""
    tokens, score = [1], 0.0
    while len(tokens) <= limit:
        logits = model(src, torch.tensor([tokens])).logits[0, -1]
        log_probability = logits.log_softmax(-1)
        token = int(torch.cat([torch.full((2,), -torch.inf), logits[2:]]).argmax())
        score += log_probability[token].item()
        if token == 2:
            return tokens[1:], score, True
        tokens.append(token)
    return tokens[1:], score, False


@pytest.mark.parametrize("kind", ["plain", "other", "recurrent"])
@pytest.mark.parametrize("cache", [True, False])
def test_a_batch_gets_what_each_sequence_gets_alone_without_a_cache(models, sources, kind, cache):
    (src, lengths), model = sources, models[kind]
    results = greedy(model, src, lengths, max_new_tokens=8, cache=cache)
    for index, hypothesis in enumerate(results):
        tokens, score, ended = step_by_step(model, src[index : index + 1, : lengths[index]], 8)
        assert hypothesis.tokens == tokens
        assert hypothesis.finished == ended
        assert hypothesis.score == pytest.approx(score, abs=1e-3)
    assert {hypothesis.finished for hypothesis in results} == {True, False}


def test_the_default_limit_is_each_sequences_own(fresh, sources):
    src, lengths = sources
    results = greedy(fresh(), src, lengths)  # it repeats one token forever
    assert [len(hypothesis.tokens) for hypothesis in results] == (2 * lengths + 20).tolist()


def test_a_forced_length(model, sources):
    results = greedy(model, *sources, min_new_tokens=11, max_new_tokens=11)
    assert [len(hypothesis.tokens) for hypothesis in results] == [11] * 9
    assert not any(2 in hypothesis.tokens for hypothesis in results)


def test_the_default_limit_leaves_room_for_the_end(model, sources):
    assert any(hypothesis.finished for hypothesis in greedy(model, *sources, min_new_tokens=40))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_lengths_in_few_bits_are_the_same_lengths(model, sources, dtype):
    src, lengths = sources
    assert greedy(model, src, lengths.to(dtype)) == greedy(model, src, lengths)


def test_it_runs_under_autocast(model, sources):
    with torch.autocast("cpu", torch.bfloat16):
        assert len(greedy(model, *sources, max_new_tokens=5)) == 9


@pytest.mark.parametrize("search", [greedy, beam_search, sample])
def test_nan_logits_are_refused(fresh, sources, search):
    model = fresh()
    with torch.no_grad():
        model.lm_head.weight[7, 3] = torch.nan
    with pytest.raises(InvalidArgument, match="expected log-probabilities of new token 1 without NaN, got NaN"):
        search(model, *sources)


def test_training_mode_is_refused(fresh, sources):
    with pytest.raises(InvalidArgument, match=r"model: expected evaluation mode, got training mode; call model\.eval"):
        greedy(fresh().train(), *sources)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens: expected an int of at least 1, or None, got 0"),
        ({"max_new_tokens": 65}, "max_new_tokens: expected at most the model's max_seq_len 64, got 65"),
        ({"min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens: expected at most max_new_tokens 8, got 9"),
        ({"min_new_tokens": 65}, "min_new_tokens: expected at most the model's max_seq_len 64, got 65"),
        ({"min_new_tokens": -1}, "min_new_tokens: expected an int of at least 0, got -1"),
    ],
)
def test_invalid_lengths_are_refused(model, sources, options, message):
    with pytest.raises(InvalidArgument, match=message):
        greedy(model, *sources, **options)


def test_the_default_dtype_does_not_matter(models, sources):
    model = models["plain"]
    expected = greedy(model, *sources, max_new_tokens=4)
    torch.set_default_dtype(torch.float64)
    try:
        results = greedy(model, *sources, max_new_tokens=4)
    finally:
        torch.set_default_dtype(torch.float32)
    assert [h.tokens for h in results] == [h.tokens for h in expected]


def test_a_length_that_is_not_an_int_is_refused(models, sources):
    with pytest.raises(InvalidType, match="min_new_tokens: expected an int of at least 0, got None"):
        greedy(models["plain"], *sources, min_new_tokens=None)
