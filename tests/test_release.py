"""What is released: the wheel has all files of the package and nothing else, and versions are stated once."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import regard

ROOT = Path(__file__).parents[1]


def test_the_wheel_has_all_files_of_the_package(tmp_path):
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(command, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    package = ROOT / "src" / "regard"
    files = {path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert packed == {str(path.relative_to(package.parent)) for path in files}
    check = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", str(wheel)], capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, check.stdout


def test_the_lowest_versions_are_those_of_the_package():
    """They are installed and tested as constraints-lowest.txt has them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints-lowest.txt").read_text("utf-8"), re.MULTILINE))
    extras = [line for name, lines in project["optional-dependencies"].items() if name != "docs" for line in lines]
    for line in [*project["dependencies"], *extras]:
        needed = Requirement(line)
        if needed.name != "regard":
            (lowest,) = [each.version for each in needed.specifier if each.operator == ">="]
            assert Version(pins[needed.name.lower().replace("_", "-")]) == Version(lowest), line


def test_the_version_is_stated_once():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == regard.__version__
    assert f"## {regard.__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8")
