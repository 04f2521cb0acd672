"""`regard compare`: a page of two recordings."""

from __future__ import annotations

import json
import re

import pytest
import torch

import regard as package
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording


def save(path, seed=0, tokens=("a", "b", "c"), kind="encoder", title="A title", model="a model"):
    generator = torch.Generator().manual_seed(seed)
    query, key = (torch.randn(1, 2, len(tokens), 4, generator=generator) for _ in range(2))
    layer = Layer(f"{kind}.0", kind, package.weights(query, key), tokens, tokens)
    Recording(title, model, (layer,)).save(path)
    return path


def header(page):
    text = page.read_text(encoding="utf-8")
    return json.loads(re.search(r'id="recording">(.*?)</script>', text, re.S)[1])


def test_two_recordings_become_one_page(regard, tmp_path):
    one, other = save(tmp_path / "one.regard"), save(tmp_path / "other.regard", 1, ("a", "c"), title="Another")
    result = regard("compare", one, other, "--output", tmp_path / "both.html")
    assert result.code == 0, result.err
    assert result.out.rstrip().endswith(str(tmp_path / "both.html"))
    header_of_page = header(tmp_path / "both.html")
    assert (header_of_page["title"], header_of_page["compare_with"]["title"]) == ("A title", "Another")
    assert [
        each["tokens"] for each in (*header_of_page["sequences"], *header_of_page["compare_with"]["sequences"])
    ] == [
        ["a", "b", "c"],
        ["a", "c"],
    ]


def test_recordings_with_equal_titles_and_models_are_named_by_their_files(regard, tmp_path):
    one, other = save(tmp_path / "before.regard"), save(tmp_path / "after.regard", 1)
    result = regard("compare", one, other, "-o", tmp_path / "both.html")
    assert result.code == 0, result.err
    header_of_page = header(tmp_path / "both.html")
    assert (header_of_page["model"], header_of_page["compare_with"]["model"]) == (
        "a model before.regard",
        "a model after.regard",
    )


def test_invalid_arguments_give_one_message_and_code_2(regard, tmp_path):
    one = save(tmp_path / "one.regard")
    decoder = save(tmp_path / "decoder.regard", kind="decoder")
    (tmp_path / "text.regard").write_text("no recording")
    for arguments, message in [
        ([one, tmp_path / "nowhere.regard"], "nowhere.regard: no such file"),
        (
            [one, tmp_path / "text.regard"],
            "text.regard: expected a recording, got a damaged file or one of another kind",
        ),
        (
            [one, decoder],
            "decoder.regard: expected a layer with the name or kind (encoder) of one in the first recording",
        ),
        ([one, one, "-o", tmp_path / "no" / "both.html"], "could not be written"),
        ([one, one, "-o", tmp_path / "both.csv"], "--output: expected a name with .html, .htm, got 'both.csv'"),
    ]:
        result = regard("compare", "-o", tmp_path / "both.html", *arguments)
        assert result.code == 2
        assert message in " ".join(result.err.split())
        assert result.err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["decoder.regard", "one.regard", "text.regard"]


@pytest.mark.parametrize("argument", ["--help", "-h"])
def test_the_help_names_the_sources_of_recordings(regard, argument):
    result = regard("compare", argument)
    assert result.code == 0
    for taught in ('.save("second.regard")', "regard.watch(model)", "regard compare first.regard second.regard"):
        assert taught in " ".join(result.out.split())
