"""A state is saved by some processes and continued by others, replicated and sharded in every way."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from helpers.forked import finish, start, start_ranks
from helpers.pairwise import everything
from helpers.sharded_training import train_sharded
from regard.training.state import find_state

SETTINGS = ["none 1", "ddp 2", "ddp 4", "fsdp 2", "fsdp 4", "fsdp x tp 4"]
PAIRS = [*product(SETTINGS, SETTINGS)] if everything() else [("fsdp x tp 4", "fsdp 2")]
NUM_STEPS = 3


def run(setting: str, folder: Path, num_steps: int) -> dict[str, Tensor]:
    """Continue a run for some steps; return its whole weights."""
    strategy, _, number = setting.rpartition(" ")
    result = folder / "weights.pt"
    arguments = (strategy, str(folder), str(result), num_steps)
    if number == "1":
        errors = folder / "errors.txt"
        finish([start(train_sharded, *arguments, errors=errors, RANK="0", WORLD_SIZE="1")], [errors])
    else:
        start_ranks(train_sharded, *arguments, folder=folder, world_size=int(number)).finish()
    return torch.load(result, weights_only=True)


def whole_tensors(folder: Path) -> dict[str, Tensor]:
    """The tensors of a state, put together from the offsets in its files; each element is there once."""
    state = find_state(folder)
    assert state is not None
    parts: dict[str, list[tuple[list[int], Tensor]]] = {}
    for name in state.shards:
        with safe_open(state.folder / name, "pt") as file:
            offsets = json.loads(file.metadata()["DCP_SHARDING_INFO"])
            for key in file.keys():  # noqa: SIM118 - not a dict
                parts.setdefault(key, []).append((offsets[key]["saved_offsets"], file.get_tensor(key)))
    whole: dict[str, Tensor] = {}
    for key, chunks in parts.items():
        ends = [[o + s for o, s in zip(offset, chunk.shape, strict=True)] for offset, chunk in chunks]
        shape = [max(sizes) for sizes in zip(*ends, strict=True)]
        value, count = torch.zeros(shape, dtype=chunks[0][1].dtype), torch.zeros(shape)
        for offset, chunk in chunks:
            box = tuple(slice(o, o + s) for o, s in zip(offset, chunk.shape, strict=True))
            value[box] = chunk
            count[box] += 1
        assert bool((count == 1).all()), key
        whole[key] = value
    return whole


def common(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if not name.startswith("process.")}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    return run("none 1", tmp_path_factory.mktemp("whole"), 2 * NUM_STEPS)


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_a_state_is_continued_by_other_processes(
    tmp_path: Path, uninterrupted: dict[str, Tensor], before: str, after: str
) -> None:
    run(before, tmp_path, NUM_STEPS)
    saved = whole_tensors(tmp_path)
    assert len(common(saved)) == 1 + 7 + 3 * 7  # buffer, weights with the tied one once, their states
    number = int(before.rpartition(" ")[2])
    assert {name for name in saved if name.startswith("process.")} == {f"process.{r}.random" for r in range(number)}
    weights = run(after, tmp_path, 0)
    again = whole_tensors(tmp_path)
    assert common(saved).keys() == common(again).keys()
    for name, tensor in common(saved).items():
        assert torch.equal(tensor, again[name]), name
        if name.startswith("model."):
            assert torch.equal(tensor, weights[name.removeprefix("model.")]), name
    continued = run(after, tmp_path, NUM_STEPS)
    for name, weight in uninterrupted.items():
        torch.testing.assert_close(continued[name], weight, rtol=1e-4, atol=1e-5)
