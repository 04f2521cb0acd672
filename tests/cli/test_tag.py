"""Tags of words and their spans, as transformers predicts them."""

from __future__ import annotations

import json

import pytest
import torch

from helpers.transformers_models import BERTS, bert
from regard.text.tokenizer import train_bpe
from regard.text.words import split_words

TEXTS = ["Anna Hill lives in Paris.", "", "Is she in Rome?"]
LABELS = ["B-PER", "I-PER", "B-LOC", "O"]


@pytest.fixture
def tagger(tmp_path):
    """The folder of a random BERT with its tokenizer, and the tags that transformers predicts for words."""
    folder, tokenizer = tmp_path / "tagger", train_bpe(TEXTS, 280)
    reference = bert(BERTS["token_classification"], vocab_size=280, id2label=dict(enumerate(LABELS)))
    with torch.no_grad():
        reference.classifier.weight.mul_(30)  # different tags for different words
    reference.save_pretrained(folder)
    tokenizer.save(folder)

    @torch.no_grad()
    def predict(words: list[str]) -> list[tuple[str, float]]:
        ids, firsts = tokenizer.encode_words([words])[0]
        top = reference(torch.tensor([ids])).logits[0, firsts].softmax(-1).max(-1)
        return [(LABELS[index], share) for index, share in zip(top.indices.tolist(), top.values.tolist(), strict=True)]

    return folder, predict


def test_words_have_the_tags_of_transformers(regard, tagger, tmp_path):
    folder, predict = tagger
    result = regard("tag", *filter(None, TEXTS), "--model", folder, "--json")
    assert result.code == 0, result.err
    for text, line in zip(filter(None, TEXTS), map(json.loads, result.out.splitlines()), strict=True):
        expected = predict(split_words(text))
        assert line["text"] == text
        assert [each["word"] for each in line["words"]] == split_words(text)
        assert [each["label"] for each in line["words"]] == [label for label, _ in expected]
        assert [each["probability"] for each in line["words"]] == pytest.approx([share for _, share in expected])
        assert line["spans"]
        for span in line["spans"]:
            assert text[span["start"] : span["end"]] == span["text"]
            assert span["label"] in ("PER", "LOC")


def test_lines_of_a_file_become_columns(regard, tagger, tmp_path):
    folder, predict = tagger
    (tmp_path / "texts").write_text("\n".join(TEXTS) + "\n")
    expected = "".join(
        "".join(f"{word}\t{label}\n" for word, (label, _) in zip(words, predict(words), strict=True)) + "\n"
        if (words := split_words(text))
        else "\n"
        for text in TEXTS
    )
    assert regard("tag", "--file", tmp_path / "texts", "--model", folder).out == expected
    assert regard("tag", "--model", folder, stdin="\n".join(TEXTS)).out == expected
    result = regard("tag", "--file", tmp_path / "texts", "--model", folder, "-o", tmp_path / "out.conll")
    assert (result.code, result.out, (tmp_path / "out.conll").read_text()) == (0, "", expected)
    again = regard("evaluate", tmp_path / "out.conll", "--model", folder, "--json")
    assert json.loads(again.out)["accuracy"] == 100


def test_the_table_names_each_span_at_its_first_word(regard, tagger, monkeypatch):
    folder, _ = tagger
    labels = iter(["B-PER", "I-PER", "O", "O", "B-LOC", "O"])

    def predict(self, logits):
        from regard.pipelines import Prediction

        label = next(labels)
        return Prediction(label, {label: 0.75})

    monkeypatch.setattr("regard.pipelines.TextEncoder._predict_class", predict)
    rows = [line.split() for line in regard("tag", TEXTS[0], "--model", folder).out.splitlines()]
    assert rows == [
        ["word", "tag", "probability", "span"],
        ["Anna", "B-PER", "0.7500", "PER:", "Anna", "Hill"],
        ["Hill", "I-PER", "0.7500"],
        ["lives", "O", "0.7500"],
        ["in", "O", "0.7500"],
        ["Paris", "B-LOC", "0.7500", "LOC:", "Paris"],
        [".", "O", "0.7500"],
        [],
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a", "--file", "b"], "--file: expected it without texts, got both; leave one of them out"),
        ([" "], "texts: expected a text, got ' '"),
        ([], "standard input: expected texts, one per line, got an empty file"),
        (["--file", "none.txt"], "none.txt: no such file"),
    ],
)
def test_texts_or_a_file(regard, tagger, arguments, message):
    result = regard("tag", *arguments, "--model", tagger[0])
    assert (result.code, result.out) == (2, "")
    assert message in result.err


def test_a_model_of_another_kind_is_refused_with_its_command(regard, model, tagger):
    result = regard("tag", "a", "--model", model)
    assert f"--model: expected a tagger, got a translator in {model}; use `regard translate`" in result.err
    result = regard("classify", "--model", tagger[0], stdin="a\n")
    assert "--model: expected a classifier, got a tagger in" in result.err
    assert "use `regard tag`" in result.err
