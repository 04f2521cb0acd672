"""The training state is complete or missing, and is data only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from helpers.full_disk import full_disk
from regard.errors import InvalidCheckpoint, InvalidFile
from regard.training.state_file import load_state, save_state, saved_step


def test_a_state_comes_back(tmp_path: Path) -> None:
    state = {"weights": {"a": torch.randn(3)}, "step": 7, "name": "x"}
    save_state(tmp_path / "state.ckpt", state)
    loaded = load_state(tmp_path / "state.ckpt")
    assert torch.equal(loaded["weights"]["a"], state["weights"]["a"])
    assert (loaded["step"], loaded["name"]) == (7, "x")
    assert [path.name for path in tmp_path.iterdir()] == ["state.ckpt"]


def test_a_full_disk_keeps_the_old_state(tmp_path: Path) -> None:
    save_state(tmp_path / "state.ckpt", {"step": 1})
    with pytest.raises(InvalidFile, match=r"state\.ckpt: could not be written: File too large"), full_disk(100):
        save_state(tmp_path / "state.ckpt", {"step": 2})
    assert load_state(tmp_path / "state.ckpt") == {"step": 1}
    save_state(tmp_path / "state.ckpt", {"step": 3})
    assert load_state(tmp_path / "state.ckpt") == {"step": 3}


class Evil:
    def __reduce__(self) -> tuple:
        return Path.touch, (Path("evil"),)


def test_a_state_that_would_run_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"step": Evil()}, tmp_path / "state.ckpt")
    with pytest.raises(InvalidCheckpoint, match=r"state\.ckpt: expected a training state, got a damaged file"):
        load_state(tmp_path / "state.ckpt")
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
        load_state(path)


STATE = {
    "step": 7,
    "model": {"weight": torch.ones(2)},
    "optimizer": {"state": {}},
    "loader": {"epoch": 0, "position": 7},
    "losses": torch.zeros(1, 2),
    "random": torch.zeros(1, 9, dtype=torch.uint8),
    "best": None,
    "num_worse": 0,
}
ODD = {
    "step": (-1, 0, 1.5, True, None, "7"),
    "model": (None, {}, {"weight": 1}),
    "optimizer": (None, [], {}, {"state": None}),
    "loader": (None, []),
    "losses": (None, torch.zeros(2), [[1.0]]),
    "random": (None, torch.zeros(1, 9), torch.zeros(9, dtype=torch.uint8)),
    "best": ("x", [], 1),
    "num_worse": (-1, 1.5, True, None),
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in ODD.items() for value in values])
def test_a_state_with_an_odd_value_is_refused(tmp_path: Path, key: str, value: object) -> None:
    path = tmp_path / "state.ckpt"
    save_state(path, STATE)
    assert saved_step(path) == 7
    state = torch.load(path, weights_only=True)
    torch.save({**state, key: value}, path)  # by another program: every change is detected
    with pytest.raises(InvalidCheckpoint, match="its checksum does not match its content"):
        saved_step(path)
    save_state(path, {**state, key: value})
    with pytest.raises(InvalidCheckpoint, match=f"state.ckpt: {key}: expected "):
        saved_step(path)


def test_all_odd_values_are_named(tmp_path: Path) -> None:
    path = tmp_path / "state.ckpt"
    save_state(path, {**STATE, "step": -1, "optimizer": None, "random": None})
    with pytest.raises(InvalidCheckpoint) as error:
        saved_step(path)
    assert str(error.value) == (
        f"3 problems:\n  - {path}: step: expected an int of at least 1, got -1"
        f"\n  - {path}: optimizer: expected a dict with state, got None"
        f"\n  - {path}: random: expected a uint8 tensor (processes, bytes), got None"
    )


def test_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "state.ckpt"
    save_state(path, STATE)
    data = path.read_bytes()
    for position in range(0, len(data), 7):
        path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        with pytest.raises(InvalidCheckpoint, match="its checksum does not match its content"):
            saved_step(path)
