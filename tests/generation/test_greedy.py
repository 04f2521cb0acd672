"""Greedy search."""

from __future__ import annotations

import pytest
import torch

from regard.errors import InvalidArgument, InvalidType
from regard.generation import beam_search, greedy, sample


def step_by_step(model, src, limit):
    """The likeliest words of one sentence, in the plainest way."""
    words, score = [1], 0.0
    while len(words) <= limit:
        logits = model(src, torch.tensor([words])).logits[0, -1]
        log_probability = logits.log_softmax(-1)
        word = int(torch.cat([torch.full((2,), -torch.inf), logits[2:]]).argmax())
        score += log_probability[word].item()
        if word == 2:
            return words[1:], score, True
        words.append(word)
    return words[1:], score, False


@pytest.mark.parametrize("kind", ["plain", "other", "recurrent"])
@pytest.mark.parametrize("cache", [True, False])
def test_a_batch_gets_what_each_sentence_gets_alone_without_a_cache(models, sources, kind, cache):
    (src, lengths), model = sources, models[kind]
    found = greedy(model, src, lengths, max_length=8, cache=cache)
    for number, hypothesis in enumerate(found):
        words, score, ended = step_by_step(model, src[number : number + 1, : lengths[number]], 8)
        assert hypothesis.tokens == words
        assert hypothesis.finished == ended
        assert hypothesis.score == pytest.approx(score, abs=1e-3)
    assert {hypothesis.finished for hypothesis in found} == {True, False}


def test_the_default_limit_is_each_sentences_own(fresh, sources):
    src, lengths = sources
    found = greedy(fresh(), src, lengths)  # it repeats one word without end
    assert [len(hypothesis.tokens) for hypothesis in found] == (2 * lengths + 20).tolist()


def test_a_forced_length(model, sources):
    found = greedy(model, *sources, min_length=11, max_length=11)
    assert [len(hypothesis.tokens) for hypothesis in found] == [11] * 9
    assert not any(2 in hypothesis.tokens for hypothesis in found)


def test_the_default_limit_leaves_room_for_the_end(model, sources):
    assert any(hypothesis.finished for hypothesis in greedy(model, *sources, min_length=40))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_lengths_in_few_bits_are_the_same_lengths(model, sources, dtype):
    src, lengths = sources
    assert greedy(model, src, lengths.to(dtype)) == greedy(model, src, lengths)


def test_it_runs_under_autocast(model, sources):
    with torch.autocast("cpu", torch.bfloat16):
        assert len(greedy(model, *sources, max_length=5)) == 9


@pytest.mark.parametrize("search", [greedy, beam_search, sample])
def test_a_model_that_gives_no_numbers_is_refused(fresh, sources, search):
    model = fresh()
    with torch.no_grad():
        model.lm_head.weight[7, 3] = torch.nan
    with pytest.raises(InvalidArgument, match="log-probabilities of word 1 must be numbers, but some are NaN"):
        search(model, *sources)


def test_training_mode_is_refused(fresh, sources):
    with pytest.raises(InvalidArgument, match=r"in training mode, where dropout acts: call model\.eval"):
        greedy(fresh().train(), *sources)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_length": 0}, "max_length must be from 1 to the model's max_seq_len 64, but is 0"),
        ({"max_length": 65}, "max_length must be from 1 to the model's max_seq_len 64, but is 65"),
        ({"min_length": 9, "max_length": 8}, "min_length must be from 0 to max_length 8, but is 9"),
        ({"min_length": -1}, "min_length must be from 0 to max_length 64, but is -1"),
    ],
)
def test_lengths_that_cannot_be(model, sources, options, words):
    with pytest.raises(InvalidArgument, match=words):
        greedy(model, *sources, **options)


def test_the_default_dtype_does_not_matter(models, sources):
    model = models["plain"]
    expected = greedy(model, *sources, max_length=4)
    torch.set_default_dtype(torch.float64)
    try:
        found = greedy(model, *sources, max_length=4)
    finally:
        torch.set_default_dtype(torch.float32)
    assert [each.tokens for each in found] == [each.tokens for each in expected]


def test_a_length_that_is_no_int_is_refused(models, sources):
    with pytest.raises(InvalidType, match="min_length: expected an int, got None"):
        greedy(models["plain"], *sources, min_length=None)
