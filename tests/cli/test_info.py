"""What is installed and what can run here."""

from __future__ import annotations

import json

import pytest
import torch

from regard.ops.kernels.dispatch import KERNELS
from regard.ops.kernels.native.library import Library, library
from regard.ops.masks import Mask
from regard.ops.measures import Measure
from regard.ops.rules import registered
from regard.ops.scores import Score


class Checkered(Mask):
    """Every second key [of a row]. The rest is left out."""


class CheckeredScore(Score):
    pass


class CheckeredMass(Measure, name="checkered"):
    """The weight on every second key, 0, ..., of each row."""


def test_versions_devices_and_kernels_are_told(regard):
    facts = json.loads(regard("info", "--json").out)
    assert facts["versions"]["torch"] == torch.__version__
    assert list(facts["kernels"]) == [kernel.name for kernel in KERNELS]
    assert f"{torch.get_num_threads()} threads" in facts["devices"]["cpu"]


@pytest.fixture
def native_library():
    """Loaded again, here and afterwards."""
    library.cache_clear()
    yield
    library.cache_clear()


def test_the_instruction_set_of_the_native_kernel_is_told(regard, native_library):
    found = library()
    expected = f"; instruction set {found.level}" if isinstance(found, Library) else f"; not available: {found}"
    assert json.loads(regard("info", "--json").out)["kernels"]["native"].endswith(expected)


def test_why_the_native_kernel_cannot_run_is_told(regard, monkeypatch, native_library):
    def load(level):
        raise OSError(f"{level}.so was not built")

    monkeypatch.setattr("regard.ops.kernels.native.library._load", load)
    native = json.loads(regard("info", "--json").out)["kernels"]["native"]
    assert "; not available: its library cannot be loaded (baseline.so was not built)" in native
    assert "C++ compiler" in native
    assert "baseline.so was not built" in " ".join(regard("info").out.split())


def test_the_table_tells_the_same(regard):
    facts = json.loads(regard("info", "--json").out)
    table = regard("info").out
    for rows in facts.values():
        assert all(f" {name} " in table for name in rows)


def test_masks_scores_and_measures_are_listed(regard):
    facts = json.loads(regard("info", "--json").out)
    for title, base in (("masks", Mask), ("scores", Score), ("measures", Measure)):
        assert [key.split(" ")[0] for key in facts[title]] == [cls.__name__ for cls in registered(base).values()]
        for cls, sentence in zip(registered(base).values(), facts[title].values(), strict=True):
            assert "\n" not in sentence
            assert sentence or not cls.builtin  # a class of another test may lack a docstring
    assert facts["masks"]["Causal"].startswith("Causal mask: a query at position p attends to keys 0, ..., p")
    assert facts["scores"]["Bias ('bias')"].startswith("A tensor added to the scores")
    assert not any(name.startswith("Sum") for name in facts["scores"])  # it is made by +, not by name
    assert facts["measures"]["TopK ('topk')"].startswith("The k strongest keys of each row")
    assert facts["masks"]["Checkered"] == "Every second key [of a row]"
    assert facts["scores"]["CheckeredScore ('checkered_score')"] == ""
    assert facts["measures"]["CheckeredMass ('checkered')"] == "The weight on every second key, 0, ..., of each row"
    assert "Every second key [of a row]" in regard("info").out


def test_what_is_not_installed_is_told(regard, monkeypatch):
    monkeypatch.setattr("regard.cli.info.PACKAGES", ("torch", "a-package-that-nobody-has"))
    assert json.loads(regard("info", "--json").out)["versions"]["a-package-that-nobody-has"] is None
    assert "a-package-that-nobody-has  not installed" in regard("info").out
