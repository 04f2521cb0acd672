"""What is installed and what can run here."""

from __future__ import annotations

import json

import torch

from regard.ops.kernels.dispatch import KERNELS


def test_versions_devices_and_kernels_are_told(regard):
    facts = json.loads(regard("info", "--json").out)
    assert facts["versions"]["torch"] == torch.__version__
    assert list(facts["kernels"]) == [kernel.name for kernel in KERNELS]
    assert f"{torch.get_num_threads()} threads" in facts["devices"]["cpu"]


def test_the_table_tells_the_same(regard):
    facts = json.loads(regard("info", "--json").out)
    table = regard("info").out
    for rows in facts.values():
        assert all(f" {name} " in table for name in rows)


def test_what_is_not_installed_is_told(regard, monkeypatch):
    monkeypatch.setattr("regard.cli.info.PACKAGES", ("torch", "a-package-that-nobody-has"))
    assert json.loads(regard("info", "--json").out)["versions"]["a-package-that-nobody-has"] is None
    assert "a-package-that-nobody-has  not installed" in regard("info").out
