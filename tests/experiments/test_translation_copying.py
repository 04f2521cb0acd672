"""The script that counts what a translator copies runs on small data, and counts right."""

from __future__ import annotations

import gzip
import json
import sys

import pytest

from helpers.forked import run_script
from regard.pipelines.translation import Translation

PAIRS = [
    ("I saw Tom.", "Ich sah Tom."),
    ("I have 24 books.", "Ich habe 24 Bücher."),
    ("See you Monday.", "Bis Montag."),
]


@pytest.fixture
def script(root, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(root / "experiments"), *sys.path])
    import translation_copying

    return translation_copying


def test_it_writes_the_shares(root, tmp_path):
    with gzip.open(tmp_path / "test.tsv.gz", "wt", encoding="utf-8") as file:
        file.writelines("\t".join(pair) + "\n" for pair in PAIRS)
    arguments = tmp_path, "--count", 3, "--output", tmp_path / "result.json"
    completed = run_script(root / "experiments/translation_copying.py", *arguments, folder=tmp_path)
    assert completed.code == 0, completed.err
    assert "I was born on October 17, 1983. → Ich wurde am 17. Oktober 1983 geboren." in completed.out
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert result["shares"].keys() == {"numbers", "names", "sentences", "marked"}
    assert all(0 <= share <= 1 for share in result["shares"].values())
    assert result["scores"]["bleu"] > 20


def test_what_must_arrive_is_held_out(script):
    sentences = script.held_out(PAIRS, 60)
    assert {name for sentence in sentences for name in sentence.names} & set(script.HELD_OUT["masculine"])
    for sentence in sentences:
        assert sentence.values or sentence.names
        assert all(name in sentence.source for name in sentence.names)


def test_shares_are_those_of_what_arrives(script):
    sentences = [
        script.Sentence("I saw Ansgar in May.", script.values(script.ENGLISH, "in May"), ["Ansgar"]),
        script.Sentence("I have 1,234 and 5.", script.values(script.ENGLISH, "1,234 and 5"), []),
        script.Sentence("I saw Ansgar and Xaver.", script.values(script.ENGLISH, ""), ["Ansgar", "Xaver"]),
    ]
    texts = {"Ich sah Ansgars Mai.": True, "Ich habe 1.243 und 5.": True, "Ich sah Xaver.": False}
    translations = [Translation(text, 0.0, (), is_reliable=is_reliable) for text, is_reliable in texts.items()]
    shares = script.copied(sentences, translations)
    assert shares == {"numbers": 2 / 3, "names": 2 / 3, "sentences": 1 / 3, "marked": 1 / 2}
