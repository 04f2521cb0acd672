"""A recipe trains the same model on the same rows, whatever the format of their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helpers.corpora import FORMATS, write_rows
from helpers.training_runs import bytes_of, make_recipe, rows, write_corpus
from regard.errors import InvalidFile, InvalidRecipe
from regard.training import train

BERT = {"d_model": 16, "num_heads": 2, "num_layers": 1, "d_ff": 32}
TASKS: dict[str, dict[str, Any]] = {
    "causal_lm": {"data": {"valid": None, "valid_fraction": 0.1, "sample_by": "line", "block_size": 8}},
    "masked_lm": {"data": {"max_tokens_per_batch": 200, "max_length": 30}},
    "classification": {"data": {"max_length": 30}, "validation": {"every_n_steps": 3}},
    "translation": {"data": {"max_tokens_per_batch": 200}},
}


def write_split(path: Path, task: str, seed: int) -> Path:
    lines = write_corpus(path.with_suffix(".pairs"), 60, seed).read_text().splitlines()
    pairs = [dict(zip(("source", "target"), line.split("\t"), strict=True)) for line in lines]
    if task == "classification":
        pairs = [{"text": pair["source"], "label": "and" if "and" in pair["source"] else "none"} for pair in pairs]
    elif task != "translation":
        pairs = [{"text": pair["source"]} for pair in pairs]
    return write_rows(path, pairs)


def keys_of(folder: Path, task: str, suffix: str) -> dict[str, Any]:
    for number, name in enumerate(("train", "valid")):
        write_split(folder / f"{name}{suffix}", task, seed=number)
    keys = {
        "task": task,
        "output_dir": str(folder / f"run{suffix}"),
        "data": {"folder": str(folder), "train": f"train{suffix}", "valid": f"valid{suffix}"},
        "tokenizer": {"vocab_size": 300},
        "model": BERT if task != "translation" else {"d_model": 16, "num_heads": 2, "d_ff": 32},
        "trainer": {"max_steps": 5, "accelerator": "cpu"},
        "validation": {"bleu_sentences": 4} if task == "translation" else {},
    }
    return {**keys, **TASKS[task], "data": {**keys["data"], **TASKS[task]["data"]}}


@pytest.mark.parametrize("task", TASKS)
def test_all_formats_train_the_same_weights(tmp_path: Path, task: str) -> None:
    runs = []
    for suffix in FORMATS:
        recipe = make_recipe(keys_of(tmp_path, task, suffix))
        train(recipe)
        runs.append(recipe.output_dir)
    expected, metrics = bytes_of(runs[0]), rows(runs[0])[-1]
    assert expected
    for run in runs[1:]:
        assert bytes_of(run) == expected
        assert {**rows(run)[-1], "tokens_per_second": None} == {**metrics, "tokens_per_second": None}


@pytest.mark.parametrize("task", TASKS)
def test_a_missing_column_is_named_before_training(tmp_path: Path, task: str) -> None:
    keys = keys_of(tmp_path, task, ".parquet")
    column = "source_column" if task == "translation" else "text_column"
    known = {"translation": "source, target", "classification": "text, label"}.get(task, "text")
    recipe = make_recipe(keys, f"--data.{column}", "content")
    with pytest.raises(InvalidFile) as caught:
        train(recipe)
    lines = str(caught.value).splitlines()
    for key, line in zip(("train", "valid"), lines[-len(recipe.files["data.valid"]) - 1 :], strict=False):
        path = tmp_path / f"{key}.parquet"
        assert line.strip(" -•") == (f"data.{key}: {path}: expected the column 'content' (data.{column}), got {known}")
    assert not recipe.output_dir.exists()


def test_pairs_in_several_tables(tmp_path: Path) -> None:
    keys = keys_of(tmp_path, "translation", ".jsonl")
    lines = (tmp_path / "train.jsonl").read_text().splitlines(keepends=True)
    for part in range(3):
        (tmp_path / f"part{part}.jsonl").write_text("".join(lines[20 * part : 20 * part + 20]))
    train(make_recipe(keys))
    split = {**keys["data"], "train": [f"part{part}.jsonl" for part in range(3)]}
    train(make_recipe({**keys, "data": split, "output_dir": str(tmp_path / "split")}))
    assert bytes_of(tmp_path / "split") == bytes_of(tmp_path / "run.jsonl")
    with pytest.raises(InvalidRecipe, match=r"data\.train: expected one TSV or two .*, got both kinds"):
        make_recipe({**keys, "data": {**split, "train": ["part0.jsonl", "train.tsv"]}})
