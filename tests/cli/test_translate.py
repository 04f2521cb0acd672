"""Lines in, lines out: in order, one for one, in every output format."""

from __future__ import annotations

import gzip
import json
import re

import pytest
import torch

from regard.generation.model_states import EncoderDecoderState
from regard.text import Tokenizer

LINES = ["the cat sat", "", "where is the station?", "   ", "the mat"]
TEXT = "".join(f"{line}\n" for line in LINES)


def test_every_line_has_its_line_and_an_empty_one_stays_empty(regard, model):
    result = regard("translate", "--model", model, stdin=TEXT)
    assert (result.code, re.sub("note: cut .*\n", "", result.err)) == (0, "")
    actual = result.out.split("\n")
    assert actual.pop() == ""
    assert [bool(line) for line in actual] == [True, False, True, False, True]


def test_files_and_pipes_have_the_same_output(regard, model, tmp_path):
    piped = regard("translate", "--model", model, stdin=TEXT).out
    (tmp_path / "a.en").write_text("the cat sat\n\n")
    (tmp_path / "b.en.gz").write_bytes(gzip.compress(b"where is the station?\n   \nthe mat"))
    assert regard("translate", tmp_path / "a.en", tmp_path / "b.en.gz", "--model", model).out == piped
    result = regard(
        "translate", "-", tmp_path / "b.en.gz", "--model", model, "-o", tmp_path / "out", stdin="the cat sat\n\n"
    )
    assert (result.code, result.out) == (0, "")
    assert (tmp_path / "out").read_text(encoding="utf-8") == piped


def test_the_chunk_in_which_a_line_is_read_does_not_matter(regard, model, monkeypatch):
    full = regard("translate", "--model", model, stdin=TEXT).out
    monkeypatch.setattr("regard.cli.translate.CHUNK_LINES", 2)
    assert regard("translate", "--model", model, stdin=TEXT).out == full


def test_json_has_text_score_and_tokens(regard, model):
    plain = regard("translate", "--model", model, stdin=TEXT).out.split("\n")
    result = regard("translate", "--model", model, "--json", "--nbest", 3, stdin=TEXT)
    rows = [json.loads(line) for line in result.out.splitlines()]
    assert [(row["line"], row["source"]) for row in rows] == list(enumerate(LINES, start=1))
    for row, line in zip(rows, plain[:-1], strict=True):
        actual = row["translations"]
        assert " ".join(actual[0]["text"].split()) == " ".join(line.split())
        scores = [each["score"] for each in actual]
        assert scores == sorted(scores, reverse=True)
        assert len(actual) == (3 if line else 1)
        assert all(isinstance(token, str) for each in actual for token in each["tokens"])


def test_nbest_and_scores_are_columns(regard, model):
    result = regard("translate", "--model", model, "--nbest", 2, "--scores", stdin="the cat sat\n\nthe mat\n")
    rows = [line.split("\t") for line in result.out.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "2", "3", "3"]
    assert float(rows[0][1]) >= float(rows[1][1])
    assert [row[2] for row in rows] == ["nan"] * 5  # the model has no confidence.json
    assert rows[2][3:] == ["", ""]
    only = regard("translate", "--model", model, "--scores", stdin="the cat sat\n").out.rstrip("\n").split("\t")
    assert only == rows[0][1:]


def test_json_has_scores_with_and_without_the_option(regard, model):
    json_lines = [regard("translate", "--model", model, "--json", *more, stdin=TEXT).out for more in ([], ["--scores"])]
    assert json_lines[0] == json_lines[1]
    assert all("score" in json.loads(line)["translations"][0] for line in json_lines[0].splitlines())


def test_a_seed_draws_the_same_samples(regard, model):
    def draw(seed: int) -> str:
        result = regard(
            "translate", "--model", model, "--sample", "--seed", seed, "--top-k", 50, "--top-p", 0.9, stdin=TEXT
        )
        assert result.code == 0, result.err
        return result.out

    assert draw(1) == draw(1) != draw(2)


def test_the_seed_is_not_reset_between_lines(regard, model, monkeypatch):
    monkeypatch.setattr("regard.cli.translate.CHUNK_LINES", 1)
    drawing = ["--sample", "--seed", 1, "--temperature", 5]
    drawn = regard("translate", "--model", model, *drawing, stdin="yes.\n" * 4).out.split("\n")[:-1]
    assert len(drawn) == len(set(drawn)) == 4


def test_beam_sizes_one_and_five_differ(regard, model):
    def scores(beam: int) -> list[float]:
        result = regard("translate", "--model", model, "--beam", beam, "--scores", stdin="the cat sat\nthe mat\n")
        return [float(line.split("\t")[0]) for line in result.out.splitlines()]

    assert sum(scores(5)) > sum(scores(1))


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (["missing.en"], "", "missing.en: no such file"),
        ([], b"good\nb\xfcd\n", "standard input, line 2: expected UTF-8, got 0xfc at byte 2 of the line"),
        (
            ["--output", "no/such/folder/out"],
            "x\n",
            "no/such/folder/out: could not be written: there is no folder no/such/folder; make it first",
        ),
        (["--model", "nowhere"], "x\n", "nowhere"),
        (["--temperature", "0.5"], "x\n", "--temperature: used only with --sample; leave it out"),
        (
            ["--sample", "--beam", "7", "--length-penalty", "4"],
            "x\n",
            "--beam, --length-penalty: not used with --sample; leave them out",
        ),
        (["--sample", "--top-p", "0"], "x\n", "--top-p: expected a finite number above 0 and at most 1, got 0.0"),
        (["--nbest", "9"], "x\n", "nbest"),
    ],
)
def test_invalid_arguments_give_one_message_and_code_2(regard, model, arguments, stdin, message):
    result = regard("translate", "--model", model, *arguments, stdin=stdin)
    assert result.code == 2
    assert message in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("chunk", [1, 1024])
def test_a_sentence_that_is_too_long_is_named(regard, model, monkeypatch, chunk):
    monkeypatch.setattr("regard.cli.translate.CHUNK_LINES", chunk)
    result = regard("translate", "--model", model, "--beam", 1, stdin=f"the mat\n{'cat ' * 500}\n")
    assert result.code == 2
    assert "regard: standard input, line 2: expected sentences of at most" in result.err


def test_of_several_files_the_one_with_the_long_sentence_is_named(regard, model, tmp_path):
    good, bad = tmp_path / "good.en", tmp_path / "bad.en"
    good.write_text("the mat\nthe cat\n")
    bad.write_text(f"the mat\n{'cat ' * 500}\n")
    result = regard("translate", "--model", model, "--beam", 1, good, bad)
    assert result.code == 2
    assert f"regard: {bad}, line 2: expected sentences of at most" in result.err


def test_a_dash_is_standard_output(regard, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = regard("translate", "--model", model, "-o", "-", stdin="the mat\n")
    assert len(result.out.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_translations_of_low_confidence_are_listed_on_stderr(regard):
    lines = ["Where is the train station?", "The algorithm sorts the array in linearithmic time.", "Thank you."]
    text = "".join(f"{line}\n" for line in lines)
    result = regard("translate", stdin=text)  # by the bundled model
    assert re.fullmatch(r"note: 1 of 3 translations may be wrong: line 2 \(confidence 0\.[0-4]\d\)\n", result.err)
    assert len(result.out.splitlines()) == 3
    rows = [line.split("\t") for line in regard("translate", "--scores", stdin=text).out.splitlines()]
    objects = map(json.loads, regard("translate", "--json", stdin=text).out.splitlines())
    best = [row["translations"][0] for row in objects]
    assert [each["is_reliable"] for each in best] == [True, False, True]
    assert [float(row[1]) for row in rows] == pytest.approx([each["confidence"] for each in best], abs=1e-4)
    assert regard("translate", stdin=lines[0]).err == ""


@pytest.fixture
def without_numbers(monkeypatch):
    """The bundled model, whose translations lose each digit."""
    decode = Tokenizer.decode
    monkeypatch.setattr(
        Tokenizer, "decode", lambda *args, **options: [re.sub(r"\d", "", text) for text in decode(*args, **options)]
    )


@pytest.mark.usefixtures("without_numbers")
def test_a_translation_without_a_number_of_its_source_is_marked(regard):
    text = "Thank you.\nI am 24 years old.\n"
    result = regard("translate", "--json", stdin=text)
    thanks, age = (json.loads(line)["translations"][0] for line in result.out.splitlines())
    assert age["confidence"] > 0.5
    assert (age["missing"], age["is_reliable"]) == (["24"], False)
    assert (thanks["missing"], thanks["is_reliable"]) == ([], True)
    mark = f"confidence {age['confidence']:.2f}, without 24"
    assert result.err == f"note: 1 of 2 translations may be wrong: line 2 ({mark})\n"
    rows = [line.split("\t") for line in regard("translate", "--scores", stdin=text).out.splitlines()]
    assert [row[2:] for row in rows] == [["", thanks["text"]], ["24", age["text"]]]


@pytest.mark.usefixtures("without_numbers")
def test_sampled_translations_are_marked_without_a_confidence(regard):
    result = regard("translate", "--sample", "--top-k", 1, stdin="I am 24 years old.\n")
    assert result.err == "note: 1 of 1 translations may be wrong: line 1 (without 24)\n"


def test_truncated_translations_get_a_note(regard, model, monkeypatch):
    one = regard("translate", "--json", stdin="The cat sat.\n")  # by the bundled model
    assert json.loads(one.out)["translations"][0]["finished"]
    assert "cut" not in one.err
    plain = EncoderDecoderState.__init__

    def short(self, *args, max_new_tokens, **kwargs):
        plain(self, *args, **kwargs, max_new_tokens=torch.ones_like(max_new_tokens))

    monkeypatch.setattr(EncoderDecoderState, "__init__", short)
    result = regard("translate", "--model", model, "--json", stdin="the cat sat\n\n")
    actual = [json.loads(line)["translations"][0]["finished"] for line in result.out.splitlines()]
    assert actual == [False, True]
    assert "note: cut at the length limit: the translation of standard input, line 1\n" in result.err


def test_all_sentences_of_a_line_are_translated(regard, model):
    result = regard("translate", "--model", model, "--beam", 1, "--json", stdin="the cat sat on the mat. " * 20)
    alone = regard("translate", "--model", model, "--beam", 1, "--json", stdin="the cat sat on the mat.")
    full, part = (json.loads(each.out)["translations"][0]["tokens"] for each in (result, alone))
    assert len(full) > 3 * len(part)


def test_nothing_is_left_of_an_output_that_was_refused(regard, model, tmp_path):
    (tmp_path / "in").write_bytes(b"fine\n\xff\n")
    (tmp_path / "out").write_text("before")
    assert regard("translate", "--model", model, tmp_path / "in", "-o", tmp_path / "out").code == 2
    assert (tmp_path / "out").read_text() == "before"
    assert {path.name for path in tmp_path.iterdir()} == {"in", "out"}


def test_a_text_instead_of_a_file_gets_the_command(regard):
    result = regard("translate", "Where is the station?")
    assert result.code == 2
    assert result.err == (
        "regard: Where is the station?: no such file; to translate a text, write "
        "`echo 'Where is the station?' | regard translate`\n"
    )


def test_files_are_checked_before_the_first_line_is_translated(regard, model, tmp_path, monkeypatch):
    monkeypatch.setattr("regard.cli.translate.CHUNK_LINES", 1)
    monkeypatch.setattr("regard.pipelines.Translator.translate", None)
    (tmp_path / "a.en").write_text("the cat\n" + "the cat sat on the mat " * 9 + "\n")
    result = regard("translate", tmp_path / "a.en", "--model", model)
    assert (result.code, result.out) == (2, "")
    assert "a.en, line 2: expected sentences of at most 31 tokens, got one of " in result.err


def test_empty_lines_are_not_counted_as_translations(regard):
    result = regard("translate", stdin="Thank you.\n\nQuantum chromodynamics confines colour-charged partons.\n")
    assert re.fullmatch(r"note: 1 of 2 translations may be wrong: line 3 \(confidence 0\.[0-4]\d\)\n", result.err)


def test_lines_of_pairs_get_a_note(regard, model):
    result = regard("translate", "--model", model, stdin="the cat\tdie Katze\nthe mat\n")
    assert "note: 1 line contains a tab; `cut -f1 FILE | regard translate` translates the first column" in result.err


@pytest.mark.parametrize("command", ["translate", "classify", "evaluate"])
def test_a_command_does_not_overwrite_its_input(regard, model, tmp_path, command):
    path = tmp_path / "a.tsv"
    path.write_text("one\teins\n")
    result = regard(command, path, "-o", path, "--model", model)
    if command != "classify":  # which refuses this model first
        assert f"--output: expected another file than the input, got {path}" in result.err
    assert result.code == 2
    assert path.read_text() == "one\teins\n"
