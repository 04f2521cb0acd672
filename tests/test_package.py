"""The package: imports are cheap, every public name resolves, and both ways to start it work."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from importlib import metadata

import pytest
import typer.main

import regard
from helpers.forked import run_code
from regard.cli.main import app

COMMANDS = sorted(typer.main.get_command(app).commands)

HEAVY = {
    "torch",
    "jaxtyping",
    "numpy",
    "lightning",
    "lightning_fabric",
    "transformers",
    "sacrebleu",
    "tokenizers",
    "safetensors",
}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "code",
    [
        "import regard; dir(regard)",
        "import regard.errors, regard.cli.main",
        "import regard.explore; dir(regard.explore)",
        *(
            f"import sys; sys.argv[1:] = {[*command, '--help']}\ntry: import regard.__main__ as start; start.main()\n"
            "except SystemExit as end: assert end.code == 0"
            for command in ([], *([name] for name in COMMANDS))
        ),
    ],
)
def test_imports_and_help_load_nothing_heavy(code):
    completed = run("-c", f"{code}\nimport sys; print('loaded:', *sys.modules)")
    assert completed.returncode == 0, completed.stderr
    assert not HEAVY.intersection(completed.stdout.partition("loaded:")[2].split())


def test_attention_and_layers_do_not_load_pydantic():
    code = "import regard, torch; regard.attend(*torch.ones(3, 1, 1, 2, 4)); regard.nn.MultiHeadAttention(8, 2)"
    completed = run("-c", f"{code}; import sys; print('pydantic' in sys.modules)")
    assert completed.stdout == "False\n", completed.stderr


def test_help_takes_less_than_half_a_second_of_user_time():
    def user_time() -> float:
        child = subprocess.Popen([sys.executable, "-m", "regard", "--help"], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0
        return usage.ru_utime

    assert min(user_time() for _ in range(5)) < 0.5


def test_text_and_data_need_no_extra():
    code = """
import importlib, pkgutil, sys
for name in ("datasets", "filelock", "lightning", "lightning_fabric", "pyarrow", "tensorboard", "transformers", "yaml"):
    sys.modules[name] = None
for name in ("regard.text", "regard.data", "regard.metrics", "regard.pipelines"):
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, f"{name}."):
        importlib.import_module(module.name)
"""
    completed = run("-c", code)
    assert completed.returncode == 0, completed.stderr


@pytest.mark.parametrize("name", regard.__all__)
def test_every_public_name_resolves_and_is_listed(name):
    assert getattr(regard, name) is not None
    assert name in dir(regard)


def test_the_stub_lists_the_public_names_and_their_modules(root):
    tree = ast.parse((root / "src/regard/__init__.pyi").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    names = [name.name for node in imports for name in node.names]
    assert len(names) == len(set(names))
    assert set(names) == {*regard.__all__, "training"} - {"__version__"}
    for node in imports:
        module = importlib.import_module("." * node.level + (node.module or ""), "regard")
        for name in node.names:
            assert name.asname == name.name  # else type checkers do not count it as exported
            if name.name != "training":  # whose extra may not be installed
                assert getattr(module, name.name) is getattr(regard, name.name)


def test_all_public_names_can_be_imported_at_once():
    completed = run("-c", "from regard import *; print(attend.__module__, Causal.__module__)")
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.split() == ["regard.ops.attend", "regard.ops.masks.window"]


@pytest.mark.parametrize("name", ["regard.data", "regard.explore", "regard.metrics", "regard.text"])
def test_packages_export_their_public_names(name):
    package = importlib.import_module(name)
    assert package.__all__
    assert all(getattr(package, each) is not None for each in package.__all__)


@pytest.mark.parametrize("first", ["regard.show", "regard.explore.display", "regard.explore.server"])
def test_names_of_explore_are_functions_whatever_is_imported_first(first, tmp_path):
    names = ["show", "write_html", "serve", "attention_table"]
    code = f"""
import importlib, sys, regard
assert "regard.explore" not in sys.modules
{first if first == "regard.show" else f"importlib.import_module('{first}')"}
from regard.explore import {", ".join(names)}
assert all(map(callable, ({", ".join(names)})))
assert {set(names)} == set(dir(regard.explore))
"""
    completed = run_code(code, folder=tmp_path)
    assert completed.code == 0, completed.err


def test_without_the_extra_everything_but_the_server_is_there():
    code = """
import sys
sys.modules["starlette"] = None
import regard.errors
from regard.explore import *
try:
    regard.explore.serve
except regard.errors.MissingExtra as error:
    print(error)
"""
    completed = run("-c", code)
    assert (completed.returncode, completed.stderr) == (0, "")
    assert "needs starlette" in completed.stdout
    assert "pip install 'regard[serve]'" in completed.stdout


def test_an_unknown_name_is_rejected():
    with pytest.raises(AttributeError, match=r"regard.* attribute '?atend"):
        regard.atend  # noqa: B018 - the attribute is the test


def test_the_version_is_that_of_the_installed_package():
    assert metadata.version("regard") == regard.__version__


def test_the_module_runs_like_the_command():
    completed = run("-m", "regard", "--version")
    assert (completed.returncode, completed.stdout) == (0, f"regard {regard.__version__}\n")
    completed = run("-m", "regard", "info")
    assert completed.returncode == 0, completed.stderr
    assert "blockwise" in completed.stdout
