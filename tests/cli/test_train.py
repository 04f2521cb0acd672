"""From a recipe and some pairs to a model that translates, by commands alone."""

from __future__ import annotations

import importlib
import sys

import pytest

RECIPE = """\
output_dir: {run}
data: {{folder: {folder}, train: pairs.tsv}}
tokenizer: {{vocab_size: 270}}
model: {{d_model: 16, num_heads: 2, num_encoder_layers: 1, num_decoder_layers: 1, d_ff: 32, max_seq_len: 32}}
trainer: {{max_steps: 9, accelerator: cpu}}
"""


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "pairs.tsv").write_text("the cat\tdie Katze\nthe mat\tdie Matte\n" * 20, encoding="utf-8")
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE.format(run=tmp_path / "run", folder=tmp_path), encoding="utf-8")
    return path


def test_a_recipe_becomes_a_model_and_goes_on(regard, recipe, tmp_path):
    done = regard("train", recipe, "--trainer.max_steps", 2, "--model.d_ff=64")
    assert done.code == 0, done.err
    assert "d_ff: 64" in (tmp_path / "run/recipe.yaml").read_text()
    assert regard("translate", "--model", tmp_path / "run/last", "--beam", 1, stdin="the cat\n").code == 0
    done = regard("train", recipe, "--model.d_ff=64", "--trainer.max_steps", 3, "--resume")
    assert done.code == 0, done.err
    assert "step 2" in done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--trainer.max_step", "3"], "trainer.max_step: no such key, did you mean 'trainer.max_steps'?"),
        (["--trainer.max_steps", "many"], "trainer.max_steps: expected a valid integer, got 'many'"),
        (["--trainer.max_steps"], "--trainer.max_steps: expected a value, got none"),
        (["--data.train", "nothing.tsv"], "nothing.tsv: no such file"),
        (["--resume"], "no run to resume"),
    ],
)
def test_what_cannot_be_done_is_one_message_and_code_2(regard, recipe, arguments, said):
    done = regard("train", recipe, *arguments)
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err


def test_a_missing_recipe_is_named(regard):
    done = regard("train", "missing.yaml")
    assert done.code == 2
    assert done.err.startswith("regard: missing.yaml: no such file; bundled recipes: multi30k-en-de, polarity, ")


@pytest.mark.parametrize("key", [["--trainer.max_steps", 3], ["--trainer.max_steps=3"]])
def test_a_key_before_the_recipe_is_refused(regard, recipe, key):
    done = regard("train", *key, recipe)
    assert done.code == 2
    assert f"RECIPE: expected the recipe before its keys, got {key[0]} first" in done.err


def test_a_missing_extra_is_named(regard, recipe, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    for name in [name for name in sys.modules if name.startswith("regard.training")]:
        monkeypatch.delitem(sys.modules, name)
    done = regard("train", recipe)
    assert done.code == 2
    assert done.err == "regard: training needs yaml: install it with `pip install 'regard[train]'`\n"


def test_ctrl_c_is_130(regard, recipe, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib.import_module("regard.training.trainer"), "train", interrupted)
    assert regard("train", recipe).code == 130
