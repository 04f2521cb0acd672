"""AdamW, its learning rate, and whether a training has diverged."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from regard.errors import TrainingDiverged
from regard.training.recipe_sections import OptimizerConfig


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """AdamW for the parameters of a model."""
    return torch.optim.AdamW(
        weight_decay_groups(model.parameters(), config.weight_decay),
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.eps,
        fused=True,
    )


def weight_decay_groups(parameters: Iterable[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Two parameter groups: matrices, with weight decay, and vectors (biases and norms), without."""
    matrices, vectors = [], []
    for parameter in parameters:
        (matrices if parameter.ndim > 1 else vectors).append(parameter)
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def lr_factor(step: int, config: OptimizerConfig, max_steps: int) -> float:
    """The learning rate of a step relative to the peak: linear warm-up, then the schedule.

    Inverse square root: min((step + 1) / warmup, √(warmup / (step + 1))).

    Args:
        step: The step, from 0.
        config: The recipe's ``optimizer``.
        max_steps: The step at which cosine and linear reach ``min_lr_ratio``.

    Reference:
        Vaswani et al. 2017, eq. 3, with the peak instead of d_model; Loshchilov and Hutter 2017, "SGDR", eq. 5
        (cosine).

    Examples:
        >>> config = OptimizerConfig(warmup_steps=2, lr_schedule="linear", min_lr_ratio=0.1)
        >>> [round(lr_factor(step, config, 12), 2) for step in (0, 1, 2, 7, 12)]
        [0.5, 1.0, 1.0, 0.55, 0.1]
    """
    warmup_steps, schedule = config.warmup_steps, config.lr_schedule
    if schedule == "inverse_sqrt":
        warmup_steps = max(warmup_steps, 1)
        return min((step + 1) / warmup_steps, (warmup_steps / (step + 1)) ** 0.5)
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "constant":
        return 1.0
    progress = min((step - warmup_steps) / max(max_steps - warmup_steps, 1), 1.0)
    decay = (1 + math.cos(math.pi * progress)) / 2 if schedule == "cosine" else 1 - progress
    return config.min_lr_ratio + (1 - config.min_lr_ratio) * decay


def check_finite(model: nn.Module, step: int) -> None:
    """Check that the weights are finite, before they are saved.

    Raises:
        TrainingDiverged: If they are not.
    """
    norm = float(nn.utils.get_total_norm(parameter.detach() for parameter in model.parameters()))
    if not math.isfinite(norm):
        raise TrainingDiverged(
            f"step {step}: the training has diverged: the norm of the weights is {norm}; in a new run, lower "
            "optimizer.learning_rate, raise optimizer.warmup_steps or clip by optimizer.max_grad_norm"
        )
