"""Other libraries for the native kernel: a copy of the package whose folder of libraries a test fills."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import regard

TESTS = Path(__file__).parents[2]
FOLDER = Path("native/lib")
SOURCES = Path(regard.__file__).parent / "native/csrc"
FLAGS = {
    "baseline": [],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": (AVX512 := [*(f"-mavx512{part}" for part in ("f", "bw", "dq", "vl")), "-mfma", "-mf16c"]),
    "avx512bf16": [*AVX512, "-mavx512bf16"],
    "amx": [*AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"],
}


def copy_package(folder: Path) -> tuple[Path, dict[str, str]]:
    """Link the files of the package into a folder, without the libraries.

    Returns:
        The folder for the libraries, which does not exist yet, and the environment of a process that uses the copy.
    """
    package = Path(regard.__file__).parent
    shutil.copytree(package, folder / "regard", copy_function=os.symlink, ignore=shutil.ignore_patterns("*.so"))
    libraries = folder / "regard" / FOLDER
    shutil.rmtree(libraries, ignore_errors=True)
    path = os.pathsep.join([str(folder), str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return libraries, {**os.environ, "PYTHONPATH": path, "REGARD_TEST_ALL": "0", "REGARD_ISA": ""}


def python(*arguments: str) -> list[str]:
    """A command that runs Python with warnings that are errors, as in the tests."""
    return [sys.executable, "-W", "error", *arguments]
