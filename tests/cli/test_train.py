"""From a recipe and some pairs to a model that translates, by commands alone."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from regard.training.recipe_file import bundled_recipes

RECIPE = """\
output_dir: {run}
data: {{folder: {folder}, train: pairs.tsv, max_length: 31}}
tokenizer: {{vocab_size: 270}}
model: {{d_model: 16, num_heads: 2, num_encoder_layers: 1, num_decoder_layers: 1, d_ff: 32, max_seq_len: 32}}
trainer: {{max_steps: 9, accelerator: cpu}}
"""
SHORT = ["--trainer.max_steps", 2, "--trainer.accelerator", "cpu", "--validation.bleu_sentences", 2]
SMALL = ["--model.d_model", 16, "--model.d_ff", 16]


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "pairs.tsv").write_text("the cat\tdie Katze\nthe mat\tdie Matte\n" * 20, encoding="utf-8")
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE.format(run=tmp_path / "run", folder=tmp_path), encoding="utf-8")
    return path


def test_a_recipe_becomes_a_model_and_a_run_folder_is_resumed(regard, recipe, tmp_path):
    result = regard("train", recipe, "--trainer.max_steps", 2, "--model.d_ff=64")
    assert result.code == 0, result.err
    assert "d_ff: 64" in (tmp_path / "run/recipe.yaml").read_text()
    assert regard("translate", "--model", tmp_path / "run/last", "--beam", 1, stdin="the cat\n").code == 0
    result = regard("train", tmp_path / "run")
    assert result.code == 2
    assert "expected an empty folder, got a run; add --resume (Python: resume=True) to continue it" in result.err
    result = regard("train", recipe, "--model.d_ff=64", "--trainer.max_steps", 3, "--resume")
    assert result.code == 0, result.err
    assert "resuming at step 2" in result.err
    result = regard("train", tmp_path / "run", "--trainer.max_steps", 4, "--resume")
    assert result.code == 0, result.err
    assert "resuming at step 3" in result.err


@pytest.mark.parametrize("folder", [[], ["--data.folder", "."]])
def test_a_bundled_recipe_trains_on_own_files(regard, tmp_path, monkeypatch, folder):
    monkeypatch.chdir(tmp_path)
    for name, count in (("pairs", 500), ("valid", 20)):
        lines = [f"{number} black cats\t{number} schwarze Katzen\n" for number in range(count)]
        Path(f"{name}.tsv").write_text("".join(lines), encoding="utf-8")
    arguments = [*folder, "--data.train", "pairs.tsv", "--data.valid", "valid.tsv", "--output_dir", "runs/mine"]
    result = regard("train", "toy-translation", *arguments, *SHORT, *SMALL)
    assert result.code == 0, result.err
    assert "training: 500 pairs" in result.err
    assert "validation: 20 pairs" in result.err
    assert Path("runs/mine/best").is_dir()


def test_the_validation_file_of_a_bundled_recipe_does_not_stay_with_own_training_files(regard, recipe, monkeypatch):
    monkeypatch.chdir(recipe.parent)
    result = regard("train", "toy-translation", "--data.train", "pairs.tsv", "--data.folder", ".", *SHORT)
    assert result.code == 2
    assert result.err.startswith(
        "regard: data.valid: no such file: pairs.valid.tsv.gz; change data.valid or data.folder"
    )


def test_the_error_for_missing_data_of_a_bundled_recipe_names_their_source(regard, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = regard("train", "tatoeba-en-de")
    assert result.code == 2
    assert (
        f"data.train: no such file: train.tsv.gz; change data.train or data.folder, which is {tmp_path}" in result.err
    )
    assert "add `--data.folder FOLDER`; FOLDER holds train.tsv.gz, valid.tsv.gz and test.tsv.gz: source, " in result.err
    assert "https://www.manythings.org/anki" in result.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--trainer.max_step", "3"], "regard: trainer.max_step: no such key, did you mean 'trainer.max_steps'?\n"),
        (["--device", "cpu"], "regard: device: no such key, did you mean 'trainer.accelerator'?\n"),
        (
            ["--trainer.max_steps", "many"],
            "trainer.max_steps: expected an int of at least 1 and below 2**31, got 'many'",
        ),
        (["--trainer.max_steps"], "--trainer.max_steps: expected a value, got none"),
        (["--data.train", "nothing.tsv"], "data.train: no such file: "),
        (["--data.train", ""], "regard: data.train: expected a path, got ''\n"),
        (["--data.max_length", "32"], "data.max_length: expected at most 31, which leaves room for the end token in "),
        (["--resume"], "expected a run to resume, got no recipe.yaml; start the training without --resume"),
    ],
)
def test_an_error_is_one_message_and_code_2(regard, recipe, arguments, expected):
    result = regard("train", recipe, *arguments)
    assert result.code == 2
    assert expected in result.err
    assert "Traceback" not in result.err


def test_a_missing_recipe_is_named(regard):
    result = regard("train", "missing.yaml")
    assert result.code == 2
    assert result.err.startswith("regard: missing.yaml: no such file; bundled recipes: multi30k-en-de, polarity, ")


@pytest.mark.parametrize("key", [["--trainer.max_steps", 3], ["--trainer.max_steps=3"]])
def test_a_key_before_the_recipe_is_refused(regard, recipe, key):
    result = regard("train", *key, recipe)
    assert result.code == 2
    assert f"recipe: expected the recipe before its keys, got {key[0]} first" in result.err


def test_the_help_lists_data_keys_formats_and_recipes_without_importing_torch():
    code = """
import sys
from regard.cli.main import app
try:
    app(["train", "--help"])
finally:
    print(sorted({"torch", "lightning_fabric"} & set(sys.modules)))
"""
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    text = subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout
    assert text.splitlines()[-1] == "[]"
    for part in (
        *bundled_recipes(),
        "data.train, data.valid",
        "data.folder",
        "source, tab, target",
        "--help-keys lists all keys with defaults and meanings",
        "recipe.yaml in the run folder has every key",
    ):
        assert part in re.sub(r"\s+", " ", text), part
    assert max(map(len, text.splitlines())) <= 80


def test_a_missing_extra_is_named(regard, recipe, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    for name in [name for name in sys.modules if name.startswith("regard.training")]:
        monkeypatch.delitem(sys.modules, name)
    result = regard("train", recipe)
    assert result.code == 2
    assert result.err == "regard: training needs yaml: install it with `pip install 'regard[train]'`\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_gives_its_exit_status(regard, recipe, monkeypatch, number, code):
    translation = importlib.import_module("regard.training.tasks.translation")
    monkeypatch.setattr(translation, "train_translation_bpe", lambda *_: signal.raise_signal(number))
    result = regard("train", recipe)
    assert result.code == code
    assert f"stopped by {'Ctrl-C' if code == 130 else 'SIGTERM'}; nothing was saved" in result.err


def test_ctrl_c_outside_the_training_is_130(regard, recipe, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib.import_module("regard.training.loop"), "train_with", interrupted)
    assert regard("train", recipe).code == 130


def test_data_instead_of_a_recipe_gets_an_example(regard, tmp_path):
    (tmp_path / "pairs.tsv").write_text("a\tb\n")
    result = regard("train", tmp_path / "pairs.tsv")
    assert result.code == 2
    assert "pairs.tsv: expected a recipe (YAML), got data; choose a recipe for it, as in `regard train " in result.err


def test_own_training_data_need_a_choice_of_validation(regard, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.tsv").write_text("a\tb\n")
    result = regard("train", "toy-translation", "--data.train", "pairs.tsv")
    assert result.code == 2
    assert result.err.startswith(
        "regard: data.valid: expected --data.valid with --data.train, because the recipe's own"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pairs.tsv"]


def test_an_output_dir_that_is_a_file_is_refused(regard, recipe, tmp_path):
    (tmp_path / "file").write_text("mine")
    result = regard("train", recipe, "--output_dir", tmp_path / "file")
    assert result.code == 2
    assert f"output_dir: expected a folder, got the file {tmp_path / 'file'}" in result.err
    assert (tmp_path / "file").read_text() == "mine"


def test_resuming_lists_the_runs_that_exist(regard, recipe):
    def log(*options):
        result = regard("train", recipe, "--trainer.max_steps", 2, *options)
        assert result.code == 0, result.err
        return result.err

    assert "finished at step 2: the models are in" in log()
    assert "already finished at step 2; to continue, raise trainer.max_steps" in log("--resume")
    folder = Path(yaml.safe_load(recipe.read_text())["output_dir"])
    for name in ("state", "last", "best"):
        shutil.rmtree(folder / name, ignore_errors=True)
    assert "nothing was saved before: starting from the beginning" in log("--resume")


def test_help_keys_lists_every_key_without_a_recipe(regard):
    result = regard("train", "--help-keys")
    assert result.code == 0, result.err
    assert "--trainer.max_steps  required\n      Optimizer steps.\n" in result.out
    assert "--validation.patience  default null\n      Stop after this many validations" in result.out
    assert "task: causal_lm, model.architecture: llama\n\n  --model.d_model  default 4096\n" in result.out
