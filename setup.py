"""Build the native kernels: one library for each instruction set. All else is in pyproject.toml.

The libraries know nothing of Python and torch, so a wheel serves every version of both. Where there is no compiler they
are left out, and Regard works without them.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from copy import copy
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FOLDER = Path("src/regard/native/csrc")
FLAGS = ["-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fvisibility=hidden"]
FLAGS += ["-g0"]  # after Python's own -g, which makes a library ten times as large
AVX512 = [*(f"-mavx512{part}" for part in ("f", "bw", "dq", "vl")), "-mfma", "-mf16c", "-mprefer-vector-width=512"]
X86_LEVELS = {
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": AVX512,
    "avx512bf16": [*AVX512, "-mavx512bf16"],
    "amx": [*AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"],
}


def levels() -> dict[str, list[str]]:
    """The compiler's flags for each instruction set of the platform that is built for."""
    if sys.platform == "win32":  # its usual compiler has no vectors of GCC's kind
        return {}
    platform = sysconfig.get_platform()
    if not platform.endswith(("x86_64", "universal2")):
        return {"baseline": []}  # has NEON on ARM
    if sys.platform == "darwin":  # a universal library has two halves, and the flags are for one
        return {"baseline": [], **{level: _for_x86_half(flags) for level, flags in X86_LEVELS.items()}}
    return {"baseline": [], **X86_LEVELS}


def _for_x86_half(flags: list[str]) -> list[str]:
    return [part for flag in flags for part in ("-Xarch_x86_64", flag)]


class BuildLibraries(build_ext):
    """Extensions without a module of Python: the file's name has no version of Python in it."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or True  # as many libraries at once as there are cores

    def build_extension(self, ext: Extension) -> None:
        library = copy(self)
        library.build_temp = str(Path(self.build_temp, ext.name))  # all have the same sources
        super(BuildLibraries, library).build_extension(ext)

    def get_ext_filename(self, ext_name: str) -> str:
        return str(Path(*ext_name.split(".")).with_suffix(".so"))

    def copy_extensions_to_source(self) -> None:
        folder = FOLDER.with_name("lib")
        folder.mkdir(exist_ok=True)
        for old in folder.glob("*.so"):  # one that can no longer be built must not stay
            old.unlink()
        super().copy_extensions_to_source()

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []  # no PyInit_ function


class PlatformWheel(bdist_wheel):
    """One wheel for all versions of Python on a platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


if sys.platform == "darwin":
    os.environ.setdefault("MACOSX_DEPLOYMENT_TARGET", "11.0")  # older ones lack aligned_alloc

setup(
    ext_modules=[
        Extension(
            f"regard.native.lib.{level}",
            sources=[str(path) for path in sorted(FOLDER.glob("*.cpp"))],
            depends=["setup.py", *(str(path) for path in sorted(FOLDER.rglob("*.h")))],
            extra_compile_args=[*FLAGS, *flags],
            extra_link_args=["-pthread"],
            language="c++",
            optional=True,
        )
        for level, flags in levels().items()
    ],
    cmdclass={"build_ext": BuildLibraries, "bdist_wheel": PlatformWheel},
)
