"""A sentence in; its translation, a table and a page out."""

from __future__ import annotations

import pytest


def test_translation_table_and_page(regard, model, tmp_path):
    page = tmp_path / "attention.html"
    done = regard("look", "the cat sat", "--model", model, "--output", page)
    assert done.code == 0, done.err
    assert "cat" in done.out
    assert done.out.rstrip().endswith(str(page))
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_translation_of_ones_own_is_looked_at(regard, model, tmp_path):
    done = regard(
        "look", "the cat sat", "--translation", "die Katze [b]saß[/b]", "--model", model, "-o", tmp_path / "a.html"
    )
    assert done.code == 0, done.err
    assert done.out.startswith("die Katze [b]saß[/b]\n")
    assert "Katze" in done.out.partition("\n")[2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["  "], "TEXT: expected a sentence, but it is empty"),
        (["the cat", "--model", "nowhere"], "nowhere"),
        (["the cat", "--output", "no/such/folder/a.html"], "no/such/folder/a.html"),
    ],
)
def test_what_cannot_be_done_is_one_message_and_code_2(regard, model, arguments, said, tmp_path):
    done = regard("look", "--model", model, "--output", tmp_path / "a.html", *arguments)
    assert done.code == 2
    assert said in done.err
    assert list(tmp_path.iterdir()) == []
