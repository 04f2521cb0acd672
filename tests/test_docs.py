"""The site: it builds without a warning, and every public name has a docstring and a place in the API reference."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = [
    "regard",
    "regard.ops",
    "regard.ops.masks",
    "regard.ops.scores",
    "regard.ops.measures",
    "regard.nn",
    "regard.models",
    "regard.watching",
    "regard.jobs",
    "regard.analysis",
    "regard.recordings",
    "regard.tracing",
    "regard.explore",
    "regard.pipelines",
    "regard.generation",
    "regard.text",
    "regard.data",
    "regard.metrics",
    "regard.training",
    "regard.testing",
    "regard.errors",
]


def exported(package: str) -> set[str]:
    """The names of a package that are not its modules."""
    module = importlib.import_module(package)
    path = Path(str(module.__file__))
    stub = path.with_suffix(".pyi")
    source = (stub if stub.exists() else path).read_text(encoding="utf-8")
    names = re.findall(r"^from \S+ import (\w+) as \1$", source, flags=re.MULTILINE) or list(
        getattr(module, "__all__", [])
    )
    return {name for name in names if not inspect.ismodule(getattr(module, name))}


def value_of(path: str) -> object:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.fixture(scope="module")
def documented() -> dict[int, str]:
    """The objects of the API reference, by identity."""
    pages = (ROOT / "docs" / "reference").glob("*.md")
    paths = [path for page in pages for path in re.findall(r"^::: (\S+)$", page.read_text("utf-8"), flags=re.MULTILINE)]
    assert len(paths) == len(set(paths)) > 150
    return {id(value_of(path)): path for path in paths}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_in_the_reference(package, documented):
    names = exported(package)
    assert names or package in ("regard.testing", "regard.errors")
    module = importlib.import_module(package)
    assert sorted(name for name in names if id(getattr(module, name)) not in documented) == []


def test_every_documented_object_has_a_docstring(documented):
    for path in documented.values():
        value = value_of(path)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), path
