"""The size of the second-level cache, and that it changes no number."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from regard.native import cache_size
from regard.native.cache_size import linux_bytes, macos_bytes, second_level_bytes
from regard.ops import attend
from regard.ops.kernels.native.kernel import Native
from regard.ops.masks import Causal, Window


def sysfs(folder: Path, caches: list[dict[str, str]], siblings: str = "0") -> Path:
    (folder / "topology").mkdir(parents=True)
    (folder / "topology" / "thread_siblings_list").write_text(f"{siblings}\n")
    for number, files in enumerate(caches):
        index = folder / "cache" / f"index{number}"
        index.mkdir(parents=True)
        for name, text in files.items():
            (index / name).write_text(f"{text}\n")
    return folder


def cache(level: int, size: str, cpus: str, kind: str = "Unified") -> dict[str, str]:
    return {"level": str(level), "size": size, "shared_cpu_list": cpus, "type": kind}


@pytest.mark.parametrize(
    ("siblings", "size", "cpus", "expected"),
    [
        ("0", "512K", "0", 2**19),
        ("0,16", "512K", "0,16", 2**19),  # two threads of a core
        ("0-1", "2048K", "0-1", 2**21),
        ("4", "4M", "4-7", 2**20),  # four cores share it
        ("0", "1048576", "0", 2**20),
    ],
)
def test_linux_reports_the_share_of_a_core(tmp_path, siblings, size, cpus, expected):
    first = [cache(1, "32K", siblings, "Data"), cache(1, "32K", siblings, "Instruction")]
    cpu = sysfs(tmp_path / "cpu0", [*first, cache(2, size, cpus), cache(3, "32M", "0-31")], siblings)
    assert linux_bytes(cpu) == expected


@pytest.mark.parametrize("caches", [[], [cache(1, "32K", "0")], [cache(2, "?", "0")], [{"level": "2"}]])
def test_an_unknown_cache_size_is_the_default(tmp_path, monkeypatch, caches):
    cpu = sysfs(tmp_path / "cpu0", caches)
    assert linux_bytes(cpu) is None
    assert linux_bytes(tmp_path / "nowhere") is None
    monkeypatch.setattr(cache_size, "linux_bytes", lambda: None)
    monkeypatch.setattr(cache_size, "macos_bytes", lambda: None)
    assert second_level_bytes.__wrapped__() == cache_size.DEFAULT_BYTES


def test_implausible_sizes_of_virtual_machines_are_bounded(monkeypatch):
    for size, expected in ((1, cache_size.MIN_BYTES), (2**40, cache_size.MAX_BYTES)):
        monkeypatch.setattr(cache_size, "linux_bytes", lambda size=size: size)
        monkeypatch.setattr(cache_size, "macos_bytes", lambda size=size: size)
        if sys.platform in ("linux", "darwin"):
            assert second_level_bytes.__wrapped__() == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"hw.perflevel0.l2cachesize": 12 * 2**20, "hw.perflevel0.cpusperl2": 4}, 3 * 2**20),
        ({"hw.l2cachesize": 2**18}, 2**18),
        ({}, None),
    ],
)
def test_macos_reports_the_cache_of_a_cluster(monkeypatch, values, expected):
    monkeypatch.setattr(cache_size, "_sysctl", values.get)
    assert macos_bytes() == expected


@pytest.mark.parametrize("mask", [None, Causal(), Window(100, 20)], ids=str)
def test_the_cache_size_changes_no_result(mask):
    """Sums over rows are added up block by block, and so may round differently on another processor."""
    query, key, value = torch.randn(3, 1, 2, 1500, 16, generator=torch.Generator().manual_seed(0))
    rows, received = [], []
    for size in (2**17, 2**18, 2**19, 2**20, 2**23):
        kernel = Native(cache_bytes=size)
        att = attend(query, key, value, mask=mask, measure=["entropy", "received", "lse"], kernel=kernel)
        rows.append(torch.cat([att.output, *(att.measured[name][..., None] for name in ("entropy", "lse"))], -1))
        received.append(att.measured["received"])
    for index in range(1, len(rows)):
        assert torch.equal(rows[index], rows[0])
        torch.testing.assert_close(received[index], received[0], rtol=1e-6, atol=1e-5)
