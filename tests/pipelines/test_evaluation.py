"""Evaluation from Python: the numbers of `regard evaluate`, from texts or files, with a pipeline or its folder."""

from __future__ import annotations

import math

import pytest

from pipelines.writer import LINE, trained_writer
from regard.errors import InvalidArgument, InvalidFile
from regard.metrics import corpus_scores
from regard.models import save_model
from regard.pipelines import Translator
from regard.pipelines.evaluation import (
    evaluate_generated,
    evaluate_language_model,
    evaluate_translation,
    read_test_pairs,
    score_translations,
)


def test_a_translator_is_evaluated_on_a_file_of_pairs(tmp_path):
    (tmp_path / "test.tsv").write_text("Thank you.\tDanke.\nYes.\tJa.\nThank you.\tVielen Dank.\n")
    sources, references = read_test_pairs(tmp_path / "test.tsv")
    assert (sources, references) == (["Thank you.", "Yes."], [["Danke.", "Vielen Dank."], ["Ja."]])
    progress = []
    scores = evaluate_translation(Translator.load(), sources, references, beam=2, progress=progress.append)
    assert (scores.sentences, scores.references, progress) == (2, 3, [2])
    expected = corpus_scores(scores.translations, references)
    assert (scores.bleu, scores.chrf, scores.ter) == tuple(expected.values())
    assert score_translations(scores.translations, references) == scores
    with pytest.raises(InvalidArgument, match=r"the source 'cat cat.*expected sentences of at most"):
        evaluate_translation(None, ["cat " * 999], [["Katze"]])
    (tmp_path / "test.tsv").write_text("a\tb\n\tb\n")
    with pytest.raises(InvalidFile, match=r"test\.tsv, line 2: expected a source, a tab and a reference"):
        read_test_pairs(tmp_path / "test.tsv")


def test_a_language_model_is_evaluated_on_a_text_or_a_file(tmp_path):
    generator = trained_writer()
    save_model(tmp_path / "model", generator.model, generator.tokenizer)
    (tmp_path / "test.txt").write_text(LINE * 5)
    scores = evaluate_language_model(generator, LINE * 5)
    assert scores == evaluate_language_model(tmp_path / "model", tmp_path / "test.txt")
    assert scores.tokens == scores.characters == len(LINE) * 5
    assert scores.perplexity == pytest.approx(math.exp(scores.loss))


def test_generated_texts_are_evaluated(tmp_path):
    texts = ["the cat sat", "the cat ran"]
    (tmp_path / "texts.jsonl").write_text('{"text": "the cat sat"}\n{"text": "the cat ran"}\n')
    assert evaluate_generated(texts, texts) == evaluate_generated(tmp_path / "texts.jsonl", texts)
