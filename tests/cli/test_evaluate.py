"""Models of every kind are evaluated on test data."""

from __future__ import annotations

import json
import math
import re

import pytest
import torch

from helpers.char_model import LINE, trained_writer
from regard.models import Bert, BertConfig, save_model
from regard.text.tokenizer import train_bpe

SOURCES = ["I lost.", "Excuse me.", "Fantastic!"]
REFERENCES = [
    ["Ich habe verloren."],
    ["Es tut mir leid.", "Entschuldigung!", "Entschuldigen Sie bitte!"],
    ["Ganz toll!"],
]
HYPOTHESES = ["Ich habe es verloren.", "Entschuldigen Sie bitte!", "Toll!"]


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "test.tsv"
    rows = [(s, r) for s, references in zip(SOURCES, REFERENCES, strict=True) for r in references]
    rows = [*rows[::2], *rows[1::2]]  # the references of a sentence do not stand together
    path.write_text("".join(f"{s}\t{r}\n" for s, r in rows), encoding="utf-8")
    return path


def test_a_model_is_evaluated_and_its_translations_kept(regard, model, pairs, tmp_path):
    result = regard("evaluate", pairs, "--model", model, "--beam", 1, "--output", tmp_path / "out.de", "--json")
    assert result.code == 0, result.err
    scores = json.loads(result.out)
    again = json.loads(regard("score", tmp_path / "out.de", "--reference", pairs, "--json").out)
    assert again.pop("texts") == scores.pop("sentences")
    assert again == scores


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("a\tb\nno tab\n", "test.tsv, line 2: expected source, tab, target, got no tab in 'no tab'"),
        ("a\tb\n\tb\n", "test.tsv, line 2: expected a source, a tab and a reference, got an empty side"),
        ("", "test.tsv: expected pairs, got an empty file"),
    ],
)
def test_bad_pairs_are_named(regard, tmp_path, lines, message):
    (tmp_path / "test.tsv").write_text(lines)
    result = regard("evaluate", tmp_path / "test.tsv")
    assert result.code == 2
    assert message in result.err


def test_an_output_that_cannot_be_written_is_refused_first(regard, pairs, monkeypatch):
    monkeypatch.setattr("regard.pipelines.evaluation.evaluate_translation", lambda *arguments, **options: 1 / 0)
    result = regard("evaluate", pairs, "--output", "no/such/folder/out")
    assert result.code == 2
    assert (
        result.err
        == "regard: no/such/folder/out: could not be written: there is no folder no/such/folder; make it first\n"
    )


def test_a_language_model_is_evaluated_on_a_text(regard, tmp_path):
    writer = trained_writer()
    save_model(tmp_path, writer.model, writer.tokenizer)
    (tmp_path / "test.txt").write_text(LINE * 5)
    result = regard("evaluate", tmp_path / "test.txt", "--model", tmp_path, "--json")
    assert result.code == 0, result.err
    metrics = json.loads(result.out)
    assert metrics["characters"] == len(LINE) * 5 == metrics["tokens"]
    assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]))
    assert metrics["bits_per_character"] == pytest.approx(metrics["loss"] / math.log(2))
    assert 1 < metrics["perplexity"] < 3
    assert "bits per character " in regard("evaluate", tmp_path / "test.txt", "--model", tmp_path).out
    result = regard("evaluate", tmp_path / "test.txt", "--model", tmp_path, "--beam", 2)
    assert (result.code, "--beam: not used with a language model; leave it out" in result.err) == (2, True)


def test_a_masked_language_model_is_evaluated_on_texts(regard, tmp_path):
    tokenizer = train_bpe(["good", "bad"], 270)
    sizes = {"d_model": 8, "num_heads": 2, "num_layers": 1, "d_ff": 8}
    model = Bert(BertConfig(270, head="masked_lm", **sizes))
    with torch.no_grad():
        model.mlm_head.decoder.bias[tokenizer.encode(["aaa"])[0][-1]] = 9.0  # always predicts a
    save_model(tmp_path, model, tokenizer)
    (tmp_path / "test.txt").write_text("aaaaaaaaaaaaaaaaaaaaaaaa\n\n" * 20)
    metrics = json.loads(regard("evaluate", tmp_path / "test.txt", "--model", tmp_path, "--json").out)
    assert metrics["texts"] == 20
    assert metrics["draws"] == 20
    assert 0.1 < metrics["masked_tokens"] / (20 * 20 * 24) < 0.2
    assert 0 < metrics["loss_std"] < 0.5
    assert metrics["accuracy"] > 95
    assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]))
    assert metrics["perplexity"] < 2
    text = regard("evaluate", tmp_path / "test.txt", "--model", tmp_path).out
    assert re.search(r"^random draws of masks +20\nmasked tokens in all draws +1,\d{3}\n", text, re.MULTILINE), text
    assert "accuracy (%) " in text
    (tmp_path / "test.txt").write_text("\n")
    result = regard("evaluate", tmp_path / "test.txt", "--model", tmp_path)
    assert (result.code, "expected at least one text, got none" in result.err) == (2, True)
    save_model(tmp_path, model.with_head("none"), tokenizer)
    result = regard("evaluate", tmp_path / "test.txt", "--model", tmp_path)
    message = "a language model, a masked language model, a classifier or a tagger, got a text encoder in"
    assert (result.code, message in result.err) == (2, True)


def test_a_classifier_is_evaluated_on_texts_with_classes(regard, tmp_path):
    tokenizer = train_bpe(["good", "bad"], 270)
    sizes = {"d_model": 8, "num_heads": 2, "num_layers": 1, "d_ff": 8}
    model = Bert(BertConfig(270, head="sequence_classification", labels=("bad", "good"), **sizes))
    with torch.no_grad():
        model.classifier.bias.copy_(torch.tensor([0.0, 9.0]))  # always predicts good
    save_model(tmp_path, model, tokenizer)
    (tmp_path / "test.tsv").write_text("one\tgood\ntwo\tgood\nthree\tgood\nfour\tbad\n")
    metrics = json.loads(regard("evaluate", tmp_path / "test.tsv", "--model", tmp_path, "--json").out)
    assert metrics == pytest.approx({"texts": 4, "accuracy": 75.0, "f1": 100 * (6 / 7) / 2})
    (tmp_path / "test.tsv").write_text("")
    result = regard("evaluate", tmp_path / "test.tsv", "--model", tmp_path)
    assert (result.code, "expected at least one text with its class, got none" in result.err) == (2, True)
    (tmp_path / "test.tsv").write_text("one\tfair\n")
    result = regard("evaluate", tmp_path / "test.tsv", "--model", tmp_path)
    assert (result.code, "expected one of the classes 'bad', 'good', got 'fair'" in result.err) == (2, True)


def test_a_tagger_is_evaluated_on_tagged_sentences(regard, tmp_path):
    tokenizer = train_bpe(["good", "bad"], 270)
    sizes = {"d_model": 8, "num_heads": 2, "num_layers": 1, "d_ff": 8}
    model = Bert(BertConfig(270, head="token_classification", labels=("B-PER", "I-PER", "O"), **sizes))
    with torch.no_grad():
        model.classifier.bias.copy_(torch.tensor([0.0, 9.0, 0.0]))  # always predicts I-PER
    save_model(tmp_path / "model", model, tokenizer)
    (tmp_path / "test.conll").write_text("Anna B-PER\nHill I-PER\n\nTom B-PER\nwaits O\n")
    metrics = json.loads(regard("evaluate", tmp_path / "test.conll", "--model", tmp_path / "model", "--json").out)
    assert metrics["accuracy"] == 25
    assert (metrics["precision"], metrics["recall"], metrics["f1_PER"], metrics["spans"]) == (50, 50, 50, 2)
    text = regard("evaluate", tmp_path / "test.conll", "--model", tmp_path / "model").out
    assert re.search(r"^F1 of spans of PER \(%\) +50.00$", text, re.MULTILINE), text
    for content, message in (
        ("", "expected at least one sentence with tags, got none"),
        ("Anna B-LOC\n", "expected tags of the types 'PER', got 'LOC'"),
        ("Anna\n", "line 1: expected word and tag in two or more columns, or an empty line, got 'Anna'"),
    ):
        (tmp_path / "test.conll").write_text(content)
        result = regard("evaluate", tmp_path / "test.conll", "--model", tmp_path / "model")
        assert (result.code, message in result.err) == (2, True), result.err
