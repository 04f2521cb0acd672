"""The guide to new kinds of steps, followed literally: a copy of the repository gets its mask and its measure."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from helpers.ops.native_library import python
from regard.native.library import library

ROOT = Path(__file__).parents[4]
GUIDE = (ROOT / "docs/extending/rules.md").read_text("utf-8").partition("### A new kind of step")[2]
COMPILED = (".h", "/library.py")
MAX_LINES, MAX_FILES = 12, 4

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the compiler is called as on Linux"),
    pytest.mark.skipif(isinstance(library(), str), reason=f"native: {library()}"),
]

COMPARE = """
import torch
from regard.ops import attend
from regard.ops.masks import Causal, Dilated, Padding
from regard.ops.measures import Gini
from regard.testing import check

for rule in (Dilated(2, 3), Gini()):
    check(rule, shapes=[(2, 2, 7, 12)])

def results(kernel, mask, shape):
    batch, heads, queries, keys = shape
    random = torch.Generator().manual_seed(0)
    leaves = [torch.randn(batch, heads, n, 8, generator=random).requires_grad_() for n in (queries, keys, keys)]
    att = attend(*leaves, mask=mask, measure=Gini(), kernel=kernel)
    loss = att.output.square().sum() + (att.measured["gini"] * torch.linspace(0.5, 1.5, queries)).sum()
    return [att.output, att.measured["gini"], *torch.autograd.grad(loss, leaves)]

for shape in ((2, 2, 7, 12), (1, 2, 150, 150), (1, 1, 1, 200)):
    lengths = torch.tensor([9, 11][: shape[0]])
    for mask in (Dilated(3, 2), Dilated(90, 1), ~Dilated(2, 5) | Causal(), Dilated(4, 30) & Padding(lengths)):
        for actual, expected in zip(*(results(kernel, mask, shape) for kernel in ("native", "reference")), strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
"""


class Edit(NamedTuple):
    """A block of the guide: a new file, or lines next to a line of a file."""

    path: str
    where: str
    anchor: str
    block: str

    def apply(self, root: Path) -> None:
        file = root / self.path
        if not self.where:
            assert not file.exists(), f"{self.path} exists"
            file.write_text(self.block)
            return
        lines = file.read_text("utf-8").splitlines(keepends=True)
        matching = [number for number, line in enumerate(lines) if self.anchor in line]
        assert len(matching) == 1, f"{self.path} has {len(matching)} lines with {self.anchor}"
        lines.insert(matching[0] + (self.where == "after"), self.block)
        file.write_text("".join(lines))


BLOCK = r"`([\w/.]+/[\w.]+)`(?:, (before|after) the line with `([^`]+)`)?:\n\n```\w+\n(.*?)^```$"
EDITS = [Edit(*parts) for parts in re.findall(BLOCK, GUIDE, flags=re.DOTALL | re.MULTILINE)]
LOWERING = [edit for edit in EDITS if edit.path.endswith(COMPILED)]
CLASSES = [edit for edit in EDITS if edit not in LOWERING]


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "src"), str(folder / "tests")])}
    environment |= {"REGARD_ISA": "baseline", "REGARD_TEST_ALL": "0", "PYTEST_ADDOPTS": ""}
    return subprocess.run(python(*command), cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_steps(folder: Path) -> subprocess.CompletedProcess[str]:
    return run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/ops/kernels/test_steps.py")


test_steps.__test__ = False  # pyright: ignore[reportFunctionMemberAccess]


def test_every_block_of_the_guide_names_its_file():
    assert len(EDITS) == GUIDE.count("```") // 2


@pytest.mark.parametrize("name", ["Dilated", "Gini"])
def test_the_lowering_of_a_class_is_a_few_lines(name):
    start = next(n for n, edit in enumerate(EDITS) if f"class {name}(" in edit.block)
    stop = next((n for n in range(start + 1, len(EDITS)) if not EDITS[n].where), len(EDITS))
    (steps,) = re.findall(r"    def steps\(.*", EDITS[start].block, flags=re.DOTALL)
    blocks = {EDITS[start].path: [steps]}
    for edit in EDITS[start:stop]:
        if edit in LOWERING:
            blocks.setdefault(edit.path, []).append(edit.block)
    lines = [line for of_file in blocks.values() for block in of_file for line in block.splitlines()]
    assert len(blocks) <= MAX_FILES
    assert len(lines) <= MAX_LINES


def test_the_guide_adds_a_mask_and_a_measure_with_kernels_and_gradients(tmp_path):
    compiler = shutil.which("g++") or pytest.skip("there is no g++")
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    for name in ("src/regard", "tests/helpers", "tests/ops"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for name in ("pyproject.toml", "tests/conftest.py"):
        shutil.copy(ROOT / name, tmp_path / name)

    for edit in CLASSES:
        edit.apply(tmp_path)
    before = test_steps(tmp_path)
    assert before.returncode == 1, before.stdout
    assert "Dilated: add ['dilated'] to csrc/call.h" in before.stdout
    assert "Gini: add ['gini'] to" in before.stdout

    for edit in LOWERING:
        edit.apply(tmp_path)
    sources = sorted(map(str, (tmp_path / "src").rglob("*.cpp")))
    libraries = (tmp_path / LOWERING[0].path).with_name("lib")
    libraries.mkdir(exist_ok=True)
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-pthread"]
    subprocess.run([compiler, *flags, *sources, "-o", libraries / "baseline.so"], check=True)
    after = test_steps(tmp_path)
    assert after.returncode == 0, after.stdout
    compared = run(tmp_path, "-c", COMPARE)
    assert compared.returncode == 0, compared.stderr
