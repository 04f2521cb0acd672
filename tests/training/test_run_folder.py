"""A run folder belongs to one run at a time, and no file of others is lost in it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save_file

from helpers.forked import start
from helpers.full_disk import full_disk
from helpers.pairwise import each_value
from helpers.training_processes import train_and_kill
from helpers.training_runs import bytes_of, make_recipe, rows
from helpers.training_states import saved_tensors, write_state
from regard.errors import InvalidArgument, InvalidCheckpoint, InvalidFile, InvalidRecipe
from regard.training import load_recipe, saving, train
from regard.training.state import find_state


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_existing_files_of_a_run_folder_are_respected(tmp_path: Path, keys: dict[str, Any]) -> None:
    recipe = make_recipe(keys, "--trainer.max_steps=7")
    run = re.escape(str(tmp_path / "run"))
    message = rf"{run}: expected a run to resume, got no recipe\.yaml; start the training without --resume \(Python:"
    with pytest.raises(InvalidArgument, match=message):
        train(recipe, resume=True)
    train(recipe)
    message = (
        rf"{run}: expected an empty folder, got a run; add --resume \(Python: resume=True\) to continue it, or choose"
    )
    with pytest.raises(InvalidArgument, match=message):
        train(recipe)
    with pytest.raises(InvalidRecipe, match=r"model\.d_model: expected 16 as in the run, got 32"):
        train(make_recipe(keys, "--model.d_model=32"), resume=True)
    with pytest.raises(InvalidRecipe, match=r"data\.train: expected the data that the run began with"):
        train(make_recipe(keys, "--data.train=valid.tsv"), resume=True)
    assert "resuming" not in (tmp_path / "run" / "train.log").read_text()
    tensors = saved_tensors(tmp_path / "run")
    path = tmp_path / "run" / "state" / "step-000000007" / "state.json"
    index = path.read_bytes()
    path.write_bytes(b"{}")
    with pytest.raises(
        InvalidCheckpoint, match=rf"{re.escape(str(path))}: expected a training state, got a file without step, num_pr"
    ):
        train(recipe, resume=True)
    path.write_bytes(index)
    shard = next(path.parent.glob("*.safetensors"))
    save_file({**tensors, "model.src_embedding.weight": torch.zeros(3, 4)}, shard)
    with pytest.raises(InvalidCheckpoint, match="its checksum does not match its content; restore it, or choose"):
        train(recipe, resume=True)
    tensors["model.src_embedding.weight"] = torch.zeros(3, 4)
    write_state(tmp_path / "run", tensors, loader={"epoch": 0, "position": 0})
    message = r"state of this model, got another: model\.src_embedding\.weight: expected \(\d+, 16\), got \(3, 4\)"
    with pytest.raises(InvalidCheckpoint, match=message):
        train(recipe, resume=True)


def test_a_run_folder_that_cannot_be_made_is_named(tmp_path: Path, keys: dict[str, Any]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidFile, match="file/run: could not be created: Not a directory"):
        train(make_recipe({**keys, "output_dir": str(tmp_path / "file" / "run")}))


@pytest.mark.parametrize("name", ["", "state", "last"])
def test_a_read_only_folder_is_named_before_training(
    tmp_path: Path, keys: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, access = make_recipe(keys, "--trainer.max_steps=5"), os.access
    train(make_recipe(keys, "--trainer.max_steps=3"))
    folder, files = tmp_path / "run" / name, sorted((tmp_path / "run").rglob("*"))
    # root may write anywhere
    monkeypatch.setattr(os, "access", lambda path, *mode, **options: path != folder and access(path, *mode, **options))
    with pytest.raises(InvalidFile) as caught:
        train(recipe, resume=True)
    expected = "expected a folder that can be written, got a read-only one; change its permissions, or choose another"
    assert str(caught.value) == f"{folder}: {expected} output_dir"
    assert sorted((tmp_path / "run").rglob("*")) == files


def test_the_state_of_another_task_is_refused(tmp_path: Path, keys: dict[str, Any]) -> None:
    train(make_recipe(keys, "--trainer.max_steps=1"))
    (tmp_path / "text.txt").write_text("one two three\n" * 50)
    other = {name: keys[name] for name in ("tokenizer", "trainer")}
    other |= {"task": "causal_lm", "output_dir": str(tmp_path / "other")}
    other["data"] = {"train": str(tmp_path / "text.txt"), "block_size": 8, "batch_size": 2}
    other["model"] = {"d_model": 16, "num_heads": 2, "num_layers": 1, "d_ff": 32}
    train(make_recipe(other, "--trainer.max_steps=1"))
    shutil.rmtree(tmp_path / "run" / "state")
    shutil.copytree(tmp_path / "other" / "state", tmp_path / "run" / "state")
    message = r"run/state/step-000000001: expected a training state of this model, got another: \d+ problems:"
    with pytest.raises(InvalidCheckpoint, match=message) as caught:
        train(make_recipe(keys), resume=True)
    assert len(str(caught.value).splitlines()) == 5


def test_a_recipe_of_the_user_is_not_overwritten(tmp_path: Path, keys: dict[str, Any]) -> None:
    keys = {**keys, "output_dir": str(tmp_path)}
    path = tmp_path / "recipe.yaml"
    path.write_text(f"{yaml.safe_dump(keys)}# mine\n")
    for resume in (False, True):
        with pytest.raises(
            InvalidArgument,
            match=rf"{re.escape(str(path))}: expected the copy of a recipe, got a file that would be overwritten",
        ):
            train(load_recipe(path), resume=resume)
    assert path.read_text().endswith("# mine\n")


@pytest.mark.parametrize("name", ["metrics.csv", "train.log", "tensorboard", "data", "snapshots", "best"])
def test_files_of_others_are_not_touched(tmp_path: Path, keys: dict[str, Any], name: str) -> None:
    run = tmp_path / "run"
    own = run / name / "step-000000099" / "notes.txt" if "." not in name else run / name
    own.parent.mkdir(parents=True)
    own.write_text("step,loss\n1,2.0\n")
    with pytest.raises(InvalidArgument, match=re.escape(f"{run}: ") + f".*({name}|models)"):
        train(make_recipe(keys))
    assert own.read_text() == "step,loss\n1,2.0\n"
    assert [path for path in run.rglob("*") if path.is_file()] == [own]


def test_a_start_that_fails_leaves_no_folder_and_can_be_repeated(tmp_path: Path, keys: dict[str, Any]) -> None:
    recipe = make_recipe({**keys, "output_dir": str(tmp_path / "runs" / "new")})
    good = (tmp_path / "train.tsv").read_text()
    for text, message in (("no tab\n", "no tab"), ("", r"train\.tsv")):
        (tmp_path / "train.tsv").write_text(text)
        with pytest.raises(InvalidFile, match=message):
            train(recipe)
        assert not (tmp_path / "runs").exists()
    (tmp_path / "train.tsv").write_text(good)
    assert train(recipe).step == 30


def test_a_start_that_fails_leaves_the_lock_file_of_another_program(tmp_path: Path, keys: dict[str, Any]) -> None:
    (tmp_path / "train.tsv").write_text("no tab\n")
    lock = tmp_path / "run" / ".lock"
    lock.parent.mkdir()
    lock.write_text("pid 7")
    with pytest.raises(InvalidFile, match="no tab"):
        train(make_recipe(keys))
    assert lock.read_text() == "pid 7"


def test_a_run_killed_between_its_first_model_and_its_first_state_is_resumed(
    tmp_path: Path, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = make_recipe(keys, "--checkpoint.every_n_steps", "10", "--checkpoint.average_last", "0")

    def fail(*_: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(saving, "save_state", fail)
        with pytest.raises(RuntimeError, match="killed"):
            train(recipe)
    assert (tmp_path / "run" / "best").is_dir()
    assert not (tmp_path / "run" / "state").exists()
    train(recipe, resume=True)
    train(make_recipe({**keys, "output_dir": str(tmp_path / "whole")}, "--checkpoint.average_last", "0"))
    for name in ("last", "best"):
        assert bytes_of(tmp_path / "run", name) == bytes_of(tmp_path / "whole", name)


def leftovers(folder: Path) -> list[Path]:
    """Unfinished files and folders."""
    return [path for path in folder.rglob(".*") if path.name != ".lock"]


@pytest.mark.parametrize(
    ("moment", "resume"),
    each_value(
        [
            "regard.training.loop:make_fabric",
            "regard.data.token_dataset:hash_file",
            "regard.training.tasks.translation:TranslationTask.train_tokenizer",
            "regard.data.token_dataset:_write",
            "regard.training.saving:Saver.start",
        ],
        [False, True],
    ),
)
def test_a_run_killed_before_its_first_step_is_started_again_or_resumed(
    tmp_path: Path, keys: dict[str, Any], moment: str, resume: bool
) -> None:
    keys["trainer"]["max_steps"] = 3
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(keys))
    process = start(train_and_kill, str(recipe), moment, errors=tmp_path / "errors")
    process.join(300)
    assert process.exitcode == -signal.SIGKILL, (tmp_path / "errors").read_text()
    assert (tmp_path / "run" / "recipe.yaml").is_file()
    assert train(load_recipe(recipe), resume=resume).step == 3
    assert leftovers(tmp_path / "run") == []


def test_a_run_killed_after_its_last_state_gets_its_last_model_when_it_is_resumed(
    tmp_path: Path, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, run = make_recipe(keys), tmp_path / "run"
    save = saving.save_model

    def killed(folder: Path, *arguments: object, **options: object) -> None:
        state = find_state(run)
        if folder.name == "last" and state is not None and state.step == 30:
            raise RuntimeError("killed")
        save(folder, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(saving, "save_model", killed)
        with pytest.raises(RuntimeError, match="killed"):
            train(recipe)
    assert train(recipe, resume=True).step == 30
    train(make_recipe({**keys, "output_dir": str(tmp_path / "whole")}))
    for name in ("last", "best", "averaged"):
        assert bytes_of(run, name) == bytes_of(tmp_path / "whole", name)


def test_files_of_a_killed_run_are_removed_when_it_is_resumed(tmp_path: Path, keys: dict[str, Any]) -> None:
    run = tmp_path / "run"
    train(make_recipe(keys, "--trainer.max_steps=20"))
    for folder in (
        run,
        run / "data",
        run / "last",
        run / "best",
        run / "averaged",
        run / "snapshots" / "step-000000020",
    ):
        (folder / ".saving-0").mkdir()
        (folder / ".saving-0" / "model.safetensors").touch()
        (folder / ".saving-1-1").touch()
    (run / ".mine").touch()
    train(make_recipe(keys, "--trainer.max_steps=20"), resume=True)
    assert leftovers(run) == [run / ".mine"]


def test_two_trainings_in_one_folder_are_refused(tmp_path: Path, keys: dict[str, Any]) -> None:
    run = tmp_path / "run"
    run.mkdir()
    code = f"from filelock import FileLock; lock = FileLock({str(run / '.lock')!r}); lock.acquire(); print(1); input()"
    with subprocess.Popen([sys.executable, "-u", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"1\n"
        with pytest.raises(InvalidArgument, match=re.escape(f"{run}: another training is using this folder")):
            train(make_recipe(keys))
        assert {path.name for path in run.iterdir()} == {".lock"}
        other.kill()  # a lock of a killed process does not block
    assert train(make_recipe(keys)).step == 30


def test_a_run_that_fails_before_its_first_state_keeps_its_models(tmp_path: Path, keys: dict[str, Any]) -> None:
    run = tmp_path / "run"
    message = r"state/step-000000030: could not be saved \(File too large\); no state was saved before"
    with pytest.raises(InvalidFile, match=message), full_disk(80_000):  # between a model and a state
        train(make_recipe(keys, "--checkpoint.every_n_steps=30"))
    assert (run / "best" / "model.safetensors").is_file()
    assert rows(run)


def test_a_run_folder_that_was_copied_or_moved_is_the_run(tmp_path: Path, keys: dict[str, Any]) -> None:
    train(make_recipe(keys, "--trainer.max_steps=7"))
    original, copied, moved = (tmp_path / name for name in ("run", "copied", "moved"))
    shutil.copytree(original, copied)
    before = {path: path.read_bytes() for path in original.rglob("*") if path.is_file()}
    result = train(load_recipe(copied, ["--trainer.max_steps=9"]), resume=True)
    assert result.output_dir == copied
    assert {path: path.read_bytes() for path in original.rglob("*") if path.is_file()} == before
    original.rename(moved)
    assert load_recipe(moved).output_dir == moved
    assert train(load_recipe(moved / "recipe.yaml", ["--trainer.max_steps=9"]), resume=True).output_dir == moved
    assert bytes_of(moved) == bytes_of(copied)
    assert load_recipe(moved, [f"--output_dir={tmp_path / 'other'}"]).output_dir == tmp_path / "other"
    written = moved / "recipe.yaml"  # a recipe that someone wrote says where its run is
    written.write_text("# mine\n" + written.read_text().replace(str(moved), str(original)))
    assert load_recipe(moved).output_dir == original
