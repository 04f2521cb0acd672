"""Two processes train what one process does with the same batches, and resume bit for bit."""

from __future__ import annotations

import csv
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from helpers.attacks import number_of_tries, seed
from helpers.forked import start_ranks
from helpers.training_processes import train_rank
from helpers.training_runs import bytes_of, make_recipe, write_corpus
from helpers.training_states import saved_tensors
from regard.training import apply_overrides, train
from regard.training.state import find_state

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
    completed = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert completed.returncode == 0, completed.stderr
    check_warnings(completed.stderr)


def check_warnings(errors: str) -> None:
    assert "Warning" not in errors.replace("FutureWarning", ""), errors


def train_ranks(folder: Path, keys: dict[str, Any], *, resume: bool = False) -> None:
    """Train in two processes, as torchrun starts them."""
    (folder / "recipe.yaml").write_text(yaml.safe_dump(keys))
    ranks = start_ranks(train_rank, str(folder / "recipe.yaml"), resume, folder=folder, world_size=2)
    ranks.finish()
    for path in ranks.errors:
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
    state = saved_tensors(tmp_path / "stopped")
    assert not torch.equal(state["process.0.random"], state["process.1.random"])
    train_ranks(tmp_path, stopped, resume=True)
    actual, expected = (load_file(tmp_path / name / "last" / "model.safetensors") for name in ("stopped", "whole"))
    assert all(torch.equal(actual[name], expected[name]) for name in expected)
    columns = ("step", "loss", "valid_loss", "bleu")
    found_rows = [[row[name] for name in columns] for row in rows(tmp_path / "stopped")]
    assert [row for row in found_rows if row[0] != "16"] == [  # where it ended at first, and so was validated
        [row[name] for name in columns] for row in rows(tmp_path / "whole")
    ]


def test_killed_processes_resume_bit_for_bit(tmp_path: Path, keys: dict[str, Any]) -> None:
    keys["model"]["dropout"] = 0.2
    keys["checkpoint"] = {"every_n_steps": 3}
    keys["trainer"]["log_every_n_steps"] = 1
    train_ranks(tmp_path, {**keys, "output_dir": str(tmp_path / "whole")})
    recipe, run, draw = tmp_path / "recipe.yaml", tmp_path / "killed", random.Random(seed())
    recipe.write_text(yaml.safe_dump({**keys, "output_dir": str(run)}))
    for number in range(number_of_tries(1, 20)):
        shutil.rmtree(run, ignore_errors=True)
        moment, seconds = draw.randint(1, 24), draw.uniform(0, 0.1)
        ranks = start_ranks(train_rank, str(recipe), folder=tmp_path, world_size=2)
        while (not (run / "metrics.csv").is_file() or len(rows(run)) < moment) and ranks.processes[0].is_alive():
            time.sleep(0.005)
        time.sleep(seconds)
        for process in ranks.processes:
            process.kill()
            process.join()
        train_ranks(tmp_path, {**keys, "output_dir": str(run)}, resume=True)
        assert bytes_of(run) == bytes_of(tmp_path / "whole"), (number, moment, seconds)
        columns = ("step", "loss", "valid_loss", "bleu")
        assert [[row[name] for name in columns] for row in rows(run)] == [
            [row[name] for name in columns] for row in rows(tmp_path / "whole")
        ], (number, moment, seconds)


def test_a_run_continues_with_another_number_of_processes(tmp_path: Path, keys: dict[str, Any]) -> None:
    keys["data"]["valid"] = None
    keys["checkpoint"] = {"every_n_steps": 100}
    state = None
    for num_processes, max_steps, position in ((2, 8, 16), (1, 12, 20), (2, 16, 28)):
        changed = apply_overrides(keys, [f"--trainer.max_steps={max_steps}"])
        before = {} if state is None else saved_tensors(tmp_path / "run")
        if num_processes == 2:
            train_ranks(tmp_path, changed, resume=max_steps > 8)
        else:
            train(make_recipe(changed), resume=True)
        state = find_state(tmp_path / "run")
        assert state is not None
        assert (state.step, state.num_processes) == (max_steps, num_processes)
        assert state.loader == {"epoch": 0, "position": position}
        after = saved_tensors(tmp_path / "run")
        moments = [name for name in before if name.endswith(".step")]
        assert all(float(before[name]) + 4 == float(after[name]) == max_steps for name in moments)
    assert [(row["step"], int(row["tokens"]) > 0) for row in rows(tmp_path / "run")] == [
        (str(step), True) for step in (3, 6, 9, 12, 15)
    ]


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
    keys["trainer"] |= {"devices": 2, "max_steps": 8}
    keys["model"]["max_seq_len"] = 2000
    keys["data"] |= {"valid": "train.tsv", "max_length": 1900, "max_tokens_per_batch": 2000}
    run_script(tmp_path, keys)
    ranks = [torch.load(tmp_path / "run" / f"rank{rank}.pt", weights_only=True) for rank in range(2)]
    assert all(torch.equal(ranks[0][name], ranks[1][name]) for name in ranks[0])


def test_processes_resume_a_streamed_corpus_bit_for_bit(tmp_path: Path, keys: dict[str, Any]) -> None:
    (tmp_path / "train.txt").write_text((tmp_path / "train.tsv").read_text().replace("\t", " "))
    data = {"folder": str(tmp_path), "train": "train.txt", "streaming": True, "buffer_size": 3000}
    keys = {
        **{name: keys[name] for name in ("tokenizer", "optimizer", "checkpoint")},
        "task": "causal_lm",
        "data": {**data, "sample_by": "line", "block_size": 8, "batch_size": 4},
        "model": {"d_model": 16, "num_heads": 2, "num_layers": 1, "d_ff": 32, "dropout": 0.1},
        "trainer": {**keys["trainer"], "num_workers": 1},
    }
    full, stopped = ({**keys, "output_dir": str(tmp_path / name)} for name in ("whole", "stopped"))
    train_ranks(tmp_path, full)
    train_ranks(tmp_path, apply_overrides(stopped, ["--trainer.max_steps=16"]))
    state = find_state(tmp_path / "stopped")
    assert state is not None
    assert state.loader["num_batches"] == 32
    assert all(position != [0, 0, 0, 0] for position in state.loader["positions"])
    train_ranks(tmp_path, stopped, resume=True)
    actual, expected = (load_file(tmp_path / name / "last" / "model.safetensors") for name in ("stopped", "whole"))
    assert all(torch.equal(actual[name], expected[name]) for name in expected)
