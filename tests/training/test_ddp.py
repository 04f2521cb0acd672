"""Two processes train what one process does with the same batches, and resume bit for bit."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from helpers.forked import finish, start
from helpers.training_processes import train_rank
from helpers.training_runs import make_recipe, write_corpus
from regard.training import apply_overrides, train

TRAIN = """
import sys, torch
from helpers.training_processes import train_rank
torch.set_num_threads(1)
train_rank(sys.argv[1])
"""


def run_script(folder: Path, keys: dict[str, Any], *launcher: str) -> None:
    (folder / "train.py").write_text(TRAIN)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(keys))
    command = [sys.executable, *launcher, str(folder / "train.py"), str(folder / "recipe.yaml")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    completed = subprocess.run(command, capture_output=True, text=True, timeout=180, env=environment)
    assert completed.returncode == 0, completed.stderr
    check_warnings(completed.stderr)


def check_warnings(errors: str) -> None:
    assert "Warning" not in errors.replace("FutureWarning", ""), errors


def train_ranks(folder: Path, keys: dict[str, Any], *, resume: bool = False, machines: int = 1) -> None:
    """Train in two processes, as torchrun starts them on one machine or two."""
    (folder / "recipe.yaml").write_text(yaml.safe_dump(keys))
    store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    shared = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port), "WORLD_SIZE": "2"}
    shared |= {
        "LOCAL_WORLD_SIZE": str(2 // machines),
        "TORCHELASTIC_RUN_ID": folder.name,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    errors = [folder / f"errors{rank}.txt" for rank in range(2)]
    ranks = [
        {"RANK": str(rank), "LOCAL_RANK": str(rank // machines), "GROUP_RANK": str(rank * (machines - 1))}
        for rank in range(2)
    ]
    processes = [
        start(train_rank, str(folder / "recipe.yaml"), resume, errors=path, **shared, **rank)
        for path, rank in zip(errors, ranks, strict=True)
    ]
    finish(processes, errors)
    for path in errors:
        check_warnings(path.read_text())


def rows(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_two_processes_are_one_with_twice_the_batches(tmp_path: Path, keys: dict[str, Any]) -> None:
    keys["model"]["dropout"] = 0.0
    both = {**keys, "output_dir": str(tmp_path / "both")}
    run_script(tmp_path, both, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    ranks = [torch.load(tmp_path / "both" / f"rank{rank}.pt", weights_only=True) for rank in range(2)]
    assert all(torch.equal(ranks[0][name], ranks[1][name]) for name in ranks[0])
    alone = apply_overrides(keys, ["--output_dir", str(tmp_path / "alone"), "--trainer.accumulate_grad_batches=2"])
    train(make_recipe(alone))
    actual, expected = (load_file(tmp_path / name / "last" / "model.safetensors") for name in ("both", "alone"))
    for name, weight in expected.items():
        kept = torch.ones_like(weight, dtype=torch.bool)
        if name.endswith("in_proj.bias"):  # the key's changes nothing: its gradient is rounding
            kept.view(3, -1)[1] = False
        torch.testing.assert_close(actual[name][kept], weight[kept], rtol=1e-3, atol=1e-4)
    for left, right in zip(rows(tmp_path / "both"), rows(tmp_path / "alone"), strict=True):
        assert left["step"] == right["step"]
        for column in ("loss", "valid_loss"):
            assert bool(left[column]) == bool(right[column])
            if left[column]:
                torch.testing.assert_close(float(left[column]), float(right[column]), rtol=1e-3, atol=0.0)


def test_unequal_batches_of_two_processes_count_by_their_tokens(tmp_path: Path, keys: dict[str, Any]) -> None:
    pairs = [("one two.", "eins zwei."), ("red cats.", "rot Katzen."), (f"{'see ' * 40}.", f"{'sehen ' * 40}.")]
    (tmp_path / "train.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    keys["model"]["dropout"] = 0.0
    # with a large eps, the first step of Adam is nearly proportional to the gradient
    keys["optimizer"] = {"learning_rate": 1.0, "warmup_steps": 0, "lr_schedule": "constant", "eps": 1.0}
    keys["trainer"]["max_steps"] = 1
    keys["data"] |= {"valid": None, "max_tokens_per_batch": 1000}
    train(make_recipe({**keys, "output_dir": str(tmp_path / "one")}))
    keys["data"] |= {"max_tokens_per_batch": 100, "max_length": 90}  # the long pair, and the other two
    train_ranks(tmp_path, {**keys, "output_dir": str(tmp_path / "two")})
    one, two = (load_file(tmp_path / name / "last" / "model.safetensors") for name in ("one", "two"))
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=0, atol=1e-5)


def test_processes_resume_bit_for_bit_each_with_its_own_dropout(tmp_path: Path, keys: dict[str, Any]) -> None:
    keys["model"]["dropout"] = 0.2
    full, stopped = ({**keys, "output_dir": str(tmp_path / name)} for name in ("whole", "stopped"))
    train_ranks(tmp_path, full)
    train_ranks(tmp_path, apply_overrides(stopped, ["--trainer.max_steps=16"]))
    state = torch.load(tmp_path / "stopped" / "state.ckpt", weights_only=True)
    assert not torch.equal(*state["random"])
    train_ranks(tmp_path, stopped, resume=True)
    actual, expected = (load_file(tmp_path / name / "last" / "model.safetensors") for name in ("stopped", "whole"))
    assert all(torch.equal(actual[name], expected[name]) for name in expected)
    columns = ("step", "loss", "valid_loss", "bleu")
    found_rows = [[row[name] for name in columns] for row in rows(tmp_path / "stopped")]
    assert [row for row in found_rows if row[0] != "16"] == [  # where it ended at first, and so was validated
        [row[name] for name in columns] for row in rows(tmp_path / "whole")
    ]


def test_two_machines_are_found_without_a_key(tmp_path: Path, keys: dict[str, Any]) -> None:
    keys["trainer"]["max_steps"] = 10
    for machines in (1, 2):
        train_ranks(tmp_path, {**keys, "output_dir": str(tmp_path / f"on {machines}")}, machines=machines)
    one, two = (load_file(tmp_path / f"on {machines}" / "last" / "model.safetensors") for machines in (1, 2))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_validation_set_of_one_batch_is_shared(tmp_path: Path, keys: dict[str, Any]) -> None:
    write_corpus(tmp_path / "valid.tsv", 3, seed=2)
    keys["trainer"]["max_steps"] = 10
    train_ranks(tmp_path, keys)
    train(make_recipe(keys, "--output_dir", str(tmp_path / "alone"), "--trainer.accumulate_grad_batches=2"))
    both, alone = (next(row for row in rows(tmp_path / name) if row["valid_loss"]) for name in ("run", "alone"))
    assert float(both["valid_loss"]) == pytest.approx(float(alone["valid_loss"]), rel=0.05)


def test_two_devices_need_no_torchrun(tmp_path: Path, keys: dict[str, Any]) -> None:
    with (tmp_path / "train.tsv").open("a") as file:  # one process meets a longer sentence, and needs more positions
        file.write(f"{'one ' * 700}\t{'eins ' * 700}\n")
    keys["trainer"] |= {"devices": 2, "max_steps": 30}
    keys["model"]["max_seq_len"] = 2000
    keys["data"] |= {"valid": "train.tsv", "max_length": 1900, "max_tokens_per_batch": 2000}
    run_script(tmp_path, keys)
    ranks = [torch.load(tmp_path / "run" / f"rank{rank}.pt", weights_only=True) for rank in range(2)]
    assert all(torch.equal(ranks[0][name], ranks[1][name]) for name in ranks[0])
