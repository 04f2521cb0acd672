"""The data of a run: how often its files are read, on the process that prepares them and on the others."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from helpers.training_runs import make_recipe, write_corpus
from regard.data import token_dataset
from regard.text import readers
from regard.training.recipe_file import write_recipe
from regard.training.run_data import open_data, prepare_data

OTHERS = {
    "causal_lm": {"task": "causal_lm", "data": {"valid_fraction": 0.2}, "tokenizer": {"vocab_size": 300}},
    "masked_lm": {"task": "masked_lm", "data": {"valid": "valid.tsv"}, "tokenizer": {"vocab_size": 300}},
    "classification": {"task": "classification", "data": {"valid": "valid.tsv"}, "tokenizer": {"vocab_size": 300}},
}


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Counter[str]]:
    """How often each file is hashed and read."""
    counts = {"hashed": Counter[str](), "read": Counter[str]()}
    hash_file, open_file = token_dataset._hash_file, readers._open

    def hash_and_count(path: Any) -> str:
        counts["hashed"].update([Path(path).name] if Path(path).suffix == ".tsv" else [])
        return hash_file(path)

    def open_and_count(path: Any) -> Any:
        counts["read"][Path(path).name] += 1
        return open_file(path)

    monkeypatch.setattr(token_dataset, "_hash_file", hash_and_count)
    monkeypatch.setattr(readers, "_open", open_and_count)
    return counts


def prepared(recipe: Any) -> Any:
    task = recipe.build_task()
    prepare_data(task)
    return task


def test_files_are_hashed_once_and_only_where_they_are_prepared(keys, tmp_path, counts):
    alignment = {"weight": 1.0, "file": "links.tsv"}
    (tmp_path / "links.tsv").write_text("0-0\n" * 400)
    recipe = make_recipe({**keys, "attention_loss": {"alignment": alignment}})
    first = prepared(recipe)
    assert counts["hashed"] == {"train.tsv": 1, "valid.tsv": 1, "links.tsv": 1}
    assert counts["read"]["train.tsv"] == 2  # for the tokenizer and for the token ids
    assert counts["read"]["valid.tsv"] == 1
    for each in counts.values():
        each.clear()
    other = recipe.build_task()
    open_data(other)  # as on the other processes
    assert counts == {"hashed": {}, "read": {}}
    assert other.train_data.source.ids.tolist() == first.train_data.source.ids.tolist()
    assert other.valid_data.target.ids.tolist() == first.valid_data.target.ids.tolist()


@pytest.mark.parametrize("task", OTHERS)
def test_the_files_of_every_task_are_hashed_once(tmp_path, counts, task):
    write_corpus(tmp_path / "train.tsv", 400, seed=1)
    write_corpus(tmp_path / "valid.tsv", 40, seed=2)
    if task == "classification":
        for name in ("train.tsv", "valid.tsv"):
            (tmp_path / name).write_text("good\ta\nbad\tb\n" * 20)
    keys = OTHERS[task]
    data = {"folder": str(tmp_path), "train": "train.tsv", **keys["data"]}
    recipe = make_recipe({**keys, "output_dir": str(tmp_path / "run"), "data": data, "trainer": {"max_steps": 3}})
    prepared(recipe)
    assert set(counts["hashed"].values()) == {1}
    counts["hashed"].clear()
    open_data(recipe.build_task())
    assert not counts["hashed"]


def test_a_resumed_run_hashes_each_file_once_and_reads_no_text(keys, counts):
    recipe = make_recipe(keys)
    prepared(recipe)
    write_recipe(recipe)
    (recipe.output_dir / "state.ckpt").touch()  # the run has saved its state
    for each in counts.values():
        each.clear()
    prepared(recipe)
    assert counts == {"hashed": {"train.tsv": 1, "valid.tsv": 1}, "read": {}}
