"""A run with a streamed corpus: it learns, and resumes bit for bit."""

from __future__ import annotations

import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.corpora import write_rows
from helpers.forked import finish, start
from helpers.pairwise import everything
from helpers.training_processes import train_file
from helpers.training_runs import bytes_of, make_recipe, rows, write_corpus
from regard.data import streaming
from regard.errors import InvalidArgument, InvalidFile, InvalidRecipe
from regard.training import train
from regard.training.state import find_state

TASKS: dict[str, dict[str, Any]] = {
    "causal_lm": {"sample_by": "line", "block_size": 8, "batch_size": 4},
    "masked_lm": {"max_tokens_per_batch": 200, "max_length": 30},
    "translation": {"max_tokens_per_batch": 200, "max_length": 30},
    "classification": {"batch_size": 12},
}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "PART_BYTES", 1000)


def keys_of(folder: Path, task: str, **data: Any) -> dict[str, Any]:
    for name, number in (("train", 200), ("valid", 20)):
        pairs = [line.split("\t") for line in write_corpus(folder / "a", number, seed=number).read_text().splitlines()]
        labels = ["many" if source.count(" ") > 4 else "few" for source, _ in pairs]
        rows = [{"text": s, "source": s, "target": t, "label": c} for (s, t), c in zip(pairs, labels, strict=True)]
        write_rows(folder / f"{name}.jsonl", rows)
    files = {"folder": str(folder), "train": "train.jsonl", "valid": "valid.jsonl"}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1} if task == "translation" else {"num_layers": 1}
    return {
        "task": task,
        "output_dir": str(folder / "run"),
        "data": {**files, "streaming": True, "buffer_size": 900, **TASKS.get(task, {}), **data},
        "tokenizer": {"vocab_size": 300},
        "model": {"d_model": 16, "num_heads": 2, "d_ff": 32, "dropout": 0.1, **layers},
        "optimizer": {"learning_rate": 0.01, "warmup_steps": 20},
        "trainer": {"max_steps": 60, "accelerator": "cpu", "log_every_n_steps": 5},
        "validation": {"every_n_steps": 20},
    }


@pytest.mark.parametrize("task", TASKS if everything() else ["causal_lm", "translation"])
def test_a_streamed_corpus_is_learned_and_not_copied(tmp_path: Path, task: str, capfd: pytest.CaptureFixture) -> None:
    recipe = make_recipe(keys_of(tmp_path, task), "--trainer.num_workers", "2")
    train(recipe)
    losses = [float(row["loss"]) for row in rows(recipe.output_dir) if row["loss"]]
    assert losses[-1] < 0.8 * losses[0]
    assert int(next(row["epoch"] for row in rows(recipe.output_dir)[::-1] if row["epoch"])) >= 1
    copies = [path for path in (recipe.output_dir / "data").iterdir() if path.is_dir()]
    assert len(copies) == 1  # of the validation data
    log = (recipe.output_dir / "train.log").read_text()
    assert "training: 1 files in" in log
    assert "tokenizers" not in capfd.readouterr().err  # which warns after a fork unless it knows what to do


@pytest.mark.parametrize(
    ("task", "workers"),
    product(TASKS, [(0, 0), (2, 2), (2, 1)])
    if everything()
    else [("causal_lm", (2, 2)), ("masked_lm", (2, 1)), ("translation", (0, 0)), ("classification", (2, 1))],
)
def test_a_run_resumes_bit_for_bit(tmp_path: Path, task: str, workers: tuple[int, int]) -> None:
    keys = keys_of(tmp_path, task)
    whole, stopped = (str(tmp_path / name) for name in ("whole", "stopped"))
    before, after = (["--trainer.num_workers", str(number)] for number in workers)
    train(make_recipe(keys, "--output_dir", whole, *before))
    train(make_recipe(keys, "--output_dir", stopped, *before, "--trainer.max_steps=23"))
    state = find_state(tmp_path / "stopped")
    assert state is not None
    assert state.loader["num_batches"] == 23
    train(make_recipe(keys, "--output_dir", stopped, *after), resume=True)
    assert bytes_of(Path(stopped)) == bytes_of(Path(whole))


@pytest.mark.parametrize("num_workers", [0, 2] if everything() else [2])
def test_a_killed_run_resumes_bit_for_bit(tmp_path: Path, num_workers: int) -> None:
    keys = keys_of(tmp_path, "causal_lm")
    keys["trainer"] |= {"num_workers": num_workers, "log_every_n_steps": 1}
    keys["checkpoint"] = {"every_n_steps": 7}
    runs = [tmp_path / "whole", tmp_path / "killed"]
    for run in runs:
        run.with_suffix(".yaml").write_text(yaml.safe_dump({**keys, "output_dir": str(run)}))

    def begin(run: Path, resume: bool) -> Any:
        return start(train_file, str(run.with_suffix(".yaml")), resume, errors=run.with_suffix(".txt"))

    killed = begin(runs[1], False)
    while killed.is_alive() and not ((runs[1] / "metrics.csv").exists() and len(rows(runs[1])) >= 25):
        time.sleep(0.002)
    killed.kill()
    killed.join()
    assert len(rows(runs[1])) < 60
    finish([begin(runs[0], False), begin(runs[1], True)], [run.with_suffix(".txt") for run in runs])
    assert bytes_of(runs[1]) == bytes_of(runs[0])


def test_workers_that_cannot_share_the_streams_are_refused(tmp_path: Path) -> None:
    keys = keys_of(tmp_path, "masked_lm")
    train(make_recipe(keys, "--trainer.num_workers=1", "--trainer.max_steps=5"))
    message = r"num_workers: expected a number whose product .* divides 1, .* got 2"
    with pytest.raises(InvalidArgument, match=message):
        train(make_recipe(keys, "--trainer.num_workers=2"), resume=True)


def test_other_data_is_refused_when_a_run_is_resumed(tmp_path: Path) -> None:
    keys = keys_of(tmp_path, "masked_lm")
    train(make_recipe(keys, "--trainer.max_steps=5"))
    with (tmp_path / "train.jsonl").open("a") as file:
        file.write('{"text": "one more"}\n')
    with pytest.raises(InvalidRecipe, match=r"data\.train: expected the data that the run began with, got other data"):
        train(make_recipe(keys), resume=True)


def test_a_bad_row_is_named_before_training(tmp_path: Path) -> None:
    keys = keys_of(tmp_path, "masked_lm")
    with (tmp_path / "train.jsonl").open("a") as file:
        file.write('{"text": 5}\n')
    with pytest.raises(InvalidFile, match=r"train\.jsonl, line 201: expected a str in the column 'text', got 5"):
        train(make_recipe(keys))
    with pytest.raises(InvalidFile, match=r"train\.jsonl, line 201: expected a str in the column 'text', got 5"):
        train(make_recipe(keys, "--output_dir", str(tmp_path / "later"), "--tokenizer.max_characters=500"))


def test_the_tokenizer_can_be_trained_on_the_beginning(tmp_path: Path) -> None:
    keys = keys_of(tmp_path, "causal_lm")
    recipe = make_recipe(keys, "--tokenizer.max_characters=60", "--trainer.max_steps=1")
    texts = [*recipe.build_task().tokenizer_texts(["a" * 25] * 9)]
    assert len(texts) == 3
    train(recipe)
    assert "tokenizer: 300" not in (recipe.output_dir / "train.log").read_text()


@pytest.mark.parametrize(
    ("task", "override", "message"),
    [
        (
            "translation",
            "--data.train=[a.en,b.de]",
            r"data\.streaming: expected False with two .*, got True; join them: `paste a.en",
        ),
        (
            "translation",
            "--attention_loss.alignment.weight=1 --attention_loss.alignment.file=a.txt",
            r"attention_loss\.alignment\.file: expected none with data\.streaming, .*, got a\.txt",
        ),
        ("tagging", "", r"data\.streaming: no such key"),
        (
            "causal_lm",
            "--data.valid_fraction=0.1 --data.valid=null",
            r"data\.valid_fraction: expected 0 with data\.streaming; pass",
        ),
        ("causal_lm", "--data.streaming=5", r"data\.streaming: expected .*got 5"),
        (
            "causal_lm",
            "--data.buffer_size=0",
            r"data\.buffer_size: expected an int of at least 1 and below 2\*\*31, got 0",
        ),
    ],
)
def test_keys_that_do_not_fit_are_refused(tmp_path: Path, task: str, override: str, message: str) -> None:
    with pytest.raises(InvalidRecipe, match=message):
        make_recipe(keys_of(tmp_path, task), *override.split())
