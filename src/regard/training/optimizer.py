"""AdamW, its learning rate, and whether a training has diverged."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from regard.errors import TrainingDiverged
from regard.training.recipe_sections import OptimizerConfig

TensorT = TypeVar("TensorT", bound=Tensor)


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
    """Two parameter groups: matrices, with weight decay, and vectors (biases and norms), without.

    Parameters that other processes divide are groups of their own, because one operation cannot update both.
    """
    parameters = list(parameters)
    matrices = [parameter for parameter in parameters if parameter.ndim > 1]
    vectors = [parameter for parameter in parameters if parameter.ndim <= 1]
    return [
        {"params": params, "weight_decay": decay}
        for decay, group in ((weight_decay, matrices), (0.0, vectors))
        for params in by_division(group)
    ]


def by_division(tensors: Iterable[TensorT]) -> list[list[TensorT]]:
    """Tensors in groups that are divided among the same processes, or not at all."""
    groups: dict[Any, list[TensorT]] = {}
    for tensor in tensors:
        groups.setdefault(getattr(tensor, "device_mesh", None), []).append(tensor)
    return list(groups.values())


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


def clip_gradients(model: nn.Module, max_norm: float) -> None:
    """Scale the gradients down to a norm, as ``torch.nn.utils.clip_grad_norm_``, whatever processes divide."""
    parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
    norm = total_norm(parameter.grad for parameter in parameters if parameter.grad is not None)
    for group in by_division(parameters):
        nn.utils.clip_grads_with_norm_(group, max_norm, norm)


def total_norm(tensors: Iterable[Tensor]) -> Tensor:
    """The norm of all elements together."""
    norms: list[Any] = [nn.utils.get_total_norm(group) for group in by_division(tensors)]
    norms = [norm.full_tensor() if hasattr(norm, "full_tensor") else norm for norm in norms]
    return norms[0] if len(norms) == 1 else nn.utils.get_total_norm(norms)


def check_finite(model: nn.Module, step: int) -> None:
    """Check that the weights are finite, before they are saved.

    Raises:
        TrainingDiverged: If they are not.
    """
    norm = float(total_norm(parameter.detach() for parameter in model.parameters()))
    if not math.isfinite(norm):
        raise TrainingDiverged(
            f"step {step}: the training has diverged: the norm of the weights is {norm}; in a new run, lower "
            "optimizer.learning_rate, raise optimizer.warmup_steps or clip by optimizer.max_grad_norm"
        )
