"""`regard generate`: text from sampling and from search."""

from __future__ import annotations

import json

import pytest

from helpers.char_model import trained_writer
from regard.models import save_model


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    """The folder of a language model trained on one line until it repeats it."""
    folder = tmp_path_factory.mktemp("gpt")
    writer = trained_writer()
    save_model(folder, writer.model, writer.tokenizer)
    return folder


def test_a_text_is_continued(regard, writer):
    result = regard("generate", "abcde", "--model", writer, "--seed", 1, "--max-new-tokens", 30)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("abcde")
    assert len(result.out) == len("abcde") + 30 + 1
    again = regard("generate", "-", "--model", writer, "--seed", 1, "--max-new-tokens", 30, stdin="abcde")
    assert again.out == result.out
    hot = ("--temperature", 2.0, "--max-new-tokens", 30)
    drawn = [regard("generate", "abcde", "--model", writer, "--seed", seed, *hot).out for seed in (1, 2)]
    assert drawn[0] != drawn[1]


def test_the_most_likely_text_needs_no_seed(regard, writer):
    options = ("generate", "abcde", "--model", writer, "--max-new-tokens", 9)
    assert regard(*options, "--temperature", 0).out == "abcdefghijklmn\n"
    assert regard(*options, "--beam", 3).out == "abcdefghijklmn\n"
    out = regard("generate", "abcde", "--model", writer, "--temperature", 0).out
    assert len(out) == len("abcde") + 200 + 1  # though the context has 60 tokens


def test_several_as_json_in_a_file(regard, writer, tmp_path):
    drawing = ("--seed", 1, "--temperature", 2, "--max-new-tokens", 5)
    options = ("--num-samples", 3, "--json", *drawing, "-o", tmp_path / "out")
    assert regard("generate", "ab", "--model", writer, *options).out == ""
    actual = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [each["prompt"] for each in actual] == ["ab"] * 3
    assert len({each["text"] for each in actual}) > 1
    plain = regard("generate", "ab", "--model", writer, "--num-samples", 2, *options[3:-2]).out
    assert plain == f"ab{actual[0]['text']}\n---\nab{actual[1]['text']}\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--beam", "2", "--top-k", "3"], "--top-k: not used with --beam, which searches for one text; leave it out"),
        (["--beam", "2", "--num-samples", "2"], "--num-samples: not used with --beam, which searches for one text"),
        (["--temperature", "0", "--seed", "3"], "--seed: not used with --temperature 0"),
        (["--temperature", "-1"], "should be greater than or equal to"),
    ],
)
def test_invalid_options_are_refused(regard, writer, options, words):
    result = regard("generate", "abcde", "--model", writer, *options)
    assert (result.code, result.out) == (2, "")
    assert words in result.err


def test_invalid_prompts_are_refused(regard, writer):
    result = regard("generate", "abcde" * 20, "--model", writer)
    assert result.code == 2
    assert "prompt: expected at most 59 tokens, got 101; shorten it" in result.err
    assert "texts: expected characters of the vocabulary, got 'X'" in regard("generate", "X", "--model", writer).err


def test_a_prompt_of_control_characters_is_refused(regard, writer):
    result = regard("generate", "-", "--model", writer, stdin=b"a\xff")
    assert (result.code, result.out) == (2, "")
    assert "standard input, line 1: expected UTF-8, got 0xff at byte 2 of the line" in result.err


def test_the_most_likely_text_is_written_once(regard, tmp_path):
    result = regard("generate", "a", "--model", tmp_path, "--temperature", 0, "--num-samples", 5)
    assert result.code == 2
    assert "--num-samples: not used with --temperature 0, which always generates the same text" in result.err
