"""Greedy and beam search against transformers' MarianMT with the same weights."""

from __future__ import annotations

import pytest
import torch

from helpers.marian_reference import with_weights_of
from helpers.small_translators import draw_sources
from regard.generation import beam_search, greedy


@pytest.mark.parametrize("seed", range(3))
def test_greedy_equals_marian(model, seed):
    src, lengths = draw_sources(12, 9, seed)
    results = greedy(model, src, lengths, max_new_tokens=60)
    real = (torch.arange(9) < lengths[:, None]).long()
    reference = with_weights_of(model).generate(
        src, attention_mask=real, max_new_tokens=60, num_beams=1, do_sample=False
    )
    for hypothesis, tokens in zip(results, reference[:, 1:].tolist(), strict=True):
        expected = [*hypothesis.tokens, 2] if hypothesis.finished else hypothesis.tokens
        assert tokens == expected + [0] * (len(tokens) - len(expected))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0])
def test_beam_search_equals_marian(model, seed, length_penalty):
    src, lengths = draw_sources(12, 9, seed)
    results = beam_search(model, src, lengths, beam=4, nbest=3, length_penalty=length_penalty, max_new_tokens=60)
    real = (torch.arange(9) < lengths[:, None]).long()
    reference = with_weights_of(model).generate(
        src,
        attention_mask=real,
        max_new_tokens=60,
        num_beams=4,
        num_return_sequences=3,
        length_penalty=length_penalty,
        early_stopping=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    sequences = iter(zip(reference.sequences[:, 1:].tolist(), reference.sequences_scores.tolist(), strict=True))
    for hypotheses in results:
        for hypothesis in hypotheses:
            tokens, score = next(sequences)
            assert hypothesis.finished
            expected = [*hypothesis.tokens, 2]
            assert tokens == expected + [2] * (len(tokens) - len(expected))  # transformers pads with EOS
            assert score == pytest.approx(hypothesis.score, abs=1e-4)
