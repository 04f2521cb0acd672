"""Scores are sacreBLEU's own, for every format of references."""

from __future__ import annotations

import itertools
import json
import math

import pytest
import sacrebleu
import torch

from helpers.char_model import LINE, trained_writer
from regard.errors import InvalidType
from regard.metrics.generation import generation_metrics
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


@pytest.fixture
def hypotheses(tmp_path, pairs):
    order = list(dict.fromkeys(line.split("\t")[0] for line in pairs.read_text(encoding="utf-8").splitlines()))
    path = tmp_path / "hypotheses.de"
    path.write_text("".join(f"{HYPOTHESES[SOURCES.index(s)]}\n" for s in order), encoding="utf-8")
    return path


def test_repeated_sources_are_further_references(regard, pairs, hypotheses):
    result = regard("evaluate", pairs, "--hypotheses", hypotheses, "--json")
    assert result.code == 0, result.err
    metrics = json.loads(result.out)
    streams = [[row[i] if i < len(row) else None for row in REFERENCES] for i in range(3)]
    assert (metrics["sentences"], metrics["references"]) == (3, 5)
    assert metrics["bleu"]["score"] == pytest.approx(sacrebleu.corpus_bleu(HYPOTHESES, streams).score)
    assert metrics["chrf"]["score"] == pytest.approx(sacrebleu.corpus_chrf(HYPOTHESES, streams).score)
    assert metrics["ter"]["score"] == pytest.approx(sacrebleu.corpus_ter(HYPOTHESES, streams).score)
    assert metrics["bleu"]["signature"].startswith("nrefs:var|case:mixed|eff:no|tok:13a|smooth:exp|version:")


def test_aligned_files_are_references_too(regard, tmp_path):
    columns = {
        "en": SOURCES,
        "first.de": [r[0] for r in REFERENCES],
        "second.de": [r[-1] for r in REFERENCES],
        "hyp": HYPOTHESES,
    }
    for name, lines in columns.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    result = regard(
        *("evaluate", "--source", tmp_path / "en", "--hypotheses", tmp_path / "hyp"),
        *("--reference", tmp_path / "first.de", "--reference", tmp_path / "second.de"),
    )
    expected = sacrebleu.corpus_bleu(HYPOTHESES, [columns["first.de"], columns["second.de"]]).score
    assert result.code == 0, result.err
    assert result.out.startswith("3 sentences, 6 references\n")
    assert f"BLEU  {expected:6.2f}  nrefs:2|case:mixed|eff:no|tok:13a" in result.out


def test_one_warning_for_text_that_looks_tokenised(regard, tmp_path, caplog):
    lines = tmp_path / "lines"
    lines.write_text("a dog runs over the grass .\n" * 150, encoding="utf-8")  # sacrebleu itself warns from 100 on
    files = ("--source", lines, "--reference", lines, "--hypotheses", lines)
    result = regard("evaluate", *files)
    assert result.code == 0
    assert result.err == "note: this text looks tokenized; `--tokenize none` takes its words as they are\n"
    assert not caplog.records
    assert not regard("evaluate", *files, "--tokenize", "none").err


def test_a_model_is_evaluated_and_its_translations_kept(regard, model, pairs, tmp_path):
    result = regard("evaluate", pairs, "--model", model, "--beam", 1, "--output", tmp_path / "out.de", "--json")
    assert result.code == 0, result.err
    again = regard("evaluate", pairs, "--hypotheses", tmp_path / "out.de", "--json")
    assert json.loads(again.out) == json.loads(result.out)


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


def test_unequal_numbers_of_lines_are_refused_with_both_counts(regard, tmp_path, pairs):
    (tmp_path / "two").write_text("a\nb\n")
    (tmp_path / "one").write_text("a\n")
    result = regard("evaluate", pairs, "--hypotheses", tmp_path / "two")
    assert result.code == 2
    assert "two: expected 3 lines, one for each distinct source, got 2" in result.err
    result = regard(
        "evaluate", "--source", tmp_path / "two", "--reference", tmp_path / "two", "--reference", tmp_path / "one"
    )
    assert result.code == 2
    assert f"{tmp_path / 'one'}: expected 2 lines, one for each distinct source, got 1" in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "test: expected a file of pairs, or --source with --reference, got neither"),
        (["--source", "a"], "--reference: expected at least one file with the references of --source, got none"),
        (["--reference", "a"], "test: expected a file of pairs, or --source with --reference, got neither"),
        (["test.tsv", "--source", "a"], "--source: expected it without a file of pairs, got test.tsv too; leave one"),
        (["test.tsv", "--reference", "a"], "--reference: expected it without a file of pairs, got test.tsv too;"),
    ],
)
def test_pairs_and_aligned_files_exclude_each_other(regard, arguments, message):
    result = regard("evaluate", *arguments)
    assert result.code == 2
    assert message in result.err


def test_text_is_read_as_in_training(regard, tmp_path):
    (tmp_path / "test.tsv").write_text("gr\u00fcn\tEs ist gr\u00fcn.\n gru\u0308n\tDa ist Gru\u0308n.\n")
    (tmp_path / "hyp").write_text("Es ist gru\u0308n.\n")
    result = regard("evaluate", tmp_path / "test.tsv", "--hypotheses", tmp_path / "hyp", "--json")
    assert result.code == 0, result.err
    metrics = json.loads(result.out)
    assert (metrics["sentences"], metrics["references"]) == (1, 2)
    assert metrics["chrf"]["score"] == 100


@pytest.mark.parametrize("arguments", [["--model", "folder"], ["--beam", "5"], ["--dtype", "float32"]])
def test_hypotheses_refuse_options_of_models(regard, pairs, hypotheses, arguments):
    result = regard("evaluate", pairs, "--hypotheses", hypotheses, *arguments)
    assert (result.code, result.out) == (2, "")
    assert f"{arguments[0]}: not used with --hypotheses; leave it out" in result.err


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
    assert "bits per character: " in regard("evaluate", tmp_path / "test.txt", "--model", tmp_path).out
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
    assert "random draws of masks: 20\nmasked tokens: " in text
    assert "accuracy (%): " in text
    (tmp_path / "test.txt").write_text("\n")
    result = regard("evaluate", tmp_path / "test.txt", "--model", tmp_path)
    assert (result.code, "expected at least one text, got none" in result.err) == (2, True)
    save_model(tmp_path, model.with_head("token_classification", ["a", "b"]), tokenizer)
    result = regard("evaluate", tmp_path / "test.txt", "--model", tmp_path)
    message = "expected a translator, a language model, a masked language model or a classifier, got a text encoder in"
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


TEXTS = ["the cat sat on the mat .", "the cat ran to the door .", "a dog barked ."]
REFERENCE_TEXTS = ["the cat sat on a mat .", "the cat ran home .", "the dog slept ."]


def test_generated_texts_are_scored_with_and_without_references(regard, tmp_path):
    (tmp_path / "texts").write_text("\n".join(TEXTS) + "\n")
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"prompt": "", "text": text}) + "\n" for text in TEXTS))
    (tmp_path / "references").write_text("\n".join(REFERENCE_TEXTS) + "\n")
    result = regard("evaluate", "--generated", tmp_path / "texts", "--reference", tmp_path / "references", "--json")
    assert result.code == 0, result.err
    metrics = json.loads(result.out)
    words = [text.split() for text in TEXTS]
    pairs = [pair for text in words for pair in itertools.pairwise(text)]
    assert metrics["signature"].startswith("tok:13a|self-bleu-texts:200|")
    assert metrics["distinct_1"] == pytest.approx(len({word for text in words for word in text}) / 18)
    assert metrics["distinct_2"] == pytest.approx(len(set(pairs)) / len(pairs))
    each = [
        sacrebleu.sentence_bleu(text, [other for other in TEXTS if other != text], use_effective_order=True).score
        for text in TEXTS
    ]
    assert metrics["self_bleu"] == pytest.approx(sum(each) / 3)
    assert metrics["rouge_1"] == pytest.approx(100 * (5 / 6 + 2 * 3 / (6 + 4) + 2 / 6) / 3)
    both = ("--generated", tmp_path / "texts.jsonl", "--reference", tmp_path / "texts.jsonl")
    assert json.loads(regard("evaluate", *both, "--json").out)["rouge_l"] == 100
    alone = json.loads(regard("evaluate", "--generated", tmp_path / "texts.jsonl", "--json").out)
    assert alone.pop("signature").startswith("tok:13a|self-bleu-texts:200|sacrebleu:")
    del metrics["signature"]
    assert alone == {name: value for name, value in metrics.items() if not name.startswith("rouge")}
    assert "self bleu: " in regard("evaluate", "--generated", tmp_path / "texts").out


def test_what_does_not_fit_generated_texts_is_refused(regard, tmp_path):
    (tmp_path / "one").write_text("alone\n")
    (tmp_path / "empty").write_text("\n\n")
    (tmp_path / "two").write_text("one\ntwo\n")
    (tmp_path / "odd.jsonl").write_text('{"text": "a"}\n{"txt": "b"}\n')
    for arguments, words in (
        (["--generated", tmp_path / "one"], "texts: expected at least two to compare, got 1"),
        (["--generated", tmp_path / "empty"], "texts: expected words, got empty texts only"),
        (
            ["--generated", tmp_path / "two", "--reference", tmp_path / "one"],
            "references: expected as many as texts, 2",
        ),
        (["--generated", tmp_path / "odd.jsonl"], "odd.jsonl, line 2: expected an object with a 'text'"),
        (["--generated", tmp_path / "two", "--tokenize", "none"], "--tokenize: not used with --generated"),
        (
            [tmp_path / "two", "--generated", tmp_path / "two", "--beam", 3],
            "test, --beam: not used with --generated;",
        ),
    ):
        result = regard("evaluate", *arguments)
        assert result.code == 2
        assert words in " ".join(result.err.split())


def test_scores_of_generated_texts_in_every_alphabet_for_two_hundred_texts():
    cities = ["東京 タワー", "京都 寺"]
    metrics = generation_metrics(cities, cities)
    assert (metrics["rouge_1"], metrics["distinct_3"]) == (100, None)
    alike = [f"the {number % 7} cats sat on {number % 11} mats" for number in range(201)]
    assert generation_metrics(alike)["self_bleu"] == pytest.approx(generation_metrics(alike[:200])["self_bleu"], abs=1)
    with pytest.raises(InvalidType, match="texts: expected a sequence of str, got str; pass a list"):
        generation_metrics("abc def")


@pytest.mark.parametrize(
    ("hypothesis", "words"),
    [("Er geht fort", "3 words"), ("Ja", "1 word"), ("Er geht fort.", None), ("Er geht weit weg", None)],
)
def test_a_bleu_of_0_of_short_translations_gets_a_note(regard, tmp_path, hypothesis, words):
    for name, text in (("source", "He leaves."), ("reference", "Er geht fort"), ("hypotheses", hypothesis)):
        (tmp_path / name).write_text(text + "\n")
    files = [item for name in ("source", "reference", "hypotheses") for item in (f"--{name}", tmp_path / name)]
    result = regard("evaluate", *files)
    assert result.code == 0, result.err
    if words is None:
        assert "note" not in result.err
    else:
        note = f"note: BLEU is 0, because it counts sequences of 4 words, and the longest translation has {words}\n"
        assert result.err == note
