"""Options that commands share: devices, dtypes, models, texts, and options without effect."""

from __future__ import annotations

import inspect

import pytest
import torch
import transformers as hf
from typer.main import get_command

from helpers.char_model import trained_writer
from helpers.transformers_models import T5, pegasus, tokenizer
from regard.cli.main import app
from regard.cli.models import load_any, resolve_dtype
from regard.generation import beam_search
from regard.generation.sampling import SamplingParams
from regard.models import save_model

RUNS_A_MODEL = ["show", "heads", "steps", "translate", "generate", "classify", "fill-mask"]


@pytest.fixture
def t5(tmp_path):
    torch.manual_seed(0)
    hf.T5ForConditionalGeneration(hf.T5Config(**T5)).save_pretrained(tmp_path / "t5")
    tokenizer().save_pretrained(tmp_path / "t5")
    return tmp_path / "t5"


@pytest.fixture
def writer(tmp_path):
    trained = trained_writer()
    save_model(tmp_path / "writer", trained.model, trained.tokenizer)
    return tmp_path / "writer"


@pytest.mark.parametrize("verb", RUNS_A_MODEL)
def test_every_command_that_runs_a_model_has_the_same_options(verb):
    options = {option for parameter in get_command(app).commands[verb].params for option in parameter.opts}
    assert {"--model", "--dtype", "--device"} <= options


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
@pytest.mark.parametrize("verb", ["show", "heads", "steps", "translate"])
@pytest.mark.parametrize(
    ("device", "message"),
    [("cuda:1", "device: expected an available device such as 'cpu', got 'cuda:1'"), ("gpu", "device: expected a dev")],
)
def test_a_device_that_is_not_there_is_refused(regard, verb, device, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = [] if verb == "translate" else ["the cat"]
    result = regard(verb, *arguments, "--device", device, stdin="the cat\n")
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert list(tmp_path.iterdir()) == []


def test_a_watched_model_checks_its_device(regard, t5):
    assert load_any(t5, device="cpu").device == torch.device("cpu")
    result = regard("show", "the mat", "--model", t5, "--device", "cuda:99")
    assert result.code == 2
    assert "got 'cuda:99'" in result.err


def test_auto_is_the_fastest_dtype_on_a_cpu(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    assert resolve_dtype("auto", "cpu") == torch.bfloat16
    assert resolve_dtype("auto", "cuda:0") == torch.float32
    assert resolve_dtype("float64", "cpu") == torch.float64


def test_defaults_are_those_of_the_library():
    commands = get_command(app).commands
    translate = {parameter.name: parameter.default for parameter in commands["translate"].params}
    search = inspect.signature(beam_search).parameters
    sampling = inspect.signature(SamplingParams).parameters
    assert all(translate[name] == search[name].default for name in ("beam", "length_penalty"))
    assert all(translate[name] == sampling[name].default for name in ("temperature", "top_k", "top_p", "seed"))


@pytest.mark.parametrize("verb", ["generate", "classify", "tag", "fill-mask", "translate", "steps"])
def test_a_model_that_is_only_in_transformers_is_refused_with_the_commands_it_supports(regard, verb, t5):
    arguments = ["the <mask>"] if verb in ("fill-mask", "steps", "generate") else []
    result = regard(verb, *arguments, "--model", t5, stdin="the mat\n")
    assert (result.code, result.out) == (2, "")
    assert "got 't5'; `regard show` and `regard heads` record any model of transformers" in result.err


def test_minilm_is_resolved_by_evaluate(regard, tmp_path):
    (tmp_path / "texts").write_text("the cat\n")
    result = regard("evaluate", tmp_path / "texts", "--model", "minilm")
    assert result.code == 2
    assert "a classifier or a tagger, got a text encoder in minilm" in result.err


@pytest.mark.parametrize("verb", ["generate", "translate"])
def test_minilm_is_a_model_of_every_command(regard, verb):
    result = regard(verb, "--model", "minilm", stdin="the mat\n")
    assert result.code == 2
    assert "got a text encoder in minilm; use `regard show`" in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["steps", "--layer", "cross.0", "--device", "cpu"],
            "--layer, --device: used only with a text; leave",
        ),
        (["translate", "--beam", "5", "--sample"], "--beam: not used with --sample; leave it out"),
        (["show", "a", "--max-new-tokens", "3"], "--max-new-tokens: this model translates; leave it out"),
        (["show", "a", "--lines"], "--lines: expected --file with one text per line, got a text"),
    ],
)
def test_options_without_effect_are_refused_even_with_their_default(regard, arguments, message):
    result = regard(*arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


def test_a_file_is_one_text_or_one_per_line(regard, writer, tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("abc abc\n\ndef\n", encoding="utf-8")
    full = regard("heads", "--file", file, "--model", writer)
    assert full.code == 0, full.err
    assert full.err == f"note: {file}: 2 lines are read as one text; --lines reads one text per line\n"
    assert full.out == regard("heads", "abc abc\n\ndef", "--model", writer).out
    assert full.out == regard("heads", "--file", "-", "--model", writer, stdin="abc abc\n\ndef\n").out
    lines = regard("heads", "--file", file, "--lines", "--model", writer)
    assert lines.code == 0, lines.err
    assert lines.out != full.out
    file.write_text("\n \n")
    assert f"{file}: expected a text, got an empty file" in regard("heads", "--file", file).err


@pytest.mark.parametrize("verb", ["show", "heads"])
def test_a_text_that_is_the_name_of_a_file_gets_a_note(regard, verb, writer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "abc").write_text("def\n", encoding="utf-8")
    result = regard(verb, "abc", "--model", writer)
    assert result.code == 0, result.err
    assert "note: 'abc' is read as a text, not as the file of that name; --file reads a file\n" in result.err
    assert "note" not in regard(verb, "--file", "abc", "--model", writer).err


@pytest.mark.parametrize(("lines", "origin"), [([], "{}: "), (["--lines"], "{}, line 2: ")])
@pytest.mark.parametrize("verb", ["show", "heads"])
def test_a_text_that_is_too_long_is_named(regard, verb, lines, origin, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "texts.txt"
    file.write_text("A cat.\n" + "word " * 600 + "\n")
    result = regard(verb, "--file", file, *lines, "--model", "minilm")
    assert result.code == 2
    assert f"regard: {origin.format(file)}expected at most 512 tokens, got 60" in result.err


def test_a_pegasus_whose_tokenizer_only_transformers_reads_is_watched(tmp_path, monkeypatch):
    pegasus().save_pretrained(tmp_path)
    (tmp_path / "spiece.model").touch()
    monkeypatch.setattr("regard.watching.TransformersModel.load", lambda folder, **options: "watched")
    assert load_any(tmp_path) == "watched"
