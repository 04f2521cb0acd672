"""A run whose files are damaged is resumed as if they were not, or refused: never resumed to something else."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from helpers.mutate import mutate
from helpers.pairwise import everything
from helpers.training_runs import bytes_of, make_recipe
from regard.errors import InvalidFile, RegardError
from regard.training import train

NUMBER = 400 if everything() else 10
KINDS = {".csv": "table", ".json": "json", ".yaml": "yaml", ".safetensors": "safetensors"}


@pytest.fixture
def stopped(keys: dict[str, Any], tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A run of 6 steps, of which there is a copy."""
    keys["checkpoint"] = {"every_n_steps": 3, "average_last": 2, "snapshot_every_n_steps": 3}
    keys["validation"] = {"every_n_steps": 3, "monitor": "valid_loss"}
    train(make_recipe(keys, "--trainer.max_steps=6"))
    return Path(shutil.copytree(keys["output_dir"], tmp_path / "stopped")), keys


def resume(stopped: Path, keys: dict[str, Any]) -> dict[str, dict[str, bytes]]:
    """The weights of the run after three more steps."""
    run = Path(keys["output_dir"])
    train(make_recipe(keys, "--trainer.max_steps=9"), resume=True)
    return {name: bytes_of(run, name) for name in ("last", "averaged")}


@pytest.mark.filterwarnings("ignore")
def test_a_damaged_run_resumes_unchanged_or_is_refused(stopped: tuple[Path, dict[str, Any]]) -> None:
    original, keys = stopped
    run = Path(keys["output_dir"])
    expected = resume(original, keys)
    paths = [
        path.relative_to(original)
        for path in sorted(original.rglob("*"))
        if path.is_file()
        and path.suffix in (*KINDS, ".bin", ".npy")
        and path.parts[-2] not in ("best", "last", "averaged")
    ]
    assert len(paths) > 10
    states = [path for path in paths if path.parts[0] == "state"]
    assert len(states) == 2
    for case in range(NUMBER):
        draw = random.Random(f"run {case}")
        path = paths[case % len(paths)] if case < len(paths) else draw.choice([*paths, *states * 5])
        shutil.rmtree(run)
        shutil.copytree(original, run)
        (run / path).write_bytes(mutate((run / path).read_bytes(), KINDS.get(path.suffix, "bytes"), draw))
        try:
            actual = resume(original, keys)
        except RegardError:
            continue
        except Exception as error:
            raise AssertionError(f"case {case} of {path}: {type(error).__name__}: {error}") from error
        assert actual["last"] == expected["last"], f"case {case} of {path}"


def test_files_damaged_by_a_power_cut_are_named(stopped: tuple[Path, dict[str, Any]]) -> None:
    _, keys = stopped
    run = Path(keys["output_dir"])
    for path in sorted((run / "data").rglob("*")):
        if not path.is_file() or path.name == "tokenizer_config.json":
            continue
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        with pytest.raises(InvalidFile) as error:
            train(make_recipe(keys, "--trainer.max_steps=9"), resume=True)
        assert str(path) in str(error.value)
        if path.suffix == ".json" and path.parent.name == "data":
            assert path.name != "files.json" or "remove it to go on without comparing the data" in str(error.value)
        else:
            assert f"remove the folder {path.parent}, which is then written again" in str(error.value)
            shutil.rmtree(path.parent)
            train(make_recipe(keys, "--trainer.max_steps=6"), resume=True)
            continue
        path.write_bytes(content)


def test_a_resumed_run_keeps_its_tokenizer(stopped: tuple[Path, dict[str, Any]]) -> None:
    _, keys = stopped
    path = Path(keys["output_dir"]) / "data" / "tokenizer.json"
    values = json.loads(path.read_text())
    values["model"]["merges"].pop()
    path.write_text(json.dumps(values))
    with pytest.raises(
        InvalidFile, match=r"tokenizer\.json: expected the tokenizer that the run began with, got another"
    ):
        train(make_recipe(keys, "--trainer.max_steps=9"), resume=True)


@pytest.mark.parametrize("step", ["9" * 5000, "-1", "٣", "1.0", ""])
def test_a_step_that_is_not_one_is_named(stopped: tuple[Path, dict[str, Any]], step: str) -> None:
    _, keys = stopped
    path = Path(keys["output_dir"]) / "metrics.csv"
    lines = path.read_text().splitlines()
    lines[2] = ",".join([step, *lines[2].split(",")[1:]])
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(InvalidFile, match=r"metrics\.csv, line 3: expected a step and values for step,epoch,loss"):
        train(make_recipe(keys, "--trainer.max_steps=9"), resume=True)
