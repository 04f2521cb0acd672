"""The lessons: the first has the numbers of `regard steps`, and their notebooks run what the pages run."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

import regard

ROOT = Path(__file__).parents[1]
LESSONS = sorted((ROOT / "docs" / "learn").glob("*.md"))


def python_of(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def test_the_first_lesson_has_the_numbers_of_regard_steps():
    names: dict[str, object] = {}
    for block in python_of(LESSONS[0].read_text("utf-8"))[:6]:
        exec(block, names)
    steps = regard.trace()
    same = {"input": "words", "query": "Q", "key": "K", "value": "V", "scaled scores": "scaled"}
    same |= {name: name for name in ("W_Q", "W_K", "W_V", "scores", "weights", "output")}
    for step, name in same.items():
        np.testing.assert_allclose(steps[step].squeeze(), names[name], atol=1e-12)


@pytest.fixture(scope="module")
def notebooks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebooks") / "new"
    arguments, sys.argv = sys.argv, ["write_notebooks.py", str(folder)]
    try:
        runpy.run_path(str(ROOT / "tools" / "write_notebooks.py"), run_name="__main__")
    finally:
        sys.argv = arguments
    return folder


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_a_notebook_runs_what_its_page_runs(lesson, notebooks):
    notebook = json.loads((notebooks / f"{lesson.stem}.ipynb").read_text("utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"]) > 10
    code = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    text = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "markdown"]
    blocks = python_of(lesson.read_text("utf-8"))
    assert len(code) == len(blocks)
    for cell, block in zip(code, blocks, strict=True):
        assert compile(cell, "cell", "exec").co_code == compile(block, "block", "exec").co_code
        assert not re.search(r"print\(.*\)  #", cell)  # what it prints is for the reader to find out
    assert "```python" not in "".join(text)
    assert all(text)
