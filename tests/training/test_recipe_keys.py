"""The list of all keys of recipes, against the recipes and the guide."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from regard.training import load_recipe
from regard.training.recipe import TASKS
from regard.training.recipe_keys import RecipeKey, keys_of_all_tasks, recipe_keys

GUIDE = Path(__file__).parents[2] / "docs" / "how_to" / "train.md"


def flatten(values, prefix=""):
    for name, value in values.items():
        if isinstance(value, dict) and name not in ("rotary_scaling",):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


@pytest.mark.parametrize("recipe", [f"toy-{task.replace('_', '-')}" for task in TASKS])
def test_every_key_of_a_recipe_is_listed(recipe):
    loaded = load_recipe(Path(recipe))
    groups = recipe_keys(loaded.task)
    architecture = f"model.architecture: {loaded.model.architecture}"
    names = {key.name for key in (*groups[""], *groups[architecture])} | {"task", "model.architecture"}
    assert set(flatten(loaded.model_dump())) == names


def test_every_key_has_a_meaning():
    assert [key.name for keys in keys_of_all_tasks().values() for key in keys if not key.meaning] == []


def test_keys_are_grouped_by_task():
    groups = keys_of_all_tasks()
    assert list(groups)[:3] == ["all tasks", "task: translation", "task: translation, model.architecture: transformer"]
    assert {heading.split(", ")[0] for heading in groups} == {"all tasks", *(f"task: {task}" for task in TASKS)}
    assert "task: classification, model.architecture: bert, pretrained" in groups
    assert RecipeKey("trainer.max_steps", "", "Optimizer steps.") in groups["all tasks"]
    assert "data.block_size" in {key.name for key in groups["task: causal_lm"]}


def test_the_guide_lists_the_keys_of_all_tasks():
    rows = re.findall(r"^\| `([\w.]+)` \| (.*?) \| (.+) \|$", GUIDE.read_text("utf-8"), re.MULTILINE)
    expected = [
        (key.name, f"`{key.default}`" if key.default else "", key.meaning) for key in keys_of_all_tasks()["all tasks"]
    ]
    assert rows == expected
