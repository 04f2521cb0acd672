"""What a new task can forget is found: by a test that names it, or by an error."""

from __future__ import annotations

import re
from typing import Literal

import pytest
import torch
from typer.testing import CliRunner

from helpers.training_runs import make_recipe
from regard.cli.main import app
from regard.cli.models import MODELS, command_for
from regard.errors import InvalidArgument, InvalidRecipe
from regard.models import GPT, Bert, BertConfig, GPTConfig, Transformer, TransformerConfig, save_model
from regard.models.bert import CLASSIFIERS
from regard.pipelines import evaluation
from regard.training import train
from regard.training.recipe import TASKS, VALID_LOSS, Metric, recipe_class
from regard.training.recipe_file import is_changeable
from regard.training.recipe_keys import keys_of_all_tasks
from regard.training.recipe_sections import ValidationConfig
from regard.training.tasks.causal_lm import CausalLMRecipe, CausalLMTask


@pytest.mark.parametrize("task", TASKS)
def test_each_task_is_in_the_help_and_in_the_guide(task, root):
    toy = f"toy-{task.replace('_', '-')}"
    text = CliRunner().invoke(app, ["train", "--help"]).output
    assert f" {task}: " in text
    assert re.search(rf"Recipes?:[^:]*{toy}", text)
    guide = (root / "docs/how_to/train.md").read_text("utf-8")
    assert f"\n| `{toy}` | " in guide  # its result
    assert f"\n$ regard train {toy}\n" in guide or f"\nregard train {toy}\n" in guide
    assert f"`{task}`" in (root / "docs/extending/tasks.md").read_text("utf-8")


@pytest.mark.parametrize("task", TASKS)
def test_each_task_has_a_command_and_an_evaluation(task, tmp_path):
    sizes, head = {"d_model": 8, "num_heads": 2, "d_ff": 8}, getattr(recipe_class(task), "head", None)
    labels = ("a", "b") if head in CLASSIFIERS else ()
    if head is not None:
        model = Bert(BertConfig(270, num_layers=1, head=head, labels=labels, **sizes))
    elif task == "causal_lm":
        model = GPT(GPTConfig(270, num_layers=1, **sizes))
    else:
        model = Transformer(TransformerConfig(270, **sizes))
    save_model(tmp_path, model)
    kind = MODELS[command_for(tmp_path)]
    assert kind.evaluation is not None
    assert callable(getattr(evaluation, kind.evaluation))
    assert CliRunner().invoke(app, [command_for(tmp_path), "--help"]).exit_code == 0


def test_a_resumed_run_must_not_change_a_new_section():
    keys = {key.name for group in keys_of_all_tasks().values() for key in group}
    changeable = {key for key in keys if is_changeable(key)}
    sections = {key.partition(".")[0] for key in changeable}
    assert sections == {"output_dir", "data", "trainer", "validation", "checkpoint"}
    assert {"data.valid_fraction", "validation.monitor", "trainer.accumulate_grad_batches"} <= keys - changeable
    assert not is_changeable("new_section.weight")


class ForgetfulValidationConfig(ValidationConfig):
    """Validation."""

    monitor: Literal["valid_loss", "speed"] = "valid_loss"
    """What selects the best weights."""


class ForgetfulRecipe(CausalLMRecipe):
    """A recipe without the metrics of its task."""

    metrics = (VALID_LOSS, Metric("perplexity", "min"))

    validation: ForgetfulValidationConfig = ForgetfulValidationConfig()

    @property
    def loss_weights(self):
        return {"extra_loss": 1.0} if self.seed == 7 else {}

    def build_task(self):
        return CausalLMTask(self)


@pytest.fixture
def config(tmp_path):
    (tmp_path / "text.txt").write_text("abcdefgh\n" * 60)
    return {
        "output_dir": str(tmp_path / "run"),
        "task": "causal_lm",
        "data": {"train": str(tmp_path / "text.txt"), "valid_fraction": 0.2, "block_size": 20, "batch_size": 8},
        "tokenizer": {"type": "char"},
        "model": {"d_model": 8, "num_heads": 2, "num_layers": 1, "d_ff": 8, "max_seq_len": 64},
        "trainer": {"max_steps": 2, "accelerator": "cpu"},
    }


@pytest.mark.parametrize(("override", "name"), [("--validation.monitor=speed", "speed"), ("--seed=7", "extra_loss")])
def test_a_monitor_and_an_added_loss_need_a_metric(config, override, name, monkeypatch):
    monkeypatch.setattr("regard.training.recipe.recipe_class", lambda task: ForgetfulRecipe)
    with pytest.raises(InvalidRecipe, match=rf"ForgetfulRecipe\.metrics: expected {name} among them, got \['valid_l"):
        make_recipe(config, override)


def test_a_number_of_validation_needs_a_metric(config):
    torch.manual_seed(0)
    with pytest.raises(InvalidArgument, match=r"ForgetfulRecipe\.metrics: expected .*, got no bits_per_character"):
        train(ForgetfulRecipe.model_validate(config))
