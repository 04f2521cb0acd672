"""`regard info`: what is installed and what can run here."""

from __future__ import annotations

import json

import pytest
import torch

from regard.native.library import library
from regard.ops.kernels.dispatch import KERNELS
from regard.ops.kernels.native import kernel as kernel_module
from regard.ops.kernels.native.kernel import Native
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


def test_versions_devices_and_kernels(regard):
    facts = json.loads(regard("info", "--json").out)
    assert facts["versions"]["torch"] == torch.__version__
    assert [name.split(" ")[0] for name in facts["kernels"]] == [kernel.name for kernel in KERNELS]
    assert f"{torch.get_num_threads()} threads" in facts["devices"]["cpu"]


def test_the_table_has_the_same_content(regard):
    facts = json.loads(regard("info", "--json").out)
    table = regard("info").out
    for rows in facts.values():
        assert all(f" {name} " in table for name in rows)


def test_a_kernel_has_the_variant_that_runs_here(regard):
    loaded = library()
    if isinstance(loaded, str):
        pytest.skip(f"native: {loaded}")
    facts = json.loads(regard("info", "--json").out)
    assert facts["kernels"][f"native ({loaded.level})"] == Native.description
    assert f"native ({loaded.level})" in regard("info").out


def test_a_kernel_that_is_not_available_has_the_reason(regard, monkeypatch):
    monkeypatch.setattr(kernel_module, "library", lambda level=None: "its library is missing; build it")
    assert json.loads(regard("info", "--json").out)["kernels"]["native"] == (
        "not available: its library is missing; build it"
    )
    assert " native     not available: its library is missing; build it" in regard("info").out


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


def test_missing_packages_are_listed(regard, monkeypatch):
    monkeypatch.setattr("regard.cli.info.PACKAGES", ("torch", "a-package-that-nobody-has"))
    assert json.loads(regard("info", "--json").out)["versions"]["a-package-that-nobody-has"] is None
    assert "a-package-that-nobody-has  not installed" in regard("info").out
