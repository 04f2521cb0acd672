"""Each recipe trains a model that transformers loads with equal outputs, or the start of the run says why not."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest
import torch
import transformers
from typer.testing import CliRunner

from helpers.pairwise import sampled
from regard.cli.main import app
from regard.errors import InvalidRecipe
from regard.models import EncoderDecoder, load_model
from regard.training import Recipe, load_recipe, train
from regard.training.recipe_file import bundled_recipes

LLAMA = ("--model.architecture", "llama", "--model.positions", "rotary", "--model.tie_embeddings", "true")
RECIPES = {
    "multi30k-en-de": ((), "MarianMTModel"),
    "polarity": ((), "BertForSequenceClassification"),
    "shakespeare-characters": ((), "GPT2LMHeadModel"),
    "tatoeba-en-de": ((), "PegasusForConditionalGeneration"),
    "tatoeba-en-de-copy": ((), "PegasusForConditionalGeneration"),
    "tatoeba-masked-lm": ((), "BertForMaskedLM"),
    "tatoeba-rnn-search": ((), "expected 'regard' for an RNNSearch, got 'transformers', which has no such model"),
    "toy-causal-lm": (
        (),
        "in a checkpoint of GPT-2, got 'alibi'",
    ),
    "toy-causal-lm, llama": (LLAMA, "LlamaForCausalLM"),
    "toy-classification": ((), "BertForSequenceClassification"),
    "toy-masked-lm": (
        (),
        "in a checkpoint of BERT, got 'rotary'",
    ),
    "toy-masked-lm, learned": (("--model.positions", "learned"), "BertForMaskedLM"),
    "toy-tagging": ((), "BertForTokenClassification"),
    "toy-translation": ((), "PegasusForConditionalGeneration"),
}
"""For each recipe, keys that are changed, and the class of transformers or the reason why there is none."""
EXPORTED = [name for name, (_, expected) in RECIPES.items() if " " not in expected]
SHORT = ("--trainer.max_steps", "2", "--validation.every_n_steps", "2", "--optimizer.warmup_steps", "0",
         "--trainer.accelerator", "cpu", "--trainer.precision", "'32'", "--checkpoint.average_last", "0")  # fmt: skip
WORDS = ["red", "blue", "green", "one", "two", "three", "cats", "dogs", "birds", "and", "see", "like"]


def write_data(folder: Path, name: str) -> None:
    """Write small files with the names that a recipe has."""
    draw = random.Random(0)
    lines = [" ".join(draw.choices(WORDS, k=draw.randint(3, 8))) for _ in range(60)]
    recipe = load_recipe(name)
    paths = [*recipe.data.train, *(recipe.data.valid or ())]
    for path in paths:
        one_side = recipe.task in ("causal_lm", "masked_lm") or len(recipe.data.train) == 2
        classes = recipe.task == "classification"
        rows = lines if one_side else [f"{line}\t{draw.choice('ab') if classes else line.upper()}" for line in lines]
        text = ("\n".join(rows) + "\n").encode()
        (folder / path).write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def make(name: str, folder: Path, *changes: str) -> Recipe:
    recipe = name.partition(",")[0]
    options = [*RECIPES[name][0], *SHORT, "--output_dir", f"{folder}/run", *changes]
    if not recipe.startswith("toy"):
        write_data(folder, recipe)
        options += ["--data.folder", str(folder)]
    if recipe.startswith(("tatoeba", "multi30k")) and "copy" not in recipe:  # the small files have no larger vocabulary
        options += ["--tokenizer.vocab_size", "300"]
    return load_recipe(recipe, options)


def test_every_recipe_is_listed():
    assert {name.partition(",")[0] for name in RECIPES} == bundled_recipes().keys()


@pytest.mark.parametrize("name", RECIPES)
def test_the_start_says_whether_a_recipe_can_be_exported(name, tmp_path):
    recipe, expected = make(name, tmp_path), RECIPES[name][1]
    assert expected in recipe.describe_export()
    assert ("transformers does not have this model" in recipe.describe_export()) == (name not in EXPORTED)
    if name in EXPORTED:
        assert make(name, tmp_path, "--checkpoint.format", "transformers").checkpoint.format == "transformers"
    else:
        with pytest.raises(InvalidRecipe, match=r"checkpoint\.format: expected 'regard' for this model, got 'transf"):
            make(name, tmp_path, "--checkpoint.format", "transformers")


@torch.no_grad()
@pytest.mark.parametrize("name", sampled([*EXPORTED], 5))
def test_what_a_recipe_trains_has_equal_outputs_in_transformers(name, tmp_path):
    recipe = make(name, tmp_path)
    with torch.enable_grad():
        train(recipe)
    log = (tmp_path / "run/train.log").read_text(encoding="utf-8")
    assert recipe.describe_export() in log.splitlines()[0]
    done = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    expected_class = RECIPES[name][1]
    assert done.output == f"{tmp_path / 'out'}: {expected_class}\n"
    model = load_model(tmp_path / "run/best")
    reference, info = getattr(transformers, expected_class).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info.values()), info
    ids = torch.randint(4, model.config.vocab_size, (2, 11))
    if isinstance(model, EncoderDecoder):
        output, expected = reference(ids, decoder_input_ids=ids[:, :7]).logits, model(ids, ids[:, :7]).logits
    else:
        output, expected = reference(ids).logits, model(ids).logits
    torch.testing.assert_close(output, expected, rtol=0, atol=2e-5)


def test_a_run_can_write_the_format_of_transformers(tmp_path):
    recipe = make(
        "toy-translation", tmp_path, "--checkpoint.format", "transformers", "--validation.bleu_sentences", "2"
    )
    train(recipe)
    for folder in ("best", "last"):
        transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run" / folder)
        assert load_model(tmp_path / "run" / folder).config.d_model == 128


def test_a_dry_run_trains_nothing(tmp_path):
    command = ["train", "toy-causal-lm", "--dry-run", "--output_dir", str(tmp_path / "run")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0
    first, second = done.output.splitlines()
    assert first == f"{tmp_path / 'run'}: causal_lm, 2000 steps"
    assert second.startswith("export: transformers does not have this model; positions: expected 'learned' or ")
    assert not (tmp_path / "run").exists()
