"""Scores against sacrebleu's one-line functions."""

from __future__ import annotations

import math
import re
import sys
from typing import Any

import numpy as np
import pytest
import sacrebleu
import torch

from regard.errors import InvalidArgument, InvalidType, MissingExtra
from regard.metrics import classification_metrics, corpus_scores, diversity_scores, perplexity, rouge_scores

HYPOTHESES = ["Das ist ein kleines Haus.", "Ich sehe einen großen Hund im Garten.", "Er geht."]
REFERENCES = [
    ["Das ist ein kleines Haus.", "Dies ist ein Häuschen."],
    ["Ich sehe einen Hund im großen Garten."],
    ["Er geht fort.", "Er läuft.", "Er geht."],
]


def test_scores_are_sacrebleus() -> None:
    scores = corpus_scores(HYPOTHESES, [references[:1] for references in REFERENCES])
    streams = [[references[0] for references in REFERENCES]]
    assert scores["bleu"].score == pytest.approx(sacrebleu.corpus_bleu(HYPOTHESES, streams).score)
    assert scores["chrf"].score == pytest.approx(sacrebleu.corpus_chrf(HYPOTHESES, streams).score)
    assert scores["ter"].score == pytest.approx(sacrebleu.corpus_ter(HYPOTHESES, streams).score)
    assert re.fullmatch(r"nrefs:1\|case:mixed\|eff:no\|tok:13a\|smooth:exp\|version:[\d.]+", scores["bleu"].signature)


def test_sentences_that_were_tokenised_are_left_as_they_are() -> None:
    scores = corpus_scores(["ein mann , der läuft ."], [["ein mann , der geht ."]], ["bleu"], tokenize="none")["bleu"]
    expected = sacrebleu.corpus_bleu(["ein mann , der läuft ."], [["ein mann , der geht ."]], tokenize="none")
    assert scores.score == pytest.approx(expected.score)
    assert "|tok:none|" in scores.signature
    with pytest.raises(InvalidArgument, match="tokenize: expected one of 13a, none, intl, char, zh, got 'non'"):
        corpus_scores(["a"], [["a"]], tokenize="non")


def test_every_reference_of_a_sentence_counts() -> None:
    one = corpus_scores(HYPOTHESES, [references[:1] for references in REFERENCES])["bleu"].score
    several = corpus_scores(HYPOTHESES, REFERENCES)["bleu"]
    # sacrebleu takes references repeated to one number as it takes them once
    streams = [[(references * 3)[position] for references in REFERENCES] for position in range(3)]
    assert several.score == pytest.approx(sacrebleu.corpus_bleu(HYPOTHESES, streams).score)
    assert several.score > one
    assert several.signature.startswith("nrefs:var|")


def test_invalid_arguments_are_refused_before_any_work() -> None:
    with pytest.raises(InvalidArgument) as error:
        corpus_scores(["a"], [["a"], []], ["bleu", "chrff"])
    assert "metrics: expected one of bleu, chrf, ter, got 'chrff', did you mean 'chrf'?" in str(error.value)
    assert "references: expected as many as hypotheses, 1, got 2" in str(error.value)
    assert "references[1]: expected at least one reference, got none" in str(error.value)
    with pytest.raises(InvalidArgument, match="hypotheses: expected at least one sentence, got none"):
        corpus_scores([], [])


def test_a_perplexity_above_the_range_of_float_is_infinite():
    assert perplexity(math.log(8)) == pytest.approx(8)
    assert perplexity(15_085.0) == math.inf
    assert math.isnan(perplexity(math.nan))


@pytest.mark.parametrize(
    ("hypotheses", "references", "words"),
    [
        (HYPOTHESES, HYPOTHESES, r"references\[0\]: expected a sequence of str, got str; pass a list"),
        ("ab", [["a"], ["b"]], "hypotheses: expected a sequence of str, got str; pass a list"),
        (np.array(["a"]), [["a"]], "hypotheses: expected a sequence of str, got ndarray; pass a list"),
        ([None], [["a"]], r"hypotheses\[0\]: expected a str, got NoneType"),
        (["a"], [[5]], r"references\[0\]\[0\]: expected a str, got int"),
        (["a"], None, "references: expected a sequence of references of each sentence, got NoneType"),
    ],
)
def test_invalid_list_of_texts_is_refused(hypotheses: Any, references: Any, words: str) -> None:
    with pytest.raises(InvalidType, match=words):
        corpus_scores(hypotheses, references)


@pytest.mark.parametrize("metrics", ["bleu", iter(["bleu"])])
def test_metrics_are_a_list(metrics: Any) -> None:
    with pytest.raises(InvalidType, match=r"^metrics: expected a sequence of str, got .*; pass a list$"):
        corpus_scores(["a"], [["a"]], metrics)


def test_generated_texts_are_lists_of_str() -> None:
    with pytest.raises(InvalidType, match=r"texts\[1\]: expected a str, got NoneType"):
        diversity_scores(["a", None])  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidType, match=r"references\[0\]: expected a str, got list"):
        rouge_scores(["a", "b"], [["a"], ["b"]])  # pyright: ignore[reportArgumentType]


def test_a_confusion_may_hold_proportions() -> None:
    counts = torch.tensor([[3, 1], [0, 4]])
    assert classification_metrics(counts / 8) == pytest.approx(classification_metrics(counts))
    with pytest.raises(InvalidArgument, match="confusion: expected at least one text, got zeros"):
        classification_metrics(torch.zeros(2, 2))
    with pytest.raises(InvalidArgument, match=r"confusion: expected a matrix \(classes, classes\), got .*\(2, 3\)"):
        classification_metrics(torch.ones(2, 3))
    with pytest.raises(InvalidType, match="confusion: expected a tensor, got list"):
        classification_metrics([[1]])  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("हिन्दी में नमस्ते।", ["हिन्दी", "में", "नमस्ते"]),
        ("தமிழ் மொழி", ["தமிழ்", "மொழி"]),
        ("ที่นี่ ดี", ["ที่นี่", "ดี"]),
        ("בְּרֵאשִׁית בָּרָא", ["בְּרֵאשִׁית", "בָּרָא"]),
        ("اَلْعَرَبِيَّةُ", ["اَلْعَرَبِيَّةُ"]),
        ("می\u200cخواهم", ["می\u200cخواهم"]),
        ("Cafe\u0301 NAÏVE, it's a_b 12.5!", ["café", "naïve", "it", "s", "a", "b", "12", "5"]),
        ("\u0301 \u200d", []),
    ],
)
def test_words_of_rouge_keep_their_combining_marks(text: str, words: list[str]) -> None:
    scores = rouge_scores([text, "x y"], [" ".join(words), "x y"])
    assert scores["rouge_1"].score == pytest.approx(100 if words else 50)
    for one in words:  # a reference of one word: recall is 1 and precision the share of that word
        score = rouge_scores([text, "x"], [one, "x"])["rouge_1"].score
        share = words.count(one) / len(words)
        assert score == pytest.approx((100 + 100 * 2 / (1 + 1 / share)) / 2)


def test_diversity_needs_no_optional_package(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = diversity_scores(["the cat sat", "the cat ran"])
    for name in ("rouge_score", "rouge_score.rouge_scorer", "nltk", "nltk.util"):
        monkeypatch.setitem(sys.modules, name, None)
    assert diversity_scores(["the cat sat", "the cat ran"]) == expected
    with pytest.raises(MissingExtra, match="rouge_scores needs rouge_score"):
        rouge_scores(["a b", "c d"], ["a b", "c d"])


def test_scores_of_every_alphabet_and_of_more_texts_than_self_bleu_compares() -> None:
    cities = ["東京 タワー", "京都 寺"]
    assert rouge_scores(cities, cities)["rouge_1"].score == 100
    assert math.isnan(diversity_scores(cities)["distinct_3"].score)
    alike = [f"the {number % 7} cats sat on {number % 11} mats" for number in range(201)]
    self_bleu = [diversity_scores(texts)["self_bleu"].score for texts in (alike, alike[:200])]
    assert self_bleu[0] == pytest.approx(self_bleu[1], abs=1)
    with pytest.raises(InvalidType, match="texts: expected a sequence of str, got str; pass a list"):
        diversity_scores("abc def")
    with pytest.raises(InvalidArgument, match="references: expected as many as texts, 2, got 1"):
        rouge_scores(cities, cities[:1])
    with pytest.raises(InvalidArgument, match="texts: expected at least one text, got none"):
        rouge_scores([], [])
