"""How the learning rate rises and falls."""

from __future__ import annotations

import math

from regard.training.sections import Optimizer


def rate(step: int, keys: Optimizer, max_steps: int) -> float:
    """The learning rate of a step, counted from 0, as a multiple of its peak.

    It rises linearly for ``warmup_steps``, and then follows the schedule.

    Args:
        step: The step.
        keys: The recipe's section.
        max_steps: Where cosine and linear end, at ``min_lr_ratio``.

    Reference:
        Loshchilov and Hutter 2017, "SGDR", eq. 5 (cosine).

    Example:
        >>> keys = Optimizer(warmup_steps=2, lr_schedule="linear", min_lr_ratio=0.1)
        >>> [round(rate(step, keys, 12), 2) for step in (0, 1, 2, 7, 12)]
        [0.5, 1.0, 1.0, 0.55, 0.1]
    """
    if keys.lr_schedule == "inverse_sqrt":
        return inverse_sqrt(step, max(keys.warmup_steps, 1))
    if step < keys.warmup_steps:
        return (step + 1) / keys.warmup_steps
    done = min((step - keys.warmup_steps) / max(max_steps - keys.warmup_steps, 1), 1.0)
    left = {"cosine": (1 + math.cos(math.pi * done)) / 2, "linear": 1 - done, "constant": 1.0}[keys.lr_schedule]
    return left if keys.lr_schedule == "constant" else keys.min_lr_ratio + (1 - keys.min_lr_ratio) * left


def inverse_sqrt(step: int, warmup_steps: int) -> float:
    """The learning rate after so many steps, as a multiple of its peak.

    min((step + 1) / warmup, √(warmup / (step + 1)))

    Reference:
        Vaswani et al. 2017, eq. 3, with the peak given in place of d_model.

    Example:
        >>> [round(inverse_sqrt(step, warmup_steps=4), 2) for step in (0, 1, 3, 15)]
        [0.25, 0.5, 1.0, 0.5]
    """
    return min((step + 1) / warmup_steps, (warmup_steps / (step + 1)) ** 0.5)
