"""What is released: the wheel has all files of the package and nothing else, and versions are stated once."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import regard
from regard.native.library import LEVELS

ROOT = Path(__file__).parents[1]
LIB = Path("regard/native/lib")


@pytest.mark.slow
def test_the_wheel_has_all_files_of_the_package_and_works(tmp_path):
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(command, capture_output=True, check=True)  # the source, and the wheel from it
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {Path(name) for name in archive.namelist() if ".dist-info/" not in name}
        libraries = {path for path in packed if path.parent == LIB}
        assert not [path for path in libraries if b".debug_info" in archive.read(path.as_posix())]
    package = ROOT / "src" / "regard"
    files = {path.relative_to(package.parent) for path in package.rglob("*") if path.is_file()}
    left_out = {LIB, LIB.with_name("csrc")}
    assert packed - libraries == {
        path for path in files if "__pycache__" not in path.parts and not left_out & set(path.parents)
    }
    assert {path.stem for path in libraries} == (set(_levels()) if _has_compiler() else set())
    _assert_succeeds("-m", "twine", "check", "--strict", *map(str, tmp_path.glob("regard-*")))
    python = _environment_with(wheel, tmp_path / "environment")
    _assert_succeeds(str(ROOT / ".ci/try_wheel.py"), *(["native"] if libraries else []), python=python, cwd=tmp_path)


def test_without_a_compiler_the_libraries_are_left_out(tmp_path, monkeypatch):
    for name in ("CC", "CXX"):
        monkeypatch.setenv(name, "false")
    folders = "--build-lib", str(tmp_path), "--build-temp", str(tmp_path)
    _assert_succeeds("setup.py", "-q", "build_ext", *folders, cwd=ROOT)
    assert not list(tmp_path.rglob("*.so"))


def _compiler() -> str:
    return os.environ.get("CXX") or sysconfig.get_config_var("CXX") or ""


def _has_compiler() -> bool:
    return bool(_compiler()) and shutil.which(_compiler().split()[0]) is not None


def _levels() -> tuple[str, ...]:
    return LEVELS if platform.machine().lower() in ("x86_64", "amd64") else LEVELS[:1]


def _environment_with(wheel: Path, folder: Path) -> str:
    """The Python of an environment that has the wheel, and all else from this environment."""
    venv.create(folder)
    python = str(next(path for name in ("bin/python", "Scripts/python.exe") if (path := folder / name).exists()))
    _assert_succeeds("-m", "pip", "--python", python, "install", "--no-deps", "--no-index", str(wheel))
    (own,) = folder.rglob("site-packages")
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib"), "utf-8")  # comes after the wheel
    return python


def _assert_succeeds(*arguments: str, python: str = sys.executable, **options: Any) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    completed = subprocess.run(
        [python, *arguments], env=environment, capture_output=True, text=True, check=False, **options
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr


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
