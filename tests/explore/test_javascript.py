"""The page's JavaScript: its types by the TypeScript compiler, its numbers by tests that node runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from regard.explore.page import modules

HERE = Path(__file__).parent / "js"
STATIC = Path(__file__).parents[2] / "src/regard/explore/static"
OLDEST = 20
PURE = (
    "data/combined_heads.js",
    "data/heads.js",
    "data/layer.js",
    "data/links.js",
    "data/page_format.js",
    "data/recording.js",
    "data/tokens.js",
    "state/store.js",
    "ui/color.js",
    "ui/elements.js",
    "views/matrix_layout.js",
)
"""Modules in which nothing goes without a type."""


def missing(what: str) -> None:
    """Skip a check, and say why; in continuous integration it has failed."""
    if os.environ.get("CI"):
        pytest.fail(f"CI is set, so the checks of the page's JavaScript must run, but {what}")
    pytest.skip(what)


@pytest.fixture(scope="module")
def node() -> str:
    path = shutil.which("node")
    if path is None:
        missing("no node was found")
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(re.match(r"v(\d+)", version)[1]) < OLDEST:
        missing(f"node is {version}, and {OLDEST} is the oldest that can run them")
    return path


def run(*command: object) -> None:
    done = subprocess.run([*map(str, command)], cwd=HERE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("project", ["tsconfig.json", "tsconfig.numbers.json"])
def test_types_are_right(node, project):
    compiler = HERE / "node_modules/typescript/bin/tsc"
    if not compiler.exists():
        missing(f"there is no TypeScript: `npm ci --prefix {HERE}` installs it")
    run(node, compiler, "-p", HERE / project)


def test_the_tests_of_its_numbers_pass(node):
    tests = sorted(HERE.glob("*.test.js"))
    assert tests
    run(node, "--test", *tests)


def test_every_module_is_type_checked_and_what_computes_is_so_strictly():
    assert "static/**/*.js" in (HERE / "tsconfig.json").read_text("utf-8")
    strict = re.findall(r"static/([\w./]+)\"", (HERE / "tsconfig.numbers.json").read_text("utf-8"))
    assert sorted(strict) == sorted(PURE)
    assert set(strict) <= set(modules())
    unchecked = [
        path.name for path in STATIC.rglob("*.js") if re.search(r"@ts-(nocheck|ignore)", path.read_text("utf-8"))
    ]
    assert unchecked == []
