"""The shape of the package: imports are cheap, every public name resolves, both ways to start it do."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib import metadata

import pytest

import regard

HEAVY = {
    "torch",
    "jaxtyping",
    "numpy",
    "lightning",
    "datasets",
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
        *(
            f"import sys; sys.argv[1:] = {[*verb, '--help']}\ntry: import regard.__main__ as start; start.main()\n"
            "except SystemExit as end: assert end.code == 0"
            for verb in ([], ["look"], ["translate"], ["generate"], ["evaluate"], ["train"], ["info"])
        ),
    ],
)
def test_imports_and_help_load_nothing_heavy(code):
    done = run("-c", f"{code}\nimport sys; print('loaded:', *sys.modules)")
    assert done.returncode == 0, done.stderr
    assert not HEAVY.intersection(done.stdout.partition("loaded:")[2].split())


def test_help_takes_less_than_half_a_second_of_user_time():
    def user_time() -> float:
        child = subprocess.Popen([sys.executable, "-m", "regard", "--help"], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0
        return usage.ru_utime

    assert min(user_time() for _ in range(5)) < 0.5


@pytest.mark.parametrize("name", regard.__all__)
def test_every_public_name_resolves_and_is_listed(name):
    assert getattr(regard, name) is not None
    assert name in dir(regard)


def test_the_names_that_type_checkers_see_are_the_names_that_load(root):
    tree = ast.parse((root / "src/regard/__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {name.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert seen == {**regard._HOMES, **dict.fromkeys(regard._MODULES, "regard")}
    assert sorted([*seen, "__version__"]) == sorted([*regard.__all__, "open", "training"])


def test_an_unknown_name_is_refused():
    with pytest.raises(AttributeError, match="module 'regard' has no attribute 'atend'"):
        regard.atend  # noqa: B018 - the attribute is the test


def test_the_version_is_the_one_that_is_installed():
    assert metadata.version("regard") == regard.__version__


def test_the_module_runs_as_the_command_does():
    done = run("-m", "regard", "--version")
    assert (done.returncode, done.stdout) == (0, f"regard {regard.__version__}\n")
    done = run("-m", "regard", "info")
    assert done.returncode == 0, done.stderr
    assert "blockwise" in done.stdout
