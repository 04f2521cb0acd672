"""Learning rates against the papers' equations and transformers' schedules."""

from __future__ import annotations

import pytest
import torch

from regard.training.optimizer import lr_factor
from regard.training.recipe_sections import OptimizerConfig


def test_the_schedule_is_the_papers() -> None:
    d_model, warmup = 512, 4000
    peak = (d_model * warmup) ** -0.5
    config = OptimizerConfig(warmup_steps=warmup)
    for step in (1, 100, 3999, 4000, 4001, 100_000):
        paper = d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)  # eq. 3
        torch.testing.assert_close(peak * lr_factor(step - 1, config, 10**6), paper)


@pytest.mark.parametrize("lr_schedule", ["linear", "cosine", "constant"])
def test_others_are_those_of_transformers(lr_schedule) -> None:
    from transformers import get_scheduler

    names = {"constant": "constant_with_warmup"}
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    expected = get_scheduler(names.get(lr_schedule, lr_schedule), optimizer, num_warmup_steps=10, num_training_steps=50)
    config = OptimizerConfig(warmup_steps=10, lr_schedule=lr_schedule)
    for step in range(50):
        if step >= 10:  # theirs begins at 0, and is one step later while it rises
            assert lr_factor(step, config, 50) == pytest.approx(expected.get_last_lr()[0])
        optimizer.step()
        expected.step()


def test_a_share_of_the_peak_is_left() -> None:
    config = OptimizerConfig(warmup_steps=0, lr_schedule="cosine", min_lr_ratio=0.1)
    assert [lr_factor(step, config, 100) for step in (0, 50, 100, 500)] == pytest.approx([1.0, 0.55, 0.1, 0.1])
