"""Evaluation from Python: the numbers of `regard evaluate`, from texts or files, with a pipeline or its folder."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from helpers.char_model import LINE, trained_writer
from regard.errors import InvalidArgument, InvalidFile, InvalidType
from regard.metrics import corpus_scores
from regard.models import Bert, BertConfig, save_model
from regard.pipelines import TextEncoder, Translator
from regard.pipelines.evaluation import (
    evaluate_classifier,
    evaluate_language_model,
    evaluate_translation,
)
from regard.text.readers import read_references
from regard.text.tokenizer import train_bpe


def test_a_translator_is_evaluated_on_a_file_of_pairs(tmp_path):
    (tmp_path / "test.tsv").write_text("Thank you.\tDanke.\nYes.\tJa.\nThank you.\tVielen Dank.\n")
    sources, references = read_references(tmp_path / "test.tsv")
    assert (sources, references) == (["Thank you.", "Yes."], [["Danke.", "Vielen Dank."], ["Ja."]])
    progress = []
    options = {"beam": 2, "progress": progress.append}
    scores, translations = evaluate_translation(Translator.load(), sources, references, **options)
    counts = [scores.pop(name).score for name in ("sentences", "references")]
    assert (counts, len(translations), progress) == ([2, 3], 2, [2])
    assert scores == corpus_scores(translations, references)
    with pytest.raises(InvalidArgument, match=r"the source 'cat cat.*expected sentences of at most"):
        evaluate_translation(None, ["cat " * 999], [["Katze"]])
    (tmp_path / "test.tsv").write_text("a\tb\n\tb\n")
    with pytest.raises(InvalidFile, match=r"test\.tsv, line 2: expected a source, a tab and a reference"):
        read_references(tmp_path / "test.tsv")


def test_a_language_model_is_evaluated_on_a_text_or_a_file(tmp_path):
    generator = trained_writer()
    save_model(tmp_path / "model", generator.model, generator.tokenizer)
    (tmp_path / "test.txt").write_text(LINE * 5)
    scores = evaluate_language_model(generator, LINE * 5)
    assert scores == evaluate_language_model(tmp_path / "model", tmp_path / "test.txt")
    assert scores["tokens"].score == scores["characters"].score == len(LINE) * 5
    assert scores["perplexity"].score == pytest.approx(math.exp(scores["loss"].score))


def test_references_are_checked_before_anything_is_translated(monkeypatch):
    monkeypatch.setattr(Translator, "translate", lambda *arguments, **options: 1 / 0)
    with pytest.raises(InvalidType, match=r"references\[0\]: expected a sequence of str, got str; pass a list"):
        evaluate_translation(None, ["Thank you."], ["Danke."])
    with pytest.raises(InvalidArgument, match="references: expected as many as sources, 1, got 2"):
        evaluate_translation(None, ["Thank you."], [["Danke."], ["Ja."]])


def encoder() -> TextEncoder:
    tokenizer = train_bpe(["a b c"], 300)
    sizes = {"d_model": 8, "num_heads": 2, "num_layers": 1, "d_ff": 8}
    return TextEncoder(Bert(BertConfig(tokenizer.vocab_size, **sizes)), tokenizer)


@pytest.mark.parametrize(
    ("examples", "words"),
    [
        (zip("ab", "cd", strict=True), r"examples: expected a sequence of \(text, class\), or a Path, got zip"),
        ("test.tsv", r"examples: expected a sequence of \(text, class\), or a Path, got str"),
        ([("a", "b", "c")], r"examples\[0\]: expected \(text, class\), both str, got \('a', 'b', 'c'\)"),
        ([("a", "b"), ("a", 0)], r"examples\[1\]: expected \(text, class\), both str, got \('a', 0\)"),
    ],
)
def test_examples_are_texts_with_classes(examples, words):
    with pytest.raises(InvalidType, match=words):
        evaluate_classifier(encoder(), examples)


def test_a_model_without_the_head_is_named():
    with pytest.raises(InvalidArgument, match="expected a model with the head 'sequence_classification', got 'none'"):
        evaluate_classifier(encoder(), [("a", "b")])


def test_a_text_without_tokens_is_named(monkeypatch):
    plain = encoder()
    monkeypatch.setattr(plain.tokenizer, "encode", lambda texts, **options: [[] for _ in texts])
    with pytest.raises(InvalidArgument, match=r"texts\[0\]: expected a text of at least one token, got ''"):
        plain._encode([""])


def test_a_likelihood_in_float64_is_not_rounded():
    writer = trained_writer()
    writer.model.double()
    ids = torch.tensor(writer.tokenizer.encode_prompts([LINE]))
    logits = writer.model(ids[:, :-1]).logits[0].detach()
    expected = cross_entropy(logits, ids[0, 1:], reduction="sum")
    assert writer.likelihood(LINE).nll == pytest.approx(float(expected), rel=1e-12)
