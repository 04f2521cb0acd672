"""The training state is whole or not there, and is data only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from helpers.full_disk import full_disk
from regard.errors import InvalidCheckpoint, InvalidFile
from regard.training.checkpoint_io import AtomicCheckpointIO


def test_a_state_comes_back(tmp_path: Path) -> None:
    state = {"weights": {"a": torch.randn(3)}, "step": 7, "name": "x"}
    AtomicCheckpointIO().save_checkpoint(state, tmp_path / "state.ckpt")
    loaded = AtomicCheckpointIO().load_checkpoint(tmp_path / "state.ckpt")
    assert torch.equal(loaded["weights"]["a"], state["weights"]["a"])
    assert (loaded["step"], loaded["name"]) == (7, "x")
    assert [path.name for path in tmp_path.iterdir()] == ["state.ckpt"]
    AtomicCheckpointIO().remove_checkpoint(tmp_path / "state.ckpt")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_the_old_state_whole(tmp_path: Path) -> None:
    AtomicCheckpointIO().save_checkpoint({"step": 1}, tmp_path / "state.ckpt")
    with pytest.raises(InvalidFile, match=r"state\.ckpt: could not be written: File too large"), full_disk(100):
        AtomicCheckpointIO().save_checkpoint({"step": 2}, tmp_path / "state.ckpt")
    assert AtomicCheckpointIO().load_checkpoint(tmp_path / "state.ckpt") == {"step": 1}
    AtomicCheckpointIO().save_checkpoint({"step": 3}, tmp_path / "state.ckpt")
    assert AtomicCheckpointIO().load_checkpoint(tmp_path / "state.ckpt") == {"step": 3}


class Evil:
    def __reduce__(self) -> tuple:
        return Path.touch, (Path("evil"),)


def test_a_state_that_would_run_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"step": Evil()}, tmp_path / "state.ckpt")
    with pytest.raises(InvalidCheckpoint, match=r"state\.ckpt: expected a training state, got a damaged file"):
        AtomicCheckpointIO().load_checkpoint(tmp_path / "state.ckpt", weights_only=False)
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("content", [b"", b"x", None, "half"])
def test_a_damaged_state_is_refused(tmp_path: Path, content: bytes | str | None) -> None:
    path = tmp_path / "state.ckpt"
    if content == "half":
        torch.save({"a": torch.randn(1000)}, path)
        content = path.read_bytes()[:2000]
    if isinstance(content, bytes):
        path.write_bytes(content)
    reason = "no such file" if content is None else "expected a training state, got "
    with pytest.raises(InvalidCheckpoint, match=f"{re.escape(str(path))}: {reason}"):
        AtomicCheckpointIO().load_checkpoint(path)
