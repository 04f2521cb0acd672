"""Scores against sacrebleu's one-line functions."""

from __future__ import annotations

import math
import re

import pytest
import sacrebleu

from regard.errors import InvalidArgument
from regard.metrics import corpus_scores, perplexity

HYPOTHESES = ["Das ist ein kleines Haus.", "Ich sehe einen großen Hund im Garten.", "Er geht."]
REFERENCES = [
    ["Das ist ein kleines Haus.", "Dies ist ein Häuschen."],
    ["Ich sehe einen Hund im großen Garten."],
    ["Er geht fort.", "Er läuft.", "Er geht."],
]


def test_scores_are_sacrebleus() -> None:
    found = corpus_scores(HYPOTHESES, [references[:1] for references in REFERENCES])
    streams = [[references[0] for references in REFERENCES]]
    assert found["bleu"].score == pytest.approx(sacrebleu.corpus_bleu(HYPOTHESES, streams).score)
    assert found["chrf"].score == pytest.approx(sacrebleu.corpus_chrf(HYPOTHESES, streams).score)
    assert found["ter"].score == pytest.approx(sacrebleu.corpus_ter(HYPOTHESES, streams).score)
    assert re.fullmatch(r"nrefs:1\|case:mixed\|eff:no\|tok:13a\|smooth:exp\|version:[\d.]+", found["bleu"].signature)


def test_sentences_that_were_tokenised_are_left_as_they_are() -> None:
    found = corpus_scores(["ein mann , der läuft ."], [["ein mann , der geht ."]], ["bleu"], tokenize="none")["bleu"]
    expected = sacrebleu.corpus_bleu(["ein mann , der läuft ."], [["ein mann , der geht ."]], tokenize="none")
    assert found.score == pytest.approx(expected.score)
    assert "|tok:none|" in found.signature
    with pytest.raises(InvalidArgument, match="tokenize: expected one of 13a, none, intl, char, zh, got 'non'"):
        corpus_scores(["a"], [["a"]], tokenize="non")


def test_every_reference_of_a_sentence_counts() -> None:
    one = corpus_scores(HYPOTHESES, [references[:1] for references in REFERENCES])["bleu"].score
    several = corpus_scores(HYPOTHESES, REFERENCES)["bleu"]
    # sacrebleu takes references repeated to one number as it takes them once
    streams = [[(references * 3)[place] for references in REFERENCES] for place in range(3)]
    assert several.score == pytest.approx(sacrebleu.corpus_bleu(HYPOTHESES, streams).score)
    assert several.score > one
    assert several.signature.startswith("nrefs:var|")


def test_what_does_not_fit_is_refused_at_once() -> None:
    with pytest.raises(InvalidArgument) as error:
        corpus_scores(["a"], [["a"], []], ["bleu", "chrff"])
    assert "metrics: expected one of bleu, chrf, ter, got 'chrff', did you mean 'chrf'?" in str(error.value)
    assert "references: expected as many as hypotheses, 1, got 2" in str(error.value)
    assert "references[1]: expected at least one reference, got none" in str(error.value)
    with pytest.raises(InvalidArgument, match="hypotheses: expected at least one sentence, got none"):
        corpus_scores([], [])


def test_a_perplexity_that_no_float_holds_is_infinite():
    assert perplexity(math.log(8)) == pytest.approx(8)
    assert perplexity(15_085.0) == math.inf
    assert math.isnan(perplexity(math.nan))
