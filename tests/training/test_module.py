"""The learning rate against the paper's equation."""

from __future__ import annotations

import torch

from regard.training.module import inverse_square_root


def test_the_schedule_is_the_papers() -> None:
    d_model, warmup = 512, 4000
    peak = (d_model * warmup) ** -0.5
    for step in (1, 100, 3999, 4000, 4001, 100_000):
        paper = d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)  # eq. 3
        torch.testing.assert_close(peak * inverse_square_root(step - 1, warmup), paper)
