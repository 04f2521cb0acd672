"""The libraries of the native kernel: each instruction set is right, and one that fails to load stops nothing."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import regard
from helpers.forked import run_code
from helpers.ops.native_library import FLAGS, FOLDER, SOURCES, copy_package, python
from regard.errors import KernelNotSupported
from regard.native.library import KINDS, LEVELS, GeluCall, Library, LinearCall, NativeCall, library
from regard.ops import attend
from regard.ops.kernels.native.kernel import Native

pytestmark = pytest.mark.skipif(isinstance(library(), str), reason=f"native: {library()}")
BUILT = Path(regard.__file__).parent / FOLDER

COMPARE = """
import torch
from regard.diagnostics.cases import CASES
from regard.diagnostics.comparison import compare
from regard.ops.kernels.native.kernel import Native

kernel = Native()
print(kernel.variant(), kernel.unavailable_reason())
if kernel.variant():
    found = [x for case in CASES for dtype in kernel.dtypes for x in compare(kernel, case, dtype, torch.device("cpu"))]
    print(len(found) > 300, *(str(each) for each in found if each.is_wrong), sep="\\n")
"""


def run_forked(code: str, folder: Path, isa: str) -> str:
    """Run code with an instruction set in a process that has imported the package, but has loaded no library."""
    completed = run_code(code, folder=folder, timeout=120, REGARD_ISA=isa)
    assert completed.code == 0, completed.err
    return completed.out


def run(code: str, environment: dict[str, str]) -> str:
    completed = subprocess.run(
        python("-c", code), env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


@pytest.mark.parametrize("level", LEVELS)
def test_each_instruction_set_is_right(level, tmp_path):
    out = run_forked(COMPARE, tmp_path, level)
    if "this processor has" in out:
        pytest.skip(out.strip())
    assert out == f"{level} None\nTrue\n"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the compiler is called as on Linux")
def test_the_tiles_of_amx_are_right_where_they_are_emulated(tmp_path):
    compiler = shutil.which("g++") or pytest.skip("there is no g++")
    loaded = library()
    if not isinstance(loaded, Library) or loaded.level not in ("avx512bf16", "amx"):
        pytest.skip("the processor has no products of bfloat16")
    folder, environment = copy_package(tmp_path)
    shutil.copytree(BUILT, folder)
    flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-pthread", "-DREGARD_EMULATE_AMX", *FLAGS["avx512bf16"]]
    sources = [str(path) for path in sorted(SOURCES.glob("*.cpp"))]
    subprocess.run([compiler, *flags, *sources, "-o", folder / "avx512bf16.so"], check=True)
    out = run(COMPARE, {**environment, "REGARD_ISA": "avx512bf16"})
    assert out == "avx512bf16 None\nTrue\n"


OTHER_FOLDER = """
from regard.native import library

assert library.library.cache_info().currsize == 0
library.__file__ = {path!r}
"""
CALL = """
import json, torch
from regard.cli.info import gather
from regard.errors import KernelNotSupported
from regard.ops import attend
from regard.ops.kernels.base import KernelInputs
from regard.ops.kernels.dispatch import select_kernel
from regard.ops.measures import Entropy

query, key, value = torch.randn(3, 1, 2, 300, 8).unbind()
att = attend(query, key, value, measure=["entropy", "received"])
exact = attend(query, key, value, kernel="reference")
inputs = KernelInputs(value, att.weights.request, {"entropy": Entropy()})
try:
    attend(query, key, value, kernel="native")
    refused = ""
except KernelNotSupported as error:
    refused = str(error)
print(json.dumps({
    "info": gather()["kernels"].get("native"),
    "chosen": select_kernel(inputs).name,
    "right": torch.allclose(att.output, exact.output, atol=1e-5),
    "refused": refused,
}))
"""


def nothing(folder: Path) -> None:
    """The folder is missing."""


def empty(folder: Path) -> None:
    folder.mkdir()


def corrupt(folder: Path) -> None:
    folder.mkdir()
    for level in LEVELS:
        (folder / f"{level}.so").write_bytes(b"no library")


def foreign(folder: Path) -> None:
    """A library of another project."""
    folder.mkdir()
    import _ctypes

    for level in LEVELS:
        shutil.copy(_ctypes.__file__, folder / f"{level}.so")


def outdated(folder: Path) -> None:
    """A library whose structures are of another version."""
    folder.mkdir()
    compiler = shutil.which("g++") or pytest.skip("there is no g++")
    functions = "int regard_level() { return 0; } int regard_call_bytes() { return 8; } int regard_run() { return 0; }"
    source = folder / "outdated.cpp"
    source.write_text(f'extern "C" {{ {functions} }}')
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", folder / "baseline.so"], check=True)


def other_kinds(folder: Path) -> None:
    """A library with another order of measures."""
    folder.mkdir()
    compiler = shutil.which("g++") or pytest.skip("there is no g++")
    kinds = KINDS.replace("ENTROPY LSE", "LSE ENTROPY")
    assert kinds != KINDS
    call_bytes = sum(map(ctypes.sizeof, (NativeCall, LinearCall, GeluCall)))
    functions = f"""
        int regard_level() {{ return 0; }}
        int regard_run() {{ return 0; }}
        int regard_linear() {{ return 0; }}
        int regard_gelu() {{ return 0; }}
        int regard_call_bytes() {{ return {call_bytes}; }}
        const char* regard_kinds() {{ return "{kinds}"; }}
    """
    source = folder / "other_kinds.cpp"
    source.write_text(f'extern "C" {{ {functions} }}')
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", folder / "baseline.so"], check=True)


def only_baseline(folder: Path) -> None:
    folder.mkdir()
    shutil.copy(BUILT / "baseline.so", folder)


def unreadable(folder: Path) -> None:
    """A folder where a file should be."""
    folder.mkdir()
    for level in LEVELS:
        (folder / f"{level}.so").mkdir()


def everything(folder: Path) -> None:
    shutil.copytree(BUILT, folder)


@pytest.mark.skipif(sys.platform == "win32", reason="creating links needs a privilege")
@pytest.mark.parametrize(
    ("fill", "isa", "reason"),
    [
        (nothing, "", "baseline.so was not built"),
        (empty, "", "baseline.so was not built"),
        (corrupt, "", "its library cannot be loaded"),
        (foreign, "", "its library cannot be loaded (baseline.so was built from other sources)"),
        (outdated, "", "its library cannot be loaded (baseline.so was built from other sources)"),
        (other_kinds, "", "its library cannot be loaded (baseline.so was built from other sources)"),
        (unreadable, "", "its library cannot be loaded"),
        (only_baseline, "avx2", "its library for avx2 cannot be loaded (avx2.so was not built)"),
        (everything, "avx9", "REGARD_ISA=avx9, but this processor has baseline"),
    ],
)
def test_other_kernels_run_if_the_library_cannot_be_loaded(tmp_path, fill, isa, reason):
    folder = tmp_path / FOLDER.name
    fill(folder)
    if isa == "avx2" and not (BUILT / "avx2.so").exists():
        pytest.skip("there is one instruction set")
    elsewhere = OTHER_FOLDER.format(path=str(folder.with_name("library.py")))
    actual = json.loads(run_forked(elsewhere + CALL, tmp_path, isa))
    assert actual["info"].startswith("not available: ")
    assert reason in actual["info"]
    assert reason in actual["refused"]
    assert actual["chosen"] == "blockwise"
    assert actual["right"]


def test_the_copy_of_the_package_works(tmp_path):
    folder, environment = copy_package(tmp_path)
    everything(folder)
    actual = json.loads(run(CALL, environment))
    assert (actual["info"], actual["chosen"], actual["refused"]) == (None, "native", "")


def test_a_lower_instruction_set_can_be_selected(tmp_path):
    folder, environment = copy_package(tmp_path)
    only_baseline(folder)
    actual = json.loads(run(CALL, environment | {"REGARD_ISA": "baseline"}))
    assert (actual["chosen"], actual["right"]) == ("native", True)


def test_an_instruction_set_that_the_processor_does_not_have_is_refused():
    query = torch.zeros(1, 1, 3, 4)
    with pytest.raises(
        KernelNotSupported, match=r"level='avx9', but this processor has baseline.*; choose one of these"
    ):
        attend(query, query, query, kernel=Native(level="avx9"))
