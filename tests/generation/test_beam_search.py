"""Beam search."""

from __future__ import annotations

import itertools

import pytest
import torch

from regard.errors import InvalidArgument
from regard.generation import beam_search, greedy
from regard.generation.beam_search import BeamHypotheses
from regard.nn import position_classes


@pytest.mark.parametrize("kind", ["plain", "other", "recurrent"])
@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_a_batch_with_a_cache_equals_each_input_without(models, sources, kind, length_penalty):
    (src, lengths), model, options = sources, models[kind], {"nbest": 4, "length_penalty": length_penalty}
    results = beam_search(model, src, lengths, **options)
    for index, hypotheses in enumerate(results):
        alone = beam_search(model, src[index : index + 1, : lengths[index]], cache=False, **options)[0]
        assert [hypothesis.tokens for hypothesis in hypotheses] == [hypothesis.tokens for hypothesis in alone]
        for actual, other in zip(hypotheses, alone, strict=True):
            assert actual.score == pytest.approx(other.score, abs=1e-4)


@pytest.mark.parametrize("positions", sorted(position_classes()))
@pytest.mark.parametrize("norm_first", [False, True])
def test_every_kind_of_positions_decodes_alike_with_a_cache_and_without(fresh, sources, positions, norm_first):
    (src, lengths), model = sources, fresh(positions=positions, norm_first=norm_first)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)  # vectors of positions count
    results, expected = (
        beam_search(model, src, lengths, beam=3, nbest=3, max_new_tokens=14, cache=cache) for cache in (True, False)
    )
    for actual, other in zip(results, expected, strict=True):
        assert [hypothesis.tokens for hypothesis in actual] == [hypothesis.tokens for hypothesis in other]
        assert [h.score for h in actual] == pytest.approx([h.score for h in other], abs=1e-4)


def test_scores_are_those_of_the_model(model, sources):
    src, lengths = sources
    for index, hypotheses in enumerate(beam_search(model, src, lengths, nbest=5, length_penalty=0.7)):
        scores = [hypothesis.score for hypothesis in hypotheses if hypothesis.finished]
        assert scores == sorted(scores, reverse=True)
        for hypothesis in hypotheses:
            tokens = [*hypothesis.tokens, 2] if hypothesis.finished else hypothesis.tokens
            tgt = torch.tensor([[1, *tokens[:-1]]])
            logits = model(src[index : index + 1, : lengths[index]], tgt).logits[0]
            total = logits.log_softmax(-1)[torch.arange(len(tokens)), tokens].sum().item()
            assert hypothesis.score == pytest.approx(total / len(tokens) ** 0.7, abs=1e-4)


def test_a_beam_as_wide_as_all_sequences_finds_the_best(fresh):
    model = fresh(vocab_size=6)
    src = torch.tensor([[3, 4, 5]])
    results = beam_search(model, src, beam=100, nbest=3, length_penalty=0.0, max_new_tokens=4)[0]
    scored = []
    for length in range(4):
        for tokens in itertools.product([3, 4, 5], repeat=length):
            logits = model(src, torch.tensor([[1, *tokens]])).logits[0].log_softmax(-1)
            scored.append((logits[torch.arange(length + 1), [*tokens, 2]].sum().item(), list(tokens)))
    best = sorted(scored, reverse=True)[:3]
    assert [hypothesis.tokens for hypothesis in results] == [tokens for _, tokens in best]
    assert [hypothesis.score for hypothesis in results] == pytest.approx([score for score, _ in best], abs=1e-4)


def test_a_beam_of_one_is_greedy(model, sources):
    narrow = beam_search(model, *sources, beam=1, length_penalty=0.0)
    for hypotheses, hypothesis in zip(narrow, greedy(model, *sources), strict=True):
        assert hypotheses[0].tokens == hypothesis.tokens
        assert hypotheses[0].score == pytest.approx(hypothesis.score, abs=1e-4)


def test_a_forced_length(model, sources):
    results = beam_search(model, *sources, nbest=5, min_new_tokens=11, max_new_tokens=11)
    for hypotheses in results:
        assert [len(hypothesis.tokens) for hypothesis in hypotheses] == [11] * 5
        assert len({tuple(hypothesis.tokens) for hypothesis in hypotheses}) == 5
        assert not any(hypothesis.finished for hypothesis in hypotheses)


def test_the_best_finished_sequences_are_kept():
    sequences = BeamHypotheses(2, 1.0)
    for tokens, log_probability in (([5], -4.0), ([6, 7], -3.0), ([8], -1.0), ([9], -8.0)):
        sequences.add(tokens, log_probability)
    sequences.add_unfinished([3], -0.1)
    assert [hypothesis.tokens for hypothesis in sequences.best(3)] == [[8], [6, 7], [3]]
    assert [hypothesis.score for hypothesis in sequences.best(2)] == [-0.5, -1.0]
    assert sequences.is_done(-4.0, 4)
    assert not sequences.is_done(-3.9, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 0}, "beam: expected an int of at least 1, got 0"),
        ({"beam": 3, "nbest": 4}, "nbest: expected at most beam = 3, got 4"),
        ({"beam": 1001}, "beam: expected at most 1000, got 1001"),
        (
            {"length_penalty": float("nan")},
            "length_penalty: expected a finite number of at least 0 and at most 10, got nan",
        ),
        (
            {"length_penalty": float("inf")},
            "length_penalty: expected a finite number of at least 0 and at most 10, got inf",
        ),
        ({"length_penalty": 1e4}, "length_penalty: expected a finite number of at least 0 and at most 10, got 10000"),
        ({"length_penalty": -1e4}, "length_penalty: expected a finite number of at least 0 and at most 10, got -10000"),
        ({"nbest": 0}, "nbest: expected an int of at least 1, got 0"),
    ],
)
def test_invalid_options_are_refused(model, sources, options, message):
    with pytest.raises(InvalidArgument, match=message):
        beam_search(model, *sources, **options)
