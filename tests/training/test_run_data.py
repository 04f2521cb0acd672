"""The data of a run: how often its files are read, on the process that prepares them and on the others."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from helpers.training_runs import make_recipe, write_corpus
from helpers.training_states import write_state
from regard.data import token_dataset
from regard.errors import InvalidArgument
from regard.text import lines
from regard.training.recipe_file import write_recipe
from regard.training.run_data import data_files, open_data, prepare_data

OTHERS = {
    "causal_lm": {"task": "causal_lm", "data": {"valid_fraction": 0.2}, "tokenizer": {"vocab_size": 300}},
    "masked_lm": {"task": "masked_lm", "data": {"valid": "valid.tsv"}, "tokenizer": {"vocab_size": 300}},
    "classification": {"task": "classification", "data": {"valid": "valid.tsv"}, "tokenizer": {"vocab_size": 300}},
}


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Counter[str]]:
    """How often each file is hashed and read."""
    counts = {"hashed": Counter[str](), "read": Counter[str]()}
    hash_file, open_file = token_dataset.hash_file, lines._open

    def hash_and_count(path: Any) -> str:
        counts["hashed"].update([Path(path).name] if Path(path).suffix == ".tsv" else [])
        return hash_file(path)

    def open_and_count(path: Any) -> Any:
        counts["read"][Path(path).name] += 1
        return open_file(path)

    monkeypatch.setattr(token_dataset, "hash_file", hash_and_count)
    monkeypatch.setattr(lines, "_open", open_and_count)
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
    open_data(other, data_files(other))  # as on the other processes
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
    other = recipe.build_task()
    open_data(other, data_files(other))
    assert not counts["hashed"]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_resumed_run_hashes_each_file_once_and_reads_no_text(keys, counts):
    recipe = make_recipe(keys)
    prepared(recipe)
    write_recipe(recipe)
    write_state(recipe.output_dir)  # the run has saved its state
    for each in counts.values():
        each.clear()
    prepared(recipe)
    assert counts == {"hashed": {"train.tsv": 1, "valid.tsv": 1}, "read": {}}


@pytest.mark.parametrize("name", ["recipe.yaml", "data/notes.txt"])
def test_a_machine_does_not_overwrite_other_files(keys, tmp_path, name):
    files = data_files(prepared(make_recipe(keys)))
    other = make_recipe({**keys, "output_dir": str(tmp_path / "other")})
    path = other.output_dir / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    expected = "expected an empty folder on machine 1, which does not share that of machine 0"
    got = name.partition("/")[0]
    words = f"{other.output_dir}: {expected}, got {got}; remove it, or choose another output_dir"
    with pytest.raises(InvalidArgument, match=f"^{re.escape(words)}$"):
        open_data(other.build_task(), files, 1)
    assert path.read_text() == "mine"
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_machine_replaces_the_data_that_it_has_of_an_earlier_run(keys, tmp_path):
    earlier = prepared(make_recipe(keys, "--tokenizer.vocab_size=290"))
    task = prepared(make_recipe({**keys, "output_dir": str(tmp_path / "zero")}))
    machine = make_recipe(keys).build_task()
    open_data(machine, data_files(task), 1)
    assert machine.tokenizer.fingerprint == task.tokenizer.fingerprint != earlier.tokenizer.fingerprint
    assert data_files(machine) == data_files(task)
    assert machine.valid_data.source.ids.tolist() == task.valid_data.source.ids.tolist()
