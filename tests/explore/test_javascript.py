"""The page's JavaScript: its types by the TypeScript compiler, its numbers and sizes by tests that node runs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from helpers.explore.javascript import HERE, missing
from regard.explore.static_files import module_sources

STATIC = Path(__file__).parents[2] / "src/regard/explore/static"
OLDEST = 20


@pytest.fixture(scope="module")
def node() -> str:
    path = shutil.which("node")
    if path is None:
        missing("no node was found")
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(re.match(r"v(\d+)", version)[1]) < OLDEST:
        missing(f"node is {version}, and {OLDEST} is the oldest that can run them")
    return path


def run(*command: object) -> str:
    completed = subprocess.run([*map(str, command)], cwd=HERE, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


def test_types_are_right(node):
    compiler = HERE / "node_modules/typescript/bin/tsc"
    if not compiler.exists():
        missing(f"there is no TypeScript: `npm ci --prefix {HERE}` installs it")
    run(node, compiler, "-p", HERE / "tsconfig.json")


def test_the_tests_that_node_runs_pass(node):
    tests = sorted(HERE.glob("*.test.js"))
    assert tests
    output = run(node, "--test", *tests)
    if not re.search(r"^\S+ skipped 0$", output, flags=re.MULTILINE):
        missing(f"there is no TypeScript to measure functions: `npm ci --prefix {HERE}` installs it")


def test_every_module_is_type_checked_strictly():
    config = json.loads((HERE / "tsconfig.json").read_text("utf-8"))
    options = config["compilerOptions"]
    assert (options["checkJs"], options["strict"]) == (True, True)
    assert not [name for name, value in options.items() if value is False]
    checked = {path.resolve() for pattern in config["include"] for path in HERE.glob(pattern)}
    assert checked == {path for pattern in ("*.js", "*.mjs") for path in STATIC.rglob(pattern)}
    unchecked = [
        path.name for path in checked if re.search(r"@ts-(nocheck|ignore|expect-error)", path.read_text("utf-8"))
    ]
    assert unchecked == []


def test_no_module_imports_itself_by_way_of_others():
    """Biome checks this too, but is not installed everywhere; each module is after those that it imports."""
    imports = {
        name: set(re.findall(r'from "#([\w/]+\.js)"', source)) for name, source in module_sources("main.js").items()
    }
    assert list(TopologicalSorter(imports).static_order())[-1] == "main.js"
    positions = {name: position for position, name in enumerate(imports)}
    assert all(positions[other] < positions[name] for name, others in imports.items() for other in others)
