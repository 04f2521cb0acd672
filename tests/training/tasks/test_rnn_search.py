"""RNNsearch trains, translates and is recorded like a Transformer."""

from __future__ import annotations

import json
import sys

import pytest

from helpers.training_runs import make_recipe
from regard.cli.main import main
from regard.errors import InvalidRecipe
from regard.models import RNNSearch, load_model
from regard.pipelines import Translator
from regard.training import train


@pytest.fixture
def recurrent(keys):
    """Keys of a recipe that trains in a few seconds."""
    keys["model"] = {"architecture": "rnn_search", "d_model": 24, "hidden_size": 24, "tie_embeddings": "all"}
    keys["optimizer"] = {"learning_rate": 0.02, "warmup_steps": 10}
    keys["loss"] = {"label_smoothing": 0}
    keys["data"]["max_tokens_per_batch"] = 1200
    return keys


@pytest.mark.slow
def test_rnn_search_learns_and_works_with_all_commands(recurrent, words, tmp_path, capsys, monkeypatch):
    recurrent["trainer"]["max_steps"] = 150
    recurrent["validation"]["every_n_steps"] = 50
    recurrent["checkpoint"] |= {"every_n_steps": 50, "snapshot_every_n_steps": 50}
    outcome = train(make_recipe(recurrent))
    assert isinstance(load_model(outcome.output_dir / "last"), RNNSearch)
    translator = Translator.load(outcome.output_dir / "best")
    (hypotheses,) = translator.translate(["red cats see."])
    assert hypotheses[0].text == "rot Katzen sehen."
    recording = translator.record("red cats see.")
    assert [layer.name for layer in recording.layers] == ["cross.0"]

    def regard(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["regard", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
        return capsys.readouterr().out

    arguments = ("red cats see.", "--model", outcome.output_dir / "best")
    assert "rot Katzen sehen." in regard("show", *arguments, "--output", tmp_path / "page.html")
    assert "cross.0" in (tmp_path / "page.html").read_text()
    steps = {step["name"]: step for step in json.loads(regard("steps", *arguments, "--json"))["steps"]}
    dense = recording.layers[0].weights.dense()[0, 0].flatten().tolist()
    assert [each for row in steps["weights"]["value"][0] for each in row] == pytest.approx(dense, abs=0.01)
    assert "hidden layer" in steps


def test_a_resumed_training_equals_an_uninterrupted_one_bit_for_bit(recurrent, tmp_path):
    recurrent["model"]["dropout"] = 0.1
    full, parts = (make_recipe({**recurrent, "output_dir": str(tmp_path / name)}) for name in ("whole", "parts"))
    train(full)
    train(
        make_recipe(
            {**recurrent, "output_dir": str(tmp_path / "parts"), "trainer": {**recurrent["trainer"], "max_steps": 14}}
        )
    )
    train(parts, resume=True)
    saved = [(tmp_path / name / "last" / "model.safetensors").read_bytes() for name in ("whole", "parts")]
    assert saved[0] == saved[1]


def test_attention_losses_apply_to_cross_attention_only(recurrent, tmp_path):
    lines = (tmp_path / "train.tsv").read_text(encoding="utf-8").splitlines()
    links = [" ".join(f"{i}-{i}" for i in range(len(line.split("\t")[0].split()))) for line in lines]
    (tmp_path / "links").write_text("\n".join(links) + "\n")
    recurrent["attention_loss"] = {"alignment": {"weight": 1.0, "file": "links"}}
    assert train(make_recipe(recurrent)).output_dir.is_dir()
    recurrent["attention_loss"] = {"entropy": {"weight": 1.0, "floor": 0.1, "kind": "encoder"}}
    with pytest.raises(
        InvalidRecipe, match=r"attention_loss\.entropy\.kind: expected attention that the model has, got 'encoder'"
    ):
        make_recipe(recurrent)


def test_an_unknown_architecture_error_lists_the_known_ones(recurrent):
    recurrent["model"]["architecture"] = "rnnsearch"
    message = (
        r"model.architecture: expected one of transformer, rnn_search, got 'rnnsearch', did you mean 'rnn_search'\?"
    )
    with pytest.raises(InvalidRecipe, match=message):
        make_recipe(recurrent)


def test_keys_of_the_transformer_are_unknown(recurrent):
    recurrent["model"]["num_heads"] = 4
    with pytest.raises(InvalidRecipe, match=r"model\.num_heads: no such key"):
        make_recipe(recurrent)
