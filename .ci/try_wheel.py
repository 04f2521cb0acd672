"""Check an installed wheel: its native libraries give what PyTorch gives, and the bundled model translates.

Run it with the Python of an environment where Regard is installed, from any folder; `native` says that this platform's
wheel must have the libraries.
"""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path

import torch

import regard
from regard.native.library import LEVELS, Library, library
from regard.pipelines import Translator


def check_place() -> None:
    """Regard comes from the wheel, not from a clone."""
    installed = Path(str(metadata.distribution("regard").locate_file("regard"))).resolve()
    assert Path(regard.__file__).resolve().parent == installed, f"{regard.__file__} is not in {installed}"
    assert not list(installed.rglob("csrc")), "a wheel has the libraries and not their source"


def check_native() -> list[str]:
    """Each library that this processor can run, against PyTorch operations."""
    query, key, value = torch.randn(3, 1, 2, 300, 64).unbind()
    expected = regard.attend(query, key, value, mask=regard.Causal(), measure="entropy", kernel="reference")
    checked: list[str] = []
    for level in LEVELS:
        os.environ["REGARD_ISA"] = level
        library.cache_clear()
        if isinstance(library(), Library):
            att = regard.attend(query, key, value, mask=regard.Causal(), measure="entropy", kernel="native")
            torch.testing.assert_close(att.output, expected.output)
            torch.testing.assert_close(att.measured["entropy"], expected.measured["entropy"])
            checked.append(level)
    return checked


def check_translation() -> None:
    """The bundled model."""
    ((best,),) = Translator.load().translate(["Hello."])
    assert best.text == "Hallo!", best.text


if __name__ == "__main__":
    check_place()
    libraries = check_native()
    assert libraries or "native" not in sys.argv[1:], "the wheel has no native libraries"
    check_translation()
    names = ", ".join(libraries) or "none"
    print(f"regard {regard.__version__} in {Path(regard.__file__).parent}, native libraries: {names}")
