"""The commands with models of transformers and with the recurrent one."""

from __future__ import annotations

import io
import json
import sys
from itertools import pairwise

import pytest
import torch

from helpers.sentencepiece_models import write_marian
from helpers.transformers_models import gpt2, llama, marian
from regard.models import RNNSearch, RNNSearchConfig, save_model
from regard.pipelines import Translator
from regard.text.tokenizer import train_bpe, train_char, train_translation_bpe

TEXTS = ["the cat sat on the mat", "where is the station?"]


@pytest.fixture
def opus(tmp_path):
    """A folder with an OPUS-MT model with random weights, as transformers saves it."""
    marian(vocab_size=write_marian(tmp_path)).save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory):
    """The folder of an RNNsearch with random weights."""
    folder = tmp_path_factory.mktemp("recurrent")
    tokenizer = train_translation_bpe(["the cat sat on the mat", "wo ist der Bahnhof?"], vocab_size=300)
    torch.manual_seed(0)
    save_model(folder, RNNSearch(RNNSearchConfig(tokenizer.vocab_size, d_model=16, hidden_size=16)), tokenizer)
    return folder


@pytest.mark.parametrize("kind", ["opus", "recurrent"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_dtype_option_of_translate(regard, request, kind, dtype):
    folder = request.getfixturevalue(kind)
    options = ("--model", folder, "--dtype", dtype, "--beam", 2, "--json")
    result = regard("translate", *options, stdin="".join(f"{text}\n" for text in TEXTS))
    assert result.code == 0, result.err
    actual = [json.loads(line)["translations"][0] for line in result.out.splitlines()]
    expected = [
        best[0] for best in Translator.load(folder, dtype=getattr(torch, dtype)).translate(TEXTS, beam=2, nbest=1)
    ]
    assert [(each["text"], each["score"]) for each in actual] == [(each.text, each.score) for each in expected]


@pytest.mark.parametrize("kind", [gpt2, llama])
def test_texts_are_continued_as_by_transformers(regard, tmp_path, kind):
    tokenizer = train_bpe(TEXTS, vocab_size=300, sample_by="document")
    model = kind(vocab_size=tokenizer.vocab_size, bos_token_id=1, eos_token_id=2)
    model.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    options = ("--temperature", 0, "--max-new-tokens", 8, "--dtype", "float32")
    result = regard("generate", "the cat", "--model", tmp_path, *options)
    assert result.code == 0, result.err
    (prompt_ids,) = tokenizer.encode_prompts(["the cat"])
    made = model.generate(torch.tensor([prompt_ids]), do_sample=False, max_new_tokens=8)[0, len(prompt_ids) :]
    assert result.out == f"the cat{tokenizer.decode([made.tolist()])[0]}\n"


def test_a_recurrent_translator_is_evaluated_and_has_one_head(regard, recurrent, tmp_path):
    pairs = tmp_path / "test.tsv"
    pairs.write_text("".join(f"{text}\t{text}\n" for text in TEXTS))
    result = regard("evaluate", pairs, "--model", recurrent, "--beam", 1, "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["sentences"] == 2
    result = regard("heads", TEXTS[0], "--model", recurrent)
    assert result.code == 0, result.err
    assert [row.split()[:2] for row in result.out.splitlines()[1:] if row] == [
        [measure, "cross.0/0"] for measure in ("first_token", "separator", "entropy")
    ]


def test_output_is_flushed_token_by_token(regard, tmp_path, monkeypatch):
    """Each token is printed before the next is generated."""
    tokenizer = train_char(TEXTS, sample_by="document")
    gpt2(vocab_size=tokenizer.vocab_size, eos_token_id=None).save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    snapshots = []

    class Screen(io.StringIO):
        def flush(self) -> None:
            snapshots.append(self.getvalue())

    monkeypatch.setattr(sys, "stdout", Screen())
    regard("generate", "the cat", "--model", tmp_path, "--seed", 1, "--max-new-tokens", 5)
    shown = list(dict.fromkeys(snapshots))
    assert len(shown) >= 5, shown
    assert all(after.startswith(before) for before, after in pairwise(shown))


def test_an_unsupported_model_is_refused_before_its_texts_are_read(regard, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "texts").write_text("a text without a tab\n")
    result = regard("evaluate", tmp_path / "texts", "--model", tmp_path)
    assert (result.code, result.out) == (2, "")
    assert (
        "model_type: expected one of bert, gemma, gpt2, llama, marian, mistral, pegasus, qwen2, roberta, got 't5'"
        in result.err
    )


def test_a_model_of_another_kind_is_refused_with_its_command(regard, recurrent, tmp_path):
    gpt2().save_pretrained(tmp_path)
    for verb, folder, message in (
        ("generate", recurrent, "expected a language model, got a translator in {}; use `regard translate`"),
        ("translate", tmp_path, "expected a translator, got a language model in {}; use `regard generate`"),
    ):
        result = regard(verb, "--model", folder, stdin="a\n")
        assert (result.code, result.out) == (2, "")
        assert result.err == f"regard: --model: {message.format(folder)}\n"
