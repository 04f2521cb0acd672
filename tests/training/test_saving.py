"""Averages of snapshots, and which snapshots stay."""

from __future__ import annotations

from pathlib import Path

import torch

from regard.models import Transformer, TransformerConfig
from regard.training.saving import Snapshots

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
