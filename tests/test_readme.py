"""What the README and CONTRIBUTING tell people to type works as it stands there."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from regard.cli.main import app

ROOT = Path(__file__).parents[1]
DOCUMENTS = ["README.md", "CONTRIBUTING.md"]


def blocks(document: str, language: str) -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    """The lines that a person would type and that are too long to run here."""
    typed = (
        line.partition("#")[0]
        for document in DOCUMENTS
        for block in blocks(document, "console")
        for line in [*block.splitlines()]
    )
    return sorted({line.removeprefix("$ ").strip() for line in typed if line.startswith("$ ")})


@pytest.mark.parametrize("document", DOCUMENTS)
def test_python_blocks_run_in_their_order(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where they write their files
    found = blocks(document, "python")
    assert found
    names: dict[str, object] = {"__name__": "__main__"}
    for block in found:
        exec(compile(block, document, "exec"), names)


@pytest.mark.parametrize("block", blocks("README.md", "sh"))
def test_shell_blocks_run(block, tmp_path):
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert (tmp_path / "attention.html").exists() == ("regard look" in block)


def test_there_are_commands_to_check():
    assert {shlex.split(line)[0] for line in commands()} == {"make", "regard", "pip"}


@pytest.mark.parametrize("line", commands())
def test_other_commands_would_be_understood(line):
    program, *arguments = shlex.split(line)
    if program == "make":
        assert f"\n{arguments[0]}:" in (ROOT / "Makefile").read_text(encoding="utf-8")
    elif program == "regard":
        verb, *options = arguments
        group = get_command(app)
        assert isinstance(group, TyperGroup)
        command = group.commands[verb]
        command.make_context(verb, options)
        assert all((ROOT / part).exists() for part in options if part.startswith("recipes/"))
    else:
        verb, target = arguments
        assert (program, verb) == ("pip", "install")
        place, _, extras = target.removesuffix("]").partition("[")
        assert (ROOT / place / "pyproject.toml").exists()
        assert set(filter(None, extras.split(","))) <= set(metadata.metadata("regard").get_all("Provides-Extra"))


@pytest.mark.parametrize(("name", "code"), [("attention.html", 0), ("page.html", 65)])
def test_make_test_does_not_read_what_make_demo_wrote(tmp_path, name, code):
    (tmp_path / name).write_text("t-eh".replace("-", ""), encoding="utf-8")
    spelling = [sys.executable, "-m", "codespell_lib", "--toml", ROOT / "pyproject.toml", "."]
    assert subprocess.run(spelling, cwd=tmp_path, capture_output=True, check=False).returncode == code


def test_figures_are_those_that_were_measured():
    found = [json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "benchmarks/results").glob("*.json")]
    measured = {what: f"{ratio:.2f}" for result in found for what, ratio in result["median_ratio"].items()}
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| ([^|`]+) \| (\d+\.\d\d) \|$", text, flags=re.MULTILINE))
    assert told.items() <= measured.items()
    assert len(told) >= 5
    settings = {name: value for result in found for name, value in result["settings"].items()}
    shares = [settings[f"share of the floor, batch 1, {dtype}"] for dtype in ("float32", "default")]
    assert [f"{share:.0%}".replace("%", " %") for share in shares] == re.findall(r"at (\d+ %)", text)
    memory = next(result["settings"]["peak_megabytes"] for result in found if "peak_megabytes" in result["settings"])
    assert [f"{megabytes:.0f}" for megabytes in memory.values()] == re.findall(r"(\d+) MB", text)


def test_the_page_of_costs_is_written_from_what_was_measured():
    script = ROOT / "benchmarks" / "costs.py"
    page = runpy.run_path(str(script))["page"]
    assert (ROOT / "docs" / "costs.md").read_text(encoding="utf-8") == page()


def test_the_page_of_results_is_written_from_what_was_reached():
    page = runpy.run_path(str(ROOT / "recipes" / "results.py"))["page"]
    assert (ROOT / "docs" / "results.md").read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("document", [*DOCUMENTS, *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_links_lead_somewhere(document):
    path = ROOT / document
    text = path.read_text(encoding="utf-8")
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]
    assert [target for target in targets if not (path.parent / target).exists()] == []
