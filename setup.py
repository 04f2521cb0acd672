"""Build the native kernels: one library for each instruction set. All else is in pyproject.toml.

The libraries know nothing of Python and torch, so a wheel serves every version of both. Where there is no compiler they
are left out, and Regard works without them.
"""

from __future__ import annotations

import platform
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FOLDER = "src/regard/ops/kernels/native/csrc"
FLAGS = ["-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fvisibility=hidden"]
LEVELS = {"baseline": []}
if platform.machine().lower() in ("x86_64", "amd64"):
    LEVELS["avx2"] = ["-mavx2", "-mfma", "-mf16c"]
    LEVELS["avx512"] = [f"-mavx512{part}" for part in ("f", "bw", "dq", "vl")]
    LEVELS["avx512"] += ["-mfma", "-mf16c", "-mprefer-vector-width=512"]


class BuildLibraries(build_ext):
    """Extensions without a module of Python: the file's name has no version of Python in it."""

    def get_ext_filename(self, ext_name: str) -> str:
        return str(Path(*ext_name.split(".")).with_suffix(".so"))

    def copy_extensions_to_source(self) -> None:
        Path(FOLDER).with_name("lib").mkdir(exist_ok=True)
        super().copy_extensions_to_source()

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []  # no PyInit_ function


class PlatformWheel(bdist_wheel):
    """One wheel for all versions of Python on a platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[
        Extension(
            f"regard.ops.kernels.native.lib.{level}",
            sources=[f"{FOLDER}/{name}.cpp" for name in ("forward", "backward", "parallel")],
            depends=[str(path) for path in sorted(Path(FOLDER).glob("*.h"))],
            extra_compile_args=[*FLAGS, *flags],
            extra_link_args=["-pthread"],
            language="c++",
            optional=True,
        )
        for level, flags in LEVELS.items()
    ],
    cmdclass={"build_ext": BuildLibraries, "bdist_wheel": PlatformWheel},
)
