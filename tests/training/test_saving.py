"""Training goes on while its state is saved; averages of snapshots, and which snapshots stay."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.training_runs import bytes_of, make_recipe
from helpers.training_states import saved_tensors
from regard.models import Transformer, TransformerConfig
from regard.training import saving, train
from regard.training.loop import _Run
from regard.training.saving import Snapshots
from regard.training.state import find_state

CONFIG = TransformerConfig(50, d_model=8, num_heads=2, num_encoder_layers=1, num_decoder_layers=1, d_ff=16)


def test_the_average_is_the_mean_of_the_last(tmp_path: Path) -> None:
    snapshots, models = Snapshots(tmp_path, keep=3), [Transformer(CONFIG) for _ in range(5)]
    for step, model in enumerate(models, start=8):
        snapshots.save(model, step * 10)
    assert [path.name for path in snapshots.folders()] == ["step-000000100", "step-000000110", "step-000000120"]
    average = Transformer(CONFIG)
    snapshots.load_mean(average)
    for name, weight in average.named_parameters():
        expected = torch.stack([model.get_parameter(name) for model in models[2:]]).mean(0)
        torch.testing.assert_close(weight, expected)
    assert average.lm_head.weight is average.src_embedding.weight


def test_cutting_back_removes_what_came_later(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path, keep=9)
    for step in (10, 20, 30):
        snapshots.save(Transformer(CONFIG), step)
    snapshots.discard_after(20)
    assert [path.name for path in snapshots.folders()] == ["step-000000010", "step-000000020"]


def test_training_goes_on_while_the_state_is_written(
    tmp_path: Path, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state of step 7 is written only when step 12 begins, and is that of step 7."""
    save_state, take_step = saving.save_state, _Run.take_step
    has_gone_on, written = threading.Event(), []

    def wait_and_save(run: Path, fields: dict[str, Any], *arguments: Any) -> None:
        if fields["step"] == 7:
            assert has_gone_on.wait(60)
        save_state(run, fields, *arguments)
        written.append((fields["step"], saved_tensors(run)))

    def note(run: _Run, batches: Any) -> None:
        if run.step == 12:
            assert find_state(tmp_path / "run") is None
            has_gone_on.set()
        take_step(run, batches)

    monkeypatch.setattr(saving, "save_state", wait_and_save)
    monkeypatch.setattr(_Run, "take_step", note)
    train(make_recipe(keys, "--trainer.max_steps=14"))
    assert [step for step, _ in written] == [7, 14]
    monkeypatch.undo()
    keys["output_dir"] = str(tmp_path / "stopped")
    train(make_recipe(keys, "--trainer.max_steps=7"))
    expected = saved_tensors(tmp_path / "stopped")
    for name, tensor in written[0][1].items():
        assert torch.equal(tensor, expected[name]), name
    assert all(float(tensor) == 7 for name, tensor in expected.items() if name.endswith(".step"))


def test_the_last_model_is_that_of_the_last_state(tmp_path: Path, keys: dict[str, Any]) -> None:
    train(make_recipe(keys, "--trainer.max_steps=9"))
    weights = {name.removeprefix("model."): tensor for name, tensor in saved_tensors(tmp_path / "run").items()}
    for name, data in bytes_of(tmp_path / "run").items():
        assert weights[name].numpy().tobytes() == data, name
