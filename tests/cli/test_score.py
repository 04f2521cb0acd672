"""Scores are sacreBLEU's own, for every format of references."""

from __future__ import annotations

import itertools
import json

import pytest
import sacrebleu

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
    result = regard("score", hypotheses, "--reference", pairs, "--json")
    assert result.code == 0, result.err
    metrics = json.loads(result.out)
    streams = [[row[i] if i < len(row) else None for row in REFERENCES] for i in range(3)]
    assert (metrics["texts"], metrics["references"]) == (3, 5)
    assert metrics["bleu"] == pytest.approx(sacrebleu.corpus_bleu(HYPOTHESES, streams).score)
    assert metrics["chrf"] == pytest.approx(sacrebleu.corpus_chrf(HYPOTHESES, streams).score)
    assert metrics["ter"] == pytest.approx(sacrebleu.corpus_ter(HYPOTHESES, streams).score)
    assert metrics["signatures"]["bleu"].startswith("nrefs:var|case:mixed|eff:no|tok:13a|smooth:exp|version:")


def test_aligned_files_are_references_too(regard, tmp_path):
    columns = {
        "first.de": [r[0] for r in REFERENCES],
        "second.de": [r[-1] for r in REFERENCES],
        "hyp": HYPOTHESES,
    }
    for name, lines in columns.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    result = regard(
        *("score", tmp_path / "hyp"),
        *("--reference", tmp_path / "first.de", "--reference", tmp_path / "second.de"),
    )
    expected = sacrebleu.corpus_bleu(HYPOTHESES, [columns["first.de"], columns["second.de"]]).score
    assert result.code == 0, result.err
    assert result.out.startswith("texts           3\nreferences      6\n")
    assert f"BLEU        {expected:5.2f}  nrefs:2|case:mixed|eff:no|tok:13a" in result.out


def test_one_warning_for_text_that_looks_tokenised(regard, tmp_path, caplog):
    lines = tmp_path / "lines"
    lines.write_text("a dog runs over the grass .\n" * 150, encoding="utf-8")  # sacrebleu itself warns from 100 on
    files = (lines, "--reference", lines)
    result = regard("score", *files)
    assert result.code == 0
    assert result.err == "note: this text looks tokenized; `--tokenize none` takes its words as they are\n"
    assert not caplog.records
    assert not regard("score", *files, "--tokenize", "none").err


def test_unequal_numbers_of_lines_are_refused_with_both_counts(regard, model, tmp_path, pairs):
    (tmp_path / "two").write_text("a\nb\n")
    (tmp_path / "one").write_text("a\n")
    result = regard("score", tmp_path / "two", "--reference", pairs)
    assert result.code == 2
    assert f"{pairs}: expected 2 distinct sources, one per text, got 3" in result.err
    for command in (["score"], ["evaluate", "--model", model]):
        result = regard(*command, tmp_path / "two", "--reference", tmp_path / "two", "--reference", tmp_path / "one")
        assert result.code == 2
        assert f"{tmp_path / 'one'}: expected 2 lines, one per text, got 1" in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--metric", "ter", "--metric", "rouge"],
            "--reference: expected at least one file, got none; ter, rouge cannot be computed without",
        ),
        (["--metric", "diversity", "--reference", "texts"], "--reference: expected none for diversity, got texts"),
        (["--metric", "ter", "--reference", "texts", "--tokenize", "zh"], "--tokenize: used only for bleu; leave it"),
        (
            ["--metric", "rouge", *["--reference", "texts"] * 2],
            "--reference: expected one reference per text for rouge",
        ),
        (["--reference", "texts", "--tokenize", "en"], "--tokenize: expected one of 13a"),
    ],
)
def test_metrics_and_references_fit_together(regard, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").write_text("one\ntwo\n")
    result = regard("score", "texts", *arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


def test_texts_come_from_a_pipe(regard, tmp_path):
    (tmp_path / "reference").write_text("one two three four\n")
    result = regard("score", "-", "--reference", tmp_path / "reference", "--json", stdin="one two three four\n")
    assert json.loads(result.out)["bleu"] == pytest.approx(100)
    empty = regard("score", "-")
    assert "standard input: expected texts, one per line, got an empty file" in empty.err


def test_text_is_read_as_in_training(regard, tmp_path):
    (tmp_path / "test.tsv").write_text("gr\u00fcn\tEs ist gr\u00fcn.\n gru\u0308n\tDa ist Gru\u0308n.\n")
    (tmp_path / "hyp").write_text("Es ist gru\u0308n.\n")
    result = regard("score", tmp_path / "hyp", "--reference", tmp_path / "test.tsv", "--json")
    assert result.code == 0, result.err
    metrics = json.loads(result.out)
    assert (metrics["texts"], metrics["references"]) == (1, 2)
    assert metrics["chrf"] == 100


TEXTS = ["the cat sat on the mat .", "the cat ran to the door .", "a dog barked ."]
BOTH = ("--metric", "rouge", "--metric", "diversity")
REFERENCE_TEXTS = ["the cat sat on a mat .", "the cat ran home .", "the dog slept ."]


def test_generated_texts_are_scored_with_and_without_references(regard, tmp_path):
    (tmp_path / "texts").write_text("\n".join(TEXTS) + "\n")
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"prompt": "", "text": text}) + "\n" for text in TEXTS))
    (tmp_path / "references").write_text("\n".join(REFERENCE_TEXTS) + "\n")
    result = regard("score", tmp_path / "texts", "--reference", tmp_path / "references", *BOTH, "--json")
    assert result.code == 0, result.err
    metrics = json.loads(result.out)
    words = [text.split() for text in TEXTS]
    pairs = [pair for text in words for pair in itertools.pairwise(text)]
    assert metrics["signatures"]["self_bleu"].startswith("tok:13a|texts:200|sacrebleu:")
    assert metrics["signatures"]["rouge_1"].startswith("words:letters-digits-marks|stem:no|rouge-score:")
    assert metrics["distinct_1"] == pytest.approx(len({word for text in words for word in text}) / 18)
    assert metrics["distinct_2"] == pytest.approx(len(set(pairs)) / len(pairs))
    each = [
        sacrebleu.sentence_bleu(text, [other for other in TEXTS if other != text], use_effective_order=True).score
        for text in TEXTS
    ]
    assert metrics["self_bleu"] == pytest.approx(sum(each) / 3)
    assert metrics["rouge_1"] == pytest.approx(100 * (5 / 6 + 2 * 3 / (6 + 4) + 2 / 6) / 3)
    same = regard(
        "score", tmp_path / "texts.jsonl", "--reference", tmp_path / "texts.jsonl", "--metric", "rouge", "--json"
    )
    assert json.loads(same.out)["rouge_l"] == 100
    alone = json.loads(regard("score", tmp_path / "texts.jsonl", "--json").out)
    assert list(alone["signatures"]) == ["distinct_1", "distinct_2", "distinct_3", "self_bleu"]
    assert {**metrics, **alone} == {**metrics, "signatures": alone["signatures"]}
    assert "self-BLEU " in regard("score", tmp_path / "texts").out


def test_what_does_not_fit_generated_texts_is_refused(regard, tmp_path):
    (tmp_path / "one").write_text("alone\n")
    (tmp_path / "empty").write_text("\n\n")
    (tmp_path / "two").write_text("one\ntwo\n")
    (tmp_path / "odd.jsonl").write_text('{"text": "a"}\n{"txt": "b"}\n')
    for arguments, words in (
        ([tmp_path / "one"], "texts: expected at least two to compare, got 1"),
        ([tmp_path / "empty"], "texts: expected words, got empty texts only"),
        (
            [tmp_path / "two", "--reference", tmp_path / "one", "--metric", "rouge"],
            "one: expected 2 lines, one per text, got 1",
        ),
        ([tmp_path / "odd.jsonl"], "odd.jsonl, line 2: expected the column 'text'"),
    ):
        result = regard("score", *arguments)
        assert result.code == 2
        assert words in " ".join(result.err.split())


@pytest.mark.parametrize(
    ("hypothesis", "words"),
    [("Er geht fort", "3 words"), ("Ja", "1 word"), ("Er geht fort.", None), ("Er geht weit weg", None)],
)
def test_a_bleu_of_0_of_short_translations_gets_a_note(regard, tmp_path, hypothesis, words):
    for name, text in (("reference", "Er geht fort"), ("hypotheses", hypothesis)):
        (tmp_path / name).write_text(text + "\n")
    result = regard("score", tmp_path / "hypotheses", "--reference", tmp_path / "reference")
    assert result.code == 0, result.err
    if words is None:
        assert "note" not in result.err
    else:
        note = f"note: BLEU is 0, because it counts sequences of 4 words, and the longest translation has {words}\n"
        assert result.err == note
