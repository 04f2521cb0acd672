"""The training state is complete or missing, is data only, and every damage of it is named."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.full_disk import full_disk
from helpers.training_states import FIELDS, saved_tensors, write_state
from regard.errors import InvalidCheckpoint, InvalidFile
from regard.training import state as state_module
from regard.training.state import (
    check_shards,
    discard_other_states,
    find_state,
    has_state,
    load_tensors,
    state_folder,
)

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
SHARD = "shard-00001-of-00001.safetensors"


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "model.weight": torch.randn(5, 3, generator=generator),
        "model.half": torch.randn(4, generator=generator).bfloat16(),
        "optimizer.step": torch.tensor(7.0),
        "process.0.random": torch.arange(9, dtype=torch.uint8),
    }


def test_a_state_comes_back(tmp_path: Path) -> None:
    assert not has_state(tmp_path)
    assert find_state(tmp_path) is None
    folder = write_state(tmp_path, tensors(), best=1 / 3, num_worse=2)
    assert {path.name for path in folder.iterdir()} == {"state.json", SHARD}
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1
    state = find_state(tmp_path)
    assert state is not None
    assert (state.step, state.num_processes, state.loader) == (7, 1, FIELDS["loader"])
    assert (state.best, state.num_worse) == (1 / 3, 2)
    check_shards(state)
    loaded = {name: torch.zeros_like(tensor) for name, tensor in tensors().items()}
    load_tensors(state.folder, loaded)
    for name, tensor in tensors().items():
        assert torch.equal(loaded[name], tensor), name


@pytest.mark.parametrize("best", [float("nan"), float("inf"), 0.1 + 0.2])
def test_every_best_value_comes_back(tmp_path: Path, best: float) -> None:
    write_state(tmp_path, best=best)
    state = find_state(tmp_path)
    assert state is not None
    assert state.best is not None
    assert repr(state.best) == repr(best)


def test_a_state_replaces_the_older_one(tmp_path: Path) -> None:
    older, newer = write_state(tmp_path), write_state(tmp_path, step=14)
    assert not older.exists()
    state = find_state(tmp_path)
    assert state is not None
    assert (state.step, state.folder) == (14, newer)


def test_a_state_without_index_does_not_count(tmp_path: Path) -> None:
    folder = write_state(tmp_path)
    unfinished = Path(shutil.copytree(folder, state_folder(tmp_path, 14)))
    (unfinished / "state.json").unlink()
    state = find_state(tmp_path)
    assert state is not None
    assert state.step == 7
    discard_other_states(state.folder)
    assert not unfinished.exists()


def test_files_of_a_killed_save_with_more_processes_are_not_read(tmp_path: Path) -> None:
    folder = write_state(tmp_path)
    (folder / "state.json").unlink()
    save_file({"model.weight": torch.zeros(2)}, folder / SHARD.replace("shard-00001-of", "shard-00002-of"))
    write_state(tmp_path)
    assert torch.equal(saved_tensors(tmp_path)["model.weight"], torch.ones(2))
    assert len([*folder.iterdir()]) == 2


@pytest.mark.parametrize("size", [0, 100, 1000])
def test_a_full_disk_keeps_the_old_state(tmp_path: Path, size: int) -> None:
    folder = write_state(tmp_path)
    message = f"{state_folder(tmp_path, 14)}: could not be written: File too large"
    with pytest.raises(InvalidFile, match=f"^{re.escape(message)}$"), full_disk(size):
        write_state(tmp_path, {"model.weight": torch.zeros(1000)}, step=14)
    assert [*(tmp_path / "state").iterdir()] == [folder]
    state = find_state(tmp_path)
    assert state is not None
    check_shards(state)


def test_a_full_disk_at_the_index_keeps_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_state(tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(state_module, "atomic_write", fail)
    with pytest.raises(InvalidFile, match="could not be written: No space left on device"):
        write_state(tmp_path, step=14)
    assert [*(tmp_path / "state").iterdir()] == [folder]


class Evil:
    def __reduce__(self) -> tuple:
        return Path.touch, (Path("evil"),)


@pytest.mark.parametrize("name", ["state.json", SHARD])
def test_a_state_that_would_run_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write_state(tmp_path)
    torch.save({"step": Evil()}, folder / name)
    (folder / ".metadata").write_bytes(pickle.dumps(Evil()))  # which torch's own reader would load
    with pytest.raises(InvalidCheckpoint):
        check_shards(find_state(tmp_path))  # pyright: ignore[reportArgumentType]
    assert not (tmp_path / "evil").exists()


def test_a_pickle_beside_the_files_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write_state(tmp_path)
    (folder / ".metadata").write_bytes(pickle.dumps(Evil()))
    state = find_state(tmp_path)
    assert state is not None
    load_tensors(state.folder, {"model.weight": torch.zeros(2)})
    assert not (tmp_path / "evil").exists()


def test_missing_damaged_and_foreign_files_are_named(tmp_path: Path) -> None:
    folder = write_state(tmp_path)
    state = find_state(tmp_path)
    assert state is not None
    content = (folder / SHARD).read_bytes()
    for damaged in (b"", content[:-1], content[:-1] + bytes([content[-1] ^ 1]), content + b"x"):
        (folder / SHARD).write_bytes(damaged)
        with pytest.raises(InvalidCheckpoint, match=f"{re.escape(str(folder / SHARD))}: .* a damaged file: its checks"):
            check_shards(state)
    (folder / SHARD).unlink()
    message = f"{folder / SHARD}: no such file; the state has 1 files, which all processes read"
    with pytest.raises(InvalidCheckpoint, match=f"^{re.escape(message)}$"):
        check_shards(state)
    (folder / SHARD).write_bytes(content)
    shutil.copy(folder / SHARD, folder / "other.safetensors")
    with pytest.raises(InvalidCheckpoint, match=r"other\.safetensors: expected no such file"):
        check_shards(state)


def test_processes_divide_the_files(tmp_path: Path) -> None:
    folder = write_state(tmp_path)
    fields = json.loads((folder / "state.json").read_text())
    del fields["checksum"]
    fields["shards"] = {f"shard-{number}.safetensors": "x" for number in range(5)}
    fields["checksum"] = state_module._checksum(fields)
    (folder / "state.json").write_text(json.dumps(fields))
    state = find_state(tmp_path)
    assert state is not None
    named: list[str] = []
    for rank in range(3):
        with pytest.raises(InvalidCheckpoint) as error:
            check_shards(state, rank, 3)
        named += re.findall(r"shard-\d\.safetensors(?=: no such)", str(error.value))
    assert sorted(named) == sorted(fields["shards"])


ODD = {
    "step": (-1, 0, 1.5, True, None, "7"),
    "num_processes": (0, None, True),
    "loader": (None, []),
    "best": ("x", [], 1),
    "num_worse": (-1, 1.5, True, None),
    "shards": (None, {}, {"../x.safetensors": "0"}, {SHARD: 1}, {"x.pt": "0"}),
}


def rewrite(path: Path, **changes: Any) -> None:
    """Change fields of an index, with the right checksum."""
    fields = {**json.loads(path.read_text()), **changes}
    del fields["checksum"]
    path.write_text(json.dumps({**fields, "checksum": state_module._checksum(fields)}))


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in ODD.items() for value in values])
def test_an_index_with_an_odd_value_is_refused(tmp_path: Path, key: str, value: object) -> None:
    path = write_state(tmp_path) / "state.json"
    rewrite(path, **{key: value})
    with pytest.raises(InvalidCheckpoint, match=rf"state\.json: {key}: expected "):
        find_state(tmp_path)


def test_all_odd_values_are_named(tmp_path: Path) -> None:
    path = write_state(tmp_path) / "state.json"
    rewrite(path, step=-1, loader=None)
    with pytest.raises(InvalidCheckpoint) as error:
        find_state(tmp_path)
    assert str(error.value) == (
        f"2 problems:\n  - {path}: step: expected an int of at least 1, got -1"
        f"\n  - {path}: loader: expected a dict of the order of batches, got None"
    )


@pytest.mark.parametrize("content", [b"", b"x", b"[1]", b"{}", b'{"step": 7}'])
def test_a_damaged_index_is_refused(tmp_path: Path, content: bytes) -> None:
    path = write_state(tmp_path) / "state.json"
    path.write_bytes(content)
    with pytest.raises(InvalidCheckpoint, match=f"{re.escape(str(path))}: (not valid JSON|expected a training state)"):
        find_state(tmp_path)


def test_every_changed_byte_of_the_index_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    path = write_state(tmp_path, best=0.5) / "state.json"
    data, expected, refused = path.read_bytes(), find_state(tmp_path), 0
    for position in range(len(data)):
        path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        try:
            assert find_state(tmp_path) == expected
        except InvalidCheckpoint:
            refused += 1
    assert refused > 0.8 * len(data)


def test_a_state_of_another_model_is_refused_with_every_tensor(tmp_path: Path) -> None:
    write_state(tmp_path, {"model.a": torch.zeros(2), "model.c": torch.zeros(3), "process.1.random": torch.zeros(1)})
    state = find_state(tmp_path)
    assert state is not None
    with pytest.raises(InvalidCheckpoint) as error:
        load_tensors(state.folder, {"model.a": torch.zeros(2, 2), "model.b": torch.zeros(1)})
    assert str(error.value) == (
        f"{state.folder}: expected a training state of this model, got another: 3 problems:"
        "\n  - model.a: expected (2, 2), got (2,)\n  - model.b: expected (1,), got none"
        "\n  - model.c: expected none, got (3,)"
    )


def test_the_files_are_plain_safetensors(tmp_path: Path) -> None:
    folder = write_state(tmp_path, tensors())
    loaded = load_file(folder / SHARD)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors().items())
