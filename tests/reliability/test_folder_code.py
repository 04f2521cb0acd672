"""No loader runs code of a model folder, for any standard input."""

from __future__ import annotations

import importlib
import inspect
import io
import json
import pkgutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

import regard
from helpers import folders_with_code
from regard.cli.main import app, main
from regard.errors import InvalidCheckpoint, RegardError
from regard.watching import TransformersModel

COMMANDS = typer.main.get_command(app).commands
WITHOUT_MODEL = {"compare", "serve", "score", "train", "check", "info"}
TEXT = "the cat"


def loaders() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every public function and class method that loads something, or takes the folder of a model."""
    for info in pkgutil.walk_packages(regard.__path__, "regard."):
        if info.name == "regard.__main__" or info.name.startswith("regard.ops.kernels.triton."):  # which needs Triton
            continue
        for name, value in vars(importlib.import_module(info.name)).items():
            if name.startswith("_") or getattr(value, "__module__", None) != info.name:
                continue
            if inspect.isclass(value) and not inspect.isabstract(value):
                if isinstance(inspect.getattr_static(value, "load", None), classmethod):
                    yield f"{info.name}.{name}.load", value.load
            elif inspect.isfunction(value):
                hints = map(str, inspect.get_annotations(value).values())
                if name.startswith("load") or any("Folder" in hint for hint in hints):
                    yield f"{info.name}.{name}", value


LOADERS = dict(loaders())
ARGUMENTS: dict[str, Any] = {
    "sources": [TEXT],
    "references": [[TEXT]],
    "text": TEXT,
    "texts": [TEXT],
    "sentences": [(TEXT.split(), ("O", "O"))],
    "examples": [(TEXT, "a"), (TEXT, "b")],
    "command": None,
    "tensors": {"model.weight": torch.zeros(2)},
    "dtype": torch.float32,
    "device": "cpu",
}


@pytest.fixture(autouse=True)
def _yes(monkeypatch):
    """Standard input that answers every question with yes."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"y\n" * 1000), encoding="utf-8"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, tuple[Path, Path]]:
    """Each kind of folder, and the file that its code would write."""
    root = tmp_path_factory.mktemp("code")
    return {
        kind: (folders_with_code.write(kind, root / kind, root / f"{kind}.ran"), root / f"{kind}.ran")
        for kind in folders_with_code.KINDS
    }


def test_the_code_runs_where_it_is_trusted(folders, monkeypatch, tmp_path):
    """The folders work: without trust_remote_code=False, transformers asks, and runs their code."""
    import transformers

    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    folder, canary = folders["config"]
    with pytest.raises(ValueError, match="trust_remote_code"):
        transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    assert canary.exists()
    canary.unlink()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", folders_with_code.KINDS)
@pytest.mark.parametrize("name", LOADERS)
def test_no_python_loader_runs_code(folders, name, kind):
    folder, canary = folders[kind]
    _, *others = inspect.signature(LOADERS[name]).parameters.values()
    options = {each.name: ARGUMENTS[each.name] for each in others if each.default is each.empty}
    if name.startswith("regard.cli."):
        options["dtype"] = "float32"
    started = time.monotonic()
    try:
        LOADERS[name](folder, **options)
    except RegardError as error:
        assert len(str(error)) < 3000  # noqa: PT017 - any of many sentences
    assert not canary.exists()
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("kind", folders_with_code.REFUSED)
def test_the_error_names_the_remedy(folders, kind):
    folder, canary = folders[kind]
    with pytest.raises(InvalidCheckpoint) as error:
        TransformersModel.load(folder)
    assert str(error.value).startswith(f"{folder}: ")
    assert "a folder that runs its own code" in str(error.value)
    assert "load the model with transformers and trust_remote_code=True, and pass it to regard.watch" in str(
        error.value
    )
    assert not canary.exists()


@pytest.mark.parametrize("kind", ["generation", "known"])
def test_code_that_is_not_needed_is_ignored(folders, kind):
    folder, canary = folders[kind]
    loaded = TransformersModel.load(folder)
    assert loaded.record(TEXT, **({"max_new_tokens": 2} if kind == "generation" else {})).layers
    assert not canary.exists()


def test_a_kernel_that_a_folder_names_is_not_loaded(folders, tmp_path):
    folder = folders_with_code.write("known", tmp_path / "kernel", tmp_path / "ran")
    folders_with_code._change(folder / "config.json", attn_implementation="someone/kernel")
    assert TransformersModel.load(folder).record(TEXT).layers


def test_the_commands_that_take_a_model_are_known():
    """The others load no model folder; a new one is listed, or takes its model as ``--model`` or ``RUN``."""
    names = {name: {each.name for each in command.params} for name, command in COMMANDS.items()}
    without = {name for name, parameters in names.items() if parameters.isdisjoint({"model", "run"})}
    assert without == WITHOUT_MODEL


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", folders_with_code.KINDS)
@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in WITHOUT_MODEL])
def test_no_command_runs_code(folders, command, kind, monkeypatch, capsys, tmp_path):
    folder, canary = folders[kind]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.tsv").write_text(f"{TEXT}\t{TEXT}\n")
    values = {"text": TEXT, "prompt": TEXT, "texts": TEXT, "file": "data.tsv", "files": "data.tsv", "test": "data.tsv"}
    values["run"] = str(folder)
    arguments = [values[each.name] for each in COMMANDS[command].params if each.param_type_name == "argument"]
    extra = ["--segment", "a=the"] if command == "segments" else []
    extra += [] if command == "export" else ["--model", str(folder)]
    monkeypatch.setattr(sys, "argv", ["regard", command, *arguments, *extra])
    with pytest.raises(SystemExit) as end:
        main()
    assert not canary.exists()
    message = capsys.readouterr().err
    assert end.value.code in (0, None) or (end.value.code == 2 and str(folder) in message), message


@pytest.mark.parametrize("kind", ["config", "model", "weights"])
@pytest.mark.parametrize("use", ["checkpoint", "teacher"])
def test_training_runs_no_code(folders, kind, use, monkeypatch, capsys, tmp_path):
    folder, canary = folders[kind]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.tsv").write_text(f"{TEXT}\ta\n{TEXT}\tb\n")
    sections = {
        "checkpoint": {"task": "classification", "model": {"checkpoint": str(folder)}, "data": {"max_length": 30}},
        "teacher": {"task": "translation", "attention_loss": {"kl_divergence": {"weight": 1, "teacher": str(folder)}}},
    }
    (tmp_path / "recipe.yaml").write_text(
        json.dumps({"output_dir": "run", "trainer": {"max_steps": 1}, **sections[use]})
    )
    data = ["--data.train", "data.tsv", "--data.valid", "null"]
    monkeypatch.setattr(sys, "argv", ["regard", "train", "recipe.yaml", *data])
    with pytest.raises(SystemExit) as end:
        main()
    message = capsys.readouterr().err
    assert end.value.code == 2
    assert str(folder) in message
    assert not canary.exists()
