"""A translation model is trained on derived pairs and may start from another model; both resume bit for bit."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from helpers.training_runs import bytes_of, make_recipe, rows
from regard.data.pairs import tokenize_pairs
from regard.errors import InvalidArgument, InvalidCheckpoint, InvalidRecipe
from regard.models import Bert, BertConfig, Transformer, TransformerConfig, load_model, save_model
from regard.text.tokenizer import Tokenizer, train_bpe, train_translation_bpe
from regard.training import load_recipe, train

SIZES: dict[str, Any] = {"d_model": 16, "num_heads": 2, "d_ff": 16}


@pytest.fixture
def names(tmp_path: Path) -> Path:
    path = tmp_path / "names.tsv"
    path.write_text("".join(f"I saw Tom {n} times.\tIch sah Tom {n} Mal.\n" for n in range(2, 42)))
    return path


def test_derived_pairs_follow_those_of_the_files(names: Path, tmp_path: Path) -> None:
    tokenizer = train_translation_bpe(names.read_text().splitlines(), 300)
    plain = tokenize_pairs([names], tokenizer, tmp_path / "cache")
    derived = tokenize_pairs([names], tokenizer, tmp_path / "cache", substitutions=0.5)
    assert (plain.num_derived, plain.num_with) == (0, {})
    assert (len(derived), derived.num_derived) == (60, 20)
    assert derived.num_with == {"numbers": 40, "dates": 0, "names": 40, "places": 0}
    sides = derived.source, derived.target
    texts = [tokenizer.decode([side[row].tolist() for row in range(len(side))]) for side in sides]
    pairs = list(zip(*texts, strict=True))
    assert ["\t".join(pair) for pair in pairs[:40]] == names.read_text().splitlines()
    for source, target in pairs[40:]:
        match = re.fullmatch(r"I saw (.+) ([\d,]+) times\.", source)
        assert match
        name, number = match.groups()
        assert target == f"Ich sah {name} {number.replace(',', '.')} Mal."
    again = tokenize_pairs([names], tokenizer, tmp_path / "other", substitutions=0.5)
    assert again.source.ids.tolist() == derived.source.ids.tolist()
    other = tokenize_pairs([names], tokenizer, tmp_path / "cache", substitutions=0.5, seed=2)
    assert other.source.ids.tolist() != derived.source.ids.tolist()


def test_a_training_with_derived_pairs_resumes_bit_for_bit(keys: dict[str, Any], names: Path, tmp_path: Path) -> None:
    keys["data"] |= {"train": str(names), "substitutions": 2}
    keys["model"] |= {"dropout": 0.2}
    keys["trainer"] |= {"max_steps": 8}
    train(make_recipe(keys, "--output_dir", str(tmp_path / "whole")))
    parts = "--output_dir", str(tmp_path / "parts")
    train(make_recipe(keys, *parts, "--trainer.max_steps", "3"))
    train(make_recipe(keys, *parts), resume=True)
    assert bytes_of(tmp_path / "parts") == bytes_of(tmp_path / "whole")
    log = (tmp_path / "whole" / "train.log").read_text()
    assert "training: 120 pairs" in log
    assert "substitutions: 80 pairs, derived from 40 with numbers, 0 with dates, 40 with names, 0 with places" in log
    assert "substitutions: no pair has dates that are the same on both sides, so none are derived" in log
    with pytest.raises(InvalidRecipe, match=r"data\.substitutions: expected 2\.0 as in the run, got 1\.0"):
        train(make_recipe(keys, *parts, "--data.substitutions=1"), resume=True)


def test_a_training_starts_from_another_model(keys: dict[str, Any], tmp_path: Path) -> None:
    first = train(make_recipe(keys, "--output_dir", str(tmp_path / "first"))).output_dir / "last"
    keys["model"] = {"checkpoint": str(first), "dropout": 0.3}
    del keys["tokenizer"]
    keys["optimizer"] = {"learning_rate": 1e-12}
    tuned = train(make_recipe(keys, "--trainer.max_steps", "1", "--output_dir", str(tmp_path / "tuned"))).output_dir
    assert load_model(tuned / "last").config.dropout == 0.3
    assert Tokenizer.load(tuned / "last").fingerprint == Tokenizer.load(first).fingerprint
    before, after = (float(rows(run)[-1]["valid_loss"]) for run in (first.parent, tuned))
    assert after == pytest.approx(before, abs=1e-4)
    train(make_recipe(keys, "--trainer.max_steps", "2", "--output_dir", str(tuned)), resume=True)
    assert load_recipe(tuned / "recipe.yaml").model.checkpoint == first


def test_the_name_of_the_bundled_model_is_its_folder(keys: dict[str, Any]) -> None:
    keys["model"], folder = {"checkpoint": "tatoeba-en-de"}, Path(str(files("regard"))) / "bundled" / "tatoeba-en-de"
    del keys["tokenizer"]
    assert make_recipe(keys).model.checkpoint == folder


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["--data.substitutions=-1"], "data.substitutions: expected a finite number of at least 0, got -1"),
        (["--data.substitutions=yes"], "data.substitutions: expected a number, got True"),
        (["--data.languages=[en, fr]"], "data.languages: expected one of en, de, got 'fr'"),
        (["--data.languages=en"], r"data.languages: expected \[en, de\] or \[de, en\], got 'en'"),
        (
            ["--data.languages=[de, de]", "--data.substitutions=1"],
            r"data.languages: expected \[en, de\] or \[de, en\], got \['de', 'de'\]",
        ),
        (
            ["--data.streaming=true", "--data.substitutions=1"],
            r"data.substitutions: expected 0 with data.streaming, got 1\.0; leave one out",
        ),
        (
            ["--attention_loss.alignment={file: a, weight: 1}", "--data.substitutions=1"],
            r"data.substitutions: expected 0 with attention_loss.alignment.file, got 1\.0; leave one out",
        ),
        (["--model.checkpoint=x"], "model.d_model: expected none with model.checkpoint, which decides it; leave one"),
    ],
)
def test_invalid_keys_are_named(keys: dict[str, Any], overrides: list[str], words: str) -> None:
    with pytest.raises(InvalidRecipe) as caught:
        make_recipe(keys, *overrides)
    assert re.search(words, str(caught.value), re.DOTALL), str(caught.value)


def test_unsuitable_models_are_refused(keys: dict[str, Any], tmp_path: Path) -> None:
    keys["model"] = {"checkpoint": str(tmp_path / "model")}
    del keys["tokenizer"]
    with pytest.raises(InvalidCheckpoint, match=r"model: expected a folder with"):
        make_recipe(keys)
    tokenizer = train_bpe(["a"], 270)
    save_model(tmp_path / "model", Bert(BertConfig(270, num_layers=1, **SIZES)), tokenizer)
    with pytest.raises(
        InvalidRecipe, match=r"tokenizer\.vocab_size: expected none with model\.checkpoint, .*, got 300;"
    ):
        make_recipe({**keys, "model": {"checkpoint": "tatoeba-en-de"}}, "--tokenizer.vocab_size=300")
    with pytest.raises(InvalidCheckpoint, match=r"folder: expected an encoder-decoder, got a BERT in "):
        make_recipe(keys)
    config = TransformerConfig(270, num_encoder_layers=1, num_decoder_layers=1, bos_id=0, eos_id=3, **SIZES)
    save_model(tmp_path / "model", Transformer(config), tokenizer)
    expected = (
        r"expected a model with the special tokens pad_id=0, bos_id=1, eos_id=2, got pad_id=0, bos_id=0, eos_id=3"
    )
    with pytest.raises(InvalidRecipe, match=rf"model\.checkpoint: {expected}"):
        make_recipe(keys)
    large = train_translation_bpe(["a"], 270)
    config = TransformerConfig(large.vocab_size - 1, num_encoder_layers=1, num_decoder_layers=1, max_seq_len=9, **SIZES)
    save_model(tmp_path / "model", Transformer(config), large)
    with pytest.raises(InvalidArgument, match=r"model: expected a tokenizer with at most 2\d\d tokens as in the model"):
        train(make_recipe(keys, "--data.max_length=8"))
    with pytest.raises(
        InvalidRecipe, match=r"data\.max_length: expected at most 8.* in the checkpoint's max_seq_len=9"
    ):
        make_recipe(keys, "--data.max_length=9")
