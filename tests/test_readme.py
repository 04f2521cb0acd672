"""README, CONTRIBUTING and the site: code runs and prints what they show, figures are measured, and links work."""

from __future__ import annotations

import io
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from regard.cli.main import app

ROOT = Path(__file__).parents[1]
MAX_LINES = {"README.md": 150, ".github/CONTRIBUTING.md": 60}
PAGES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
GENERATED = {ROOT / "docs/command_line.md"}  # by the build of the site


def read(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", read(document), flags=re.DOTALL | re.MULTILINE)


def first_line(document: str, start: str) -> int:
    """The number of the first line that begins so, from 1."""
    return next(number for number, line in enumerate(read(document).splitlines(), 1) if line.startswith(start))


def benchmark(name: str) -> dict[str, Any]:
    """The results of a benchmark script, or of one section: ``"script/section"``."""
    script, _, section = name.partition("/")
    results = json.loads(read(f"benchmarks/results/{script}.json"))
    return results[section] if section else results


EXECUTED_ELSEWHERE = {"docs/page_format.md"}  # tests/explore/test_page_format.py
WITH_PYTHON = [page for page in [*MAX_LINES, *PAGES] if blocks(page, "python") and page not in EXECUTED_ELSEWHERE]


def commands() -> list[str]:
    """The lines that a person would type and that take too long to run here."""
    typed = (
        line.partition("#")[0]
        for document in [*MAX_LINES, *PAGES]
        for block in blocks(document, "console")
        for line in block.splitlines()
    )
    return sorted({line.removeprefix("$ ").strip() for line in typed if line.startswith("$ ")})


def shown_outputs(block: str) -> list[str]:
    """The comment after each print."""
    return re.findall(r"^ *print\(.+\)  # (.+)$", block, flags=re.MULTILINE)


@pytest.mark.filterwarnings(r"ignore:`torch\.jit\.script(_method)?` is deprecated")  # by torch, which calls it
@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated", "ignore:The 'train_dataloader' does not have many")
@pytest.mark.filterwarnings("ignore:OwnAttention. dense weights were recorded")  # as the page says
@pytest.mark.parametrize("document", WITH_PYTHON)
def test_python_blocks_run_in_order_and_print_what_they_show(document, tmp_path, monkeypatch):
    """A comment after a print is its output, which ``: `` and an explanation may follow."""
    monkeypatch.chdir(tmp_path)  # where they write their files
    names: dict[str, object] = {"__name__": "__main__"}
    outputs = []
    for block in blocks(document, "python"):
        shown = shown_outputs(block)
        assert len(shown) == block.count("print("), "a print without its output"
        with redirect_stdout(io.StringIO()) as stream:
            exec(compile(block, document, "exec", dont_inherit=True), names)  # without this file's annotations
        printed = stream.getvalue().splitlines()
        for line, comment in zip(printed, shown, strict=True):
            assert f"{comment}: ".startswith(f"{line}: ")
        outputs += printed
    for name in [name for name in names if not name.startswith("__")]:  # not those of torch.compile
        del names[name]  # the next test would find the page's classes, if torch.compile holds its functions
    if document == "README.md":
        assert len(outputs) >= 5


@pytest.mark.parametrize(("document", "limit"), MAX_LINES.items())
def test_documents_are_short(document, limit):
    assert len(read(document).splitlines()) <= limit


def test_the_readme_begins_with_how_to_install_and_with_code():
    assert first_line("README.md", "$ pip install") <= 12
    assert first_line("README.md", "```python") <= 20
    pitch = read("README.md").partition("\nInstall")[0]
    assert len(re.findall(r"\w[\w-]*", pitch)) <= 60


@pytest.mark.parametrize(
    "block", sorted({block for document in [*MAX_LINES, *PAGES] for block in blocks(document, "sh")})
)
def test_shell_blocks_run(block, tmp_path):
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    completed = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.strip()
    assert (tmp_path / "attention.html").exists() == ("regard show" in block)


def test_there_are_commands_to_check():
    assert {shlex.split(line)[0] for line in commands()} == {"make", "regard", "pip", "torchrun"}


@pytest.mark.parametrize("line", commands())
def test_other_commands_would_be_understood(line):
    program, *arguments = shlex.split(line)
    if program == "torchrun":
        option, number, *module = arguments[:4]
        assert (option, number.isdigit(), module) == ("--nproc-per-node", True, ["-m", "regard"])
        program, arguments = "regard", arguments[4:]
    if program == "make":
        assert f"\n{arguments[0]}:" in read("Makefile")
    elif program == "regard":
        verb, *options = arguments
        group = get_command(app)
        assert isinstance(group, TyperGroup)
        command = group.commands[verb]
        command.make_context(verb, options)
        assert all((ROOT / part).exists() for part in options if part.startswith("recipes/"))
    else:
        verb, target, *options = arguments
        assert (program, verb) == ("pip", "install")
        if target == "torch":
            assert options == ["--index-url", "https://download.pytorch.org/whl/cpu"]
            return
        assert options == []
        folder, _, extras = target.removesuffix("]").partition("[")
        assert (ROOT / folder / "pyproject.toml").exists()
        assert set(filter(None, extras.split(","))) <= set(metadata.metadata("regard").get_all("Provides-Extra"))


@pytest.mark.parametrize("document", ["README.md", "docs/index.md", "docs/getting_started.md"])
def test_where_it_is_installed_the_build_of_torch_for_cpus_is_named(document):
    assert "pip install torch --index-url https://download.pytorch.org/whl/cpu" in read(document)


def test_the_readme_lists_the_extras():
    table = read("README.md").partition("| extra | for |")[2].partition("\n\n")[0]
    listed = [name for row in table.split("\n")[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    provided = metadata.metadata("regard").get_all("Provides-Extra") or []
    assert sorted(listed) == sorted({*provided} - {"all", "dev", "docs"})


@pytest.mark.parametrize(("name", "code"), [("attention.html", 0), ("playground.html", 0), ("page.html", 65)])
def test_make_test_does_not_read_what_make_demo_wrote(tmp_path, name, code):
    (tmp_path / name).write_text("t-eh".replace("-", ""), encoding="utf-8")
    spelling = [sys.executable, "-m", "codespell_lib", "--toml", ROOT / "pyproject.toml", "."]
    assert subprocess.run(spelling, cwd=tmp_path, capture_output=True, check=False).returncode == code


def test_charts_show_what_was_measured_on_the_processor_that_the_readme_names():
    charts = runpy.run_path(str(ROOT / "tools" / "write_charts.py"))
    speed = [f"{value:.2f}" for _, rows in charts["speed_rows"]() for _, value, _ in rows]
    memory = [f"{name}: {sizes[max(sizes)]:,.0f} MB" for name, sizes in charts["memory_lines"]().items()]
    for name, labels in (("speed", speed), ("memory", memory)):
        for theme in ("light", "dark"):
            assert f"docs/charts/{name}-{theme}.svg" in read("README.md")
            texts = re.findall(r"<text [^>]*>([^<]+)</text>", read(f"docs/charts/{name}-{theme}.svg"))
            assert [text for text in texts if text in labels] == labels
    assert "two cores of an AMD CPU with AVX-512" in read("README.md")
    for name in ("attention", "watching/time", "attention_measures/memory"):
        machine = benchmark(name)
        assert (machine["cores"], machine["capability"]) == (2, "AVX512")
    assert "AMD" in benchmark("attention")["cpu"]


MEASURED_PAGES = {"docs/performance.md", "docs/results.md"}  # written from result files, which tests below compare
SPEED = re.compile(
    r"\d (?:times|×) (?:as (?:long|fast|slow)|faster|slower)|\d ?% (?:faster|slower|of the time)"
    r"|\b(?:takes?|took|in) (?:about |only |at most )?\d[\d.,]* ?(?:µs|ms|s|seconds|minutes|hours)\b"
    r"|\| \d[\d.,]* ?(?:µs|ms|s|seconds|minutes|hours) \|"
)
"""A time, or how two times compare: true on one machine, and soon of another version."""


@pytest.mark.parametrize("text", ["takes 1.09 times as long", "is 21 × faster", "picture takes 0.4 s (", "| 105 s |"])
def test_a_figure_of_speed_is_found(text):
    assert SPEED.search(text)


SOURCES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob("*.py"))


@pytest.mark.parametrize("document", [page for page in [*MAX_LINES, *PAGES] if page not in MEASURED_PAGES])
def test_figures_of_speed_are_on_pages_that_are_written_from_results(document):
    assert [match[0] for match in SPEED.finditer(" ".join(read(document).split()))] == []


def test_docstrings_state_no_figures_of_speed():
    actual = {path: [match[0] for match in SPEED.finditer(" ".join(read(path).split()))] for path in SOURCES}
    assert {path: matches for path, matches in actual.items() if matches} == {}


def test_the_page_of_performance_is_written_from_what_was_measured():
    script = ROOT / "benchmarks" / "write_performance_page.py"
    page = runpy.run_path(str(script))["page"]
    assert (ROOT / "docs" / "performance.md").read_text(encoding="utf-8") == page()


def test_the_page_of_results_is_written_from_what_was_reached():
    page = runpy.run_path(str(ROOT / "experiments" / "results.py"))["page"]
    assert (ROOT / "docs" / "results.md").read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("document", [*MAX_LINES, "CHANGELOG.md", *PAGES])
def test_links_lead_somewhere(document):
    path = ROOT / document
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]
    paths = [(path.parent / target).resolve() for target in targets]
    assert [each for each in paths if not each.exists() and each not in GENERATED] == []
