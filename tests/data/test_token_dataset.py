"""Folders that are made once."""

from __future__ import annotations

import os

from regard.data.token_dataset import cached


def test_two_processes_that_make_one_entry_share_the_first(tmp_path, monkeypatch):
    cache = tmp_path / "cache"

    def slow(folder):
        (folder / "a.txt").write_text("slow")
        monkeypatch.setattr(os, "getpid", lambda: -1)  # another process, which is faster
        cached(cache, "key", lambda other: (other / "a.txt").write_text("fast"))

    folder = cached(cache, "key", slow)
    assert (folder / "a.txt").read_text() == "fast"
    assert [path.name for path in cache.iterdir()] == [folder.name]
