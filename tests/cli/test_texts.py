"""A recording where a command takes a text: opened by commands that can, refused by the others."""

from __future__ import annotations

import pytest

import regard as library
from regard.pipelines import load

OPENING = ("show", "heads", "segments")
TEXT = "the cat sat"


@pytest.fixture
def recording(model, tmp_path):
    path = tmp_path / "my run.regard"
    load(model).record(TEXT).save(path)
    return path


@pytest.mark.parametrize("command", OPENING)
@pytest.mark.parametrize("option", [[], ["--file"]], ids=["argument", "file"])
def test_a_recording_shows_what_its_text_shows(regard, model, recording, tmp_path, command, option):
    output = ["-o", tmp_path / "again.html"] if command == "show" else []
    of_text = regard(command, TEXT, "--model", model, *output)
    result = regard(command, *option, recording, *output)
    assert (result.code, result.err) == (0, of_text.err)
    assert result.out == of_text.out
    assert "cat" in result.out or command != "show"


def test_parts_of_a_recording_are_shown_and_written(regard, model, recording, tmp_path):
    for source in ([TEXT, "--model", model], [recording]):
        result = regard("show", *source, "--layer", "cross.0", "--token", "cat", "--tokens", "-o", tmp_path / "cat.csv")
        assert result.code == 0, result.err
        (tmp_path / "cat.csv").rename(tmp_path / f"{len(source)}.csv")
    assert (tmp_path / "1.csv").read_text() == (tmp_path / "3.csv").read_text()
    assert regard("show", recording, "-o", tmp_path / "copy.regard").code == 0
    assert len(library.load(tmp_path / "copy.regard").layers) == len(library.load(recording).layers)


def test_the_recording_of_an_image_has_a_page_only(regard, model, tmp_path):
    path = tmp_path / "image.regard"
    load(model).record(TEXT).replace(texts={"image": "cat.png"}).save(path)
    result = regard("show", path, "-o", tmp_path / "a.html")
    assert result.code == 0, result.err
    assert (tmp_path / "a.html").exists()
    refused = regard("show", path, "--tokens", "-o", tmp_path / "b.html")
    assert refused.code == 2
    assert "--tokens: an image has a page with all layers and no table" in refused.err


@pytest.mark.parametrize("command", [*OPENING, "steps", "fill-mask", "generate"])
def test_a_recording_that_is_missing_is_never_a_text(regard, model, command):
    result = regard(command, "missing.regard", "--model", model)
    assert result.code == 2
    assert "missing.regard" in result.err
    assert ("no such file" in result.err) == (command in OPENING)


@pytest.mark.parametrize("command", OPENING)
def test_options_of_models_have_no_effect_on_a_recording(regard, model, recording, command):
    result = regard(command, recording, "--model", model, "--dtype", "float64")
    assert (result.code, result.out) == (2, "")
    assert result.err == "regard: --model, --dtype: not used with a recording; leave them out\n"


@pytest.mark.parametrize(
    ("command", "name"),
    [("steps", "text"), ("fill-mask", "text"), ("generate", "prompt")],
)
def test_commands_that_need_a_text_name_those_that_open_a_recording(regard, model, recording, command, name):
    result = regard(command, recording, "--model", model)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"regard: {name}: expected a text, because ")
    assert "`regard show`, `heads` and `segments` open a recording" in result.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["translate"],
        ["classify"],
        ["evaluate"],
        ["evaluate", "--reference", "-"],
        ["score"],
    ],
    ids=" ".join,
)
def test_commands_that_read_files_of_texts_name_the_one_that_opens_it(regard, model, recording, arguments):
    options = [] if arguments == ["score"] else ["--model", model]
    result = regard(*arguments, recording, *options)
    assert (result.code, result.out) == (2, "")
    assert result.err == f"regard: {recording}: expected a text file, got a recording; `regard show` opens it\n"


def test_a_text_about_recordings_is_a_text(regard, model, tmp_path):
    result = regard("show", "Open run.regard with regard serve.", "--model", model, "-o", tmp_path / "a.html")
    assert result.code == 0, result.err
    both = regard("show", "a.regard", "--file", "b.regard", "--model", model)
    assert "expected a text or --file, got both" in both.err
