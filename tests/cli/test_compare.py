"""Two recordings in; a page of both out."""

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
    done = regard("compare", one, other, "--output", tmp_path / "both.html")
    assert done.code == 0, done.err
    assert done.out.rstrip().endswith(str(tmp_path / "both.html"))
    told = header(tmp_path / "both.html")
    assert (told["title"], told["compare_with"]["title"]) == ("A title", "Another")
    assert [each["tokens"] for each in (*told["sequences"], *told["compare_with"]["sequences"])] == [
        ["a", "b", "c"],
        ["a", "c"],
    ]


def test_what_has_one_title_and_one_model_is_told_apart_by_its_file(regard, tmp_path):
    one, other = save(tmp_path / "before.regard"), save(tmp_path / "after.regard", 1)
    done = regard("compare", one, other, "-o", tmp_path / "both.html")
    assert done.code == 0, done.err
    told = header(tmp_path / "both.html")
    assert (told["model"], told["compare_with"]["model"]) == ("a model before.regard", "a model after.regard")


def test_what_cannot_be_done_is_one_message_and_code_2(regard, tmp_path):
    one = save(tmp_path / "one.regard")
    decoder = save(tmp_path / "decoder.regard", kind="decoder")
    (tmp_path / "text.regard").write_text("no recording")
    for arguments, said in [
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
        done = regard("compare", "-o", tmp_path / "both.html", *arguments)
        assert done.code == 2
        assert said in " ".join(done.err.split())
        assert done.err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["decoder.regard", "one.regard", "text.regard"]


@pytest.mark.parametrize("argument", ["--help", "-h"])
def test_the_help_says_where_recordings_come_from(regard, argument):
    done = regard("compare", argument)
    assert done.code == 0
    for taught in ('.save("second.regard")', "regard.watch(model)", "regard compare first.regard second.regard"):
        assert taught in " ".join(done.out.split())
