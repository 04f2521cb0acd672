"""The toy recipes: their data are in the package and are what the script writes, and each trains a usable model."""

from __future__ import annotations

import gzip
import runpy
from pathlib import Path

import pytest

import regard
from regard.pipelines import TextEncoder, TextGenerator, Translator
from regard.training import load_recipe, train
from regard.training.recipe import TASKS

TOY = Path(regard.__file__).parent / "recipes/toy"
NAMES = [f"toy-{task.replace('_', '-')}" for task in TASKS]
"""Each task has a toy recipe."""
SHORT = ["--trainer.max_steps", "3", "--validation.every_n_steps", "3", "--trainer.accelerator", "cpu"]


def lines(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode("utf-8").splitlines()


def short(name: str, folder: Path, *overrides: str) -> Path:
    """The best model after three steps."""
    train(load_recipe(name, [*SHORT, "--output_dir", str(folder), *overrides]))
    return folder / "best"


@pytest.mark.parametrize("name", NAMES)
def test_the_data_of_a_toy_recipe_are_in_the_package(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe(name)
    assert recipe.data.folder == TOY
    assert all(path.is_file() for path in recipe.data.paths([*recipe.data.train, *recipe.data.valid]))
    assert load_recipe(name, ["--data.folder", "other"]).data.folder == Path("other")


def test_a_copy_of_the_recipe_elsewhere_has_its_own_folder(tmp_path):
    (tmp_path / "mine.yaml").write_text((TOY.parent / "toy-translation.yaml").read_text(encoding="utf-8"))
    assert load_recipe(tmp_path / "mine.yaml").data.folder == Path("toy")


def test_the_data_are_what_the_script_writes(root):
    script = runpy.run_path(str(root / "tools/make_toy_data.py"))
    for name, make in script["TEXTS"].items():
        parts = {part: lines(TOY / name.format(part)) for part in script["SIZES"]}
        assert parts == script["lines"](make)
        texts = [line.partition("\t")[0] for part in parts.values() for line in part]
        assert len(set(texts)) == len(texts)  # no input is in two parts
    assert sum(path.stat().st_size for path in TOY.iterdir()) < 400_000


def test_toy_models_load(tmp_path):
    bert = TextEncoder.load(short("toy-classification", tmp_path / "run"))
    assert bert.classify(["The food was good."])[0].label in {"positive", "negative"}
    tagger = TextEncoder.load(short("toy-tagging", tmp_path / "names"))
    assert [word.word for word in tagger.tag(["Anna lives in Lima."])[0]] == ["Anna", "lives", "in", "Lima", "."]
    gpt = TextGenerator.load(short("toy-causal-lm", tmp_path / "gpt", "--data.valid", "stories.test.txt.gz"))
    assert gpt.generate(["Anna has a red kite."], max_new_tokens=2)
    translator = Translator.load(short("toy-translation", tmp_path / "pairs", "--validation.bleu_sentences", "2"))
    assert translator.translate(["She brings a ball."])[0][0].confidence is None
