"""`regard heads`."""

from __future__ import annotations

import csv

import pytest
import transformers as hf
from PIL import Image

from helpers import transformers_models
from helpers.char_model import trained_writer
from helpers.model_zoo.families import IMAGE
from regard.analysis.head_scores import HEAD_SCORES, head_scores
from regard.models import save_model
from regard.watching import TransformersModel


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("writer")
    trained = trained_writer()
    save_model(folder, trained.model, trained.tokenizer)
    return folder


def test_the_strongest_heads_and_all_by_a_score(regard, writer, tmp_path):
    result = regard("heads", "abc abc", "--model", writer)
    assert result.code == 0, result.err
    shown = {line.split()[0]: line.split()[1:] for line in result.out.splitlines()[1:]}
    assert {"previous_token", "induction", "entropy"} <= set(shown)
    result = regard("heads", "abc abc", "--model", writer, "--sort-by", "previous_token")
    assert result.code == 0, result.err
    header, *rows = [line.split() for line in result.out.splitlines()]
    column = [float(row[header.index("previous")]) for row in rows]
    assert column == sorted(column, reverse=True)
    assert rows[0][0] == shown["previous_token"][0]
    assert rows[0][header.index("previous")] == shown["previous_token"][1]


def test_an_image_has_heads_too(regard, tmp_path):
    hf.ViTModel(hf.ViTConfig(**IMAGE)).save_pretrained(tmp_path / "vit")
    hf.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(tmp_path / "vit")
    Image.new("RGB", (20, 30), "red").save(tmp_path / "a.png")
    result = regard("heads", tmp_path / "a.png", "--model", tmp_path / "vit")
    assert result.code == 0, result.err
    shown = {line.split()[0] for line in result.out.splitlines()[1:]}
    assert {"first_token", "previous_token", "entropy"} <= shown
    assert not {"induction", "duplicate_token"} & shown  # of words


def test_separators_are_those_of_the_library(regard, tmp_path):
    transformers_models.bert(hf.BertModel).save_pretrained(tmp_path / "bert")
    tokenizer = transformers_models.tokenizer()
    tokenizer.save_pretrained(tmp_path / "bert")
    result = regard("heads", "the cat sat", "--model", tmp_path / "bert", "-o", tmp_path / "heads.csv")
    assert result.code == 0, result.err
    with (tmp_path / "heads.csv").open(newline="", encoding="utf-8") as file:
        actual = [float(row["separator"]) for row in csv.DictReader(file)]
    recording = TransformersModel.load(tmp_path / "bert").record("the cat sat")
    assert recording.layers[0].key_tokens == ("[CLS]", "▁the", "▁cat", "▁sat", "[SEP]")
    expected = [weight for layer in recording.layers for weight in layer.weights.dense()[0, ..., 4].mean(1).tolist()]
    assert actual == pytest.approx(expected, abs=1e-5)
    for tokens in (None, tokenizer("the cat sat")["input_ids"]):
        scores = head_scores(recording, tokens=tokens, tokenizer=tokenizer)
        assert scores["separator"] == pytest.approx(expected, abs=1e-5)


def test_texts_of_a_file_and_a_table(regard, writer, tmp_path):
    (tmp_path / "texts.txt").write_text("abc abc\n\ndef\n", encoding="utf-8")
    result = regard(
        "heads", "--file", tmp_path / "texts.txt", "--lines", "--model", writer, "-o", tmp_path / "heads.csv"
    )
    assert result.code == 0, result.err
    with (tmp_path / "heads.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["kind"] for row in rows} == {"decoder"}
    assert all(0 <= float(row["induction"]) <= 1 for row in rows)
    result = regard("heads", "abc", "--model", writer, "-o", tmp_path / "heads.png")
    assert result.code == 0, result.err
    assert (tmp_path / "heads.png").read_bytes().startswith(b"\x89PNG")


def test_a_translator_and_the_minilm(regard):
    result = regard("heads", "the cat sat")
    assert result.code == 0, result.err
    assert "encoder.2/" in result.out
    assert "note" not in result.err
    message = "not measured, because the tokens that they need do not occur: duplicate_token, induction"
    assert message in regard("heads", "Thank you.").err
    for score in ("separator", "effective_rank"):
        result = regard("heads", "A cat. A dog.", "--model", "minilm", "--sort-by", score)
        assert result.code == 0, result.err
        assert ("curl" in result.out.splitlines()[0]) == (score == "effective_rank")
        assert "…" not in result.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "text: expected a text or --file, got neither"),
        (["a", "--file", "b"], "text: expected a text or --file, got both"),
        ([" "], "text: expected a text, got ' '"),
        (["a", "--sort-by", "inductoin"], "did you mean 'induction'?"),
        (["a", "-o", "a.xls"], "expected a name with .csv"),
        (["a", "--model", "nowhere"], "nowhere"),
        (["--file", "nowhere.txt"], "nowhere.txt"),
    ],
)
def test_invalid_arguments_give_one_message_and_code_2(regard, arguments, message):
    result = regard("heads", *arguments)
    assert result.code == 2
    assert message in " ".join(result.err.split())


def test_a_line_that_is_too_long_is_named(regard, tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("the cat sat\n\n" + "word " * 600 + "\n")
    result = regard("heads", "--file", file, "--lines", "--model", "minilm")
    assert result.code == 2
    assert f"{file}, line 3: " in result.err


def test_the_help_lists_every_score(regard):
    help_text = " ".join(regard("heads", "--help").out.replace("│", "").split())
    assert f"sorted by this score: {', '.join(HEAD_SCORES[:-1])} or {HEAD_SCORES[-1]}." in help_text
