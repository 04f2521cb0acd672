"""Whatever is wrong with a recipe, its data or a machine: one sentence of process 0, and no process waits."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from helpers.corpora import write_rows
from helpers.forked import start_ranks
from helpers.machines import BIN
from helpers.pairwise import everything
from helpers.training_processes import NEXT_COMMAND, run_commands
from helpers.training_runs import make_recipe
from regard.training import train


@pytest.fixture
def recipe(tmp_path: Path, keys: dict[str, Any]) -> Path:
    """A recipe without validation."""
    keys["data"]["valid"] = None
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(keys))
    return path


def messages(folder: Path, commands: Sequence[Sequence[str]], others: Mapping[int, Sequence[str]] | None = None):
    """What each of two processes writes for each command, of which all must fail.

    Args:
        folder: For their errors.
        commands: The arguments of each command.
        others: Those of process 1 where they differ.
    """
    of_ranks = [list(map(list, commands)) for _ in range(2)]
    for number, arguments in (others or {}).items():
        of_ranks[1][number] = list(arguments)
    ranks = start_ranks(run_commands, json.dumps(of_ranks), folder=folder, world_size=2)
    for process in ranks.processes:
        process.join(120)
    alive = [process.is_alive() for process in ranks.processes]
    for process in ranks.processes:
        process.kill()
    texts = [path.read_text() for path in ranks.errors]
    assert alive == [False, False], texts
    assert [process.exitcode for process in ranks.processes] == [0, 0], texts
    return [text.split(NEXT_COMMAND)[:-1] for text in texts]


def test_an_error_before_the_processes_meet_is_one_sentence(recipe: Path, tmp_path: Path) -> None:
    table = write_rows(tmp_path / "pairs.jsonl", [{"english": "one", "german": "eins"}])
    other = tmp_path / "other.yaml"
    other.write_text(recipe.read_text())
    (tmp_path / "file").write_text("")
    occupied = tmp_path / "occupied"
    train(make_recipe(yaml.safe_load(recipe.read_text()), "--trainer.max_steps=1", f"--output_dir={occupied}"))
    one, missing = str(recipe), str(tmp_path / "missing.yaml")
    cases: list[tuple[list[str], str]] = [
        ([one, "--trainer.max_step=3"], "regard: trainer.max_step: no such key, did you mean 'trainer.max_steps'?"),
        ([one, "--trainer.max_steps=many"], "regard: trainer.max_steps: expected an int of at least 1 and below"),
        (["--trainer.max_steps", "3", one], "regard: recipe: expected the recipe before its keys"),
        ([missing], f"regard: {missing}: no such file"),
        ([one, "--data.train=missing.tsv"], f"regard: data.train: no such file: {tmp_path}/missing.tsv; change data"),
        ([one, f"--data.train={table}"], f"regard: data.train: {table}, line 1: expected the column 'source'"),
        ([one, "--resume"], f"regard: {tmp_path}/run: expected a run to resume, got no recipe.yaml"),
        ([one, f"--output_dir={occupied}"], f"regard: {occupied}: expected an empty folder, got a run; add --resume"),
        (
            [one, f"--output_dir={occupied}", "--resume", "--seed=5"],
            "regard: seed: expected 1 as in the run, got 5; it cannot change",
        ),
        ([one, f"--output_dir={tmp_path}/file"], "regard: output_dir: expected a folder, got the file"),
        ([one, "--output_dir=/proc/run"], "regard: /proc/run: could not be created: "),
        ([one, "--trainer.devices=1"], "regard: trainer.devices: expected 2, as torchrun started 1 x 2 processes"),
        ([one, "--trainer.num_nodes=2"], "regard: trainer.num_nodes: expected 1, as torchrun started 1 x 2 processes"),
        (
            [one, "--trainer.tensor_parallel=4", "--model.num_heads=4"],
            "regard: trainer.tensor_parallel: expected a divisor of 2, the number of processes, got 4",
        ),
        (
            [one, "--trainer.tensor_parallel=2", "--trainer.strategy=ddp"],
            "regard: trainer.strategy: expected 'auto' or 'fsdp' with trainer.tensor_parallel=2, got 'ddp'",
        ),
        ([one, "--trainer.accelerator=mps"], "regard: trainer.accelerator: expected an available device, got 'mps'"),
        ([one, "--dry-run", "--data.valid=missing.tsv"], "regard: data.valid: no such file"),
        ([str(other)], "regard: process 1: trainer.max_step: no such key, did you mean 'trainer.max_steps'?"),
        ([str(other)], "regard: process 1: data.train: no such file"),
    ]
    only_here = {len(cases) - 2: [str(other), "--trainer.max_step=3"], len(cases) - 1: [str(other), "--data.train=no"]}
    first, second = messages(tmp_path, [arguments for arguments, _ in cases], only_here)
    for (_, expected), text in zip(cases, first, strict=True):
        assert text.startswith(expected)
        assert len(text.splitlines()) == 1
    assert second == [""] * len(cases)
    assert not (tmp_path / "run").exists()  # and can be started again


def bad_row(folder: Path, keys: dict[str, Any]) -> str:
    with (folder / "train.tsv").open("a") as file:
        file.write("no tab\n")
    return f"{folder}/train.tsv, line 401: expected source, tab, target, got no tab in 'no tab'"


def little_validation(folder: Path, keys: dict[str, Any]) -> str:
    (folder / "valid.tsv").write_text("one\teins\n")
    keys["data"]["valid"] = "valid.tsv"
    return f"{folder}/valid.tsv: expected at least 2 rows for validation on 2 processes, got 1"


def use_text(folder: Path, keys: dict[str, Any], texts: Sequence[str], **data: Any) -> None:
    """Let keys be those of a causal language model."""
    (folder / "train.txt").write_text("".join(f"{text}\n" for text in texts))
    keys["data"] = {"folder": str(folder), "train": "train.txt", "block_size": 8, "batch_size": 2, **data}
    keys |= {"task": "causal_lm", "model": {"d_model": 16, "num_heads": 2, "num_layers": 1, "d_ff": 32}}
    keys["checkpoint"], _ = {"every_n_steps": 100}, keys.pop("validation")


def little_text(folder: Path, keys: dict[str, Any]) -> str:
    use_text(folder, keys, ["short"], block_size=256)
    return "block_size: expected a text of at least 257 tokens, a block and the next token, got"


def bad_text_in_a_stream(folder: Path, keys: dict[str, Any]) -> str:
    """Process 1 reads one of two files, and meets a bad line there."""
    files = ["train.txt", "other.txt"]
    use_text(folder, keys, ["one two three four"] * 400, train=files, streaming=True, buffer_size=1000)
    shutil.copy(folder / "train.txt", folder / "other.txt")
    keys["tokenizer"]["max_characters"] = 500
    bad = folder / files[np.random.default_rng((1, 0)).permutation(2)[1]]
    with bad.open("ab") as file:
        file.write(b"one\xe9\n")
    return f"process 1: {bad}, line 401: expected UTF-8, got 0xe9 at byte 4 of the line; convert the file"


def few_streams(folder: Path, keys: dict[str, Any]) -> str:
    use_text(folder, keys, ["one two three four"] * 400, streaming=True)
    train(make_recipe(keys, "--trainer.max_steps=1"))
    return "num_workers: expected a number whose product with the 2 processes divides 1, the streams that the run began"


def state_of_another_model(folder: Path, keys: dict[str, Any]) -> str:
    for name in ("run", "other"):
        keys["model"]["d_ff"] = 32 if name == "run" else 48
        train(make_recipe(keys, "--trainer.max_steps=1", f"--output_dir={folder / name}"))
    keys["model"]["d_ff"] = 32
    shutil.rmtree(folder / "run" / "state")
    (folder / "other" / "state").rename(folder / "run" / "state")
    return f"{folder}/run/state/step-000000001: expected a training state of this model, got another: "


FAULTS = [bad_text_in_a_stream, little_validation, state_of_another_model, few_streams, bad_row, little_text]


@pytest.mark.parametrize("prepare", FAULTS if everything() else FAULTS[:1])
def test_an_error_of_the_data_is_one_sentence(recipe: Path, keys: dict[str, Any], prepare: Any) -> None:
    expected = prepare(recipe.parent, keys)
    recipe.write_text(yaml.safe_dump(keys))
    options = ["--resume"] if (recipe.parent / "run").exists() else []
    ((text,), (nothing,)) = messages(recipe.parent, [[str(recipe), *options]])
    sentences = [line for line in text.splitlines() if line.startswith("regard: ")]
    assert len(sentences) == 1, text
    assert sentences[0].startswith(f"regard: {expected}"), text
    assert "Traceback" not in text
    assert nothing == ""


if everything():  # torchrun itself takes seconds

    def test_torchrun_leaves_process_0_the_time_to_print(recipe: Path) -> None:
        command = [BIN / "torchrun", "--standalone", "--nproc-per-node=2", "-m", "regard", "train", recipe, "--seed=-1"]
        errors = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stderr
        sentences = [line for line in errors.splitlines() if "seed: expected" in line]
        assert sentences == ["regard: seed: expected an int of at least 0 and below 2**32, got -1"]
