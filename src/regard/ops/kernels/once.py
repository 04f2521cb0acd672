"""First derivatives that refuse to be differentiated again, where they would else count as constants."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from regard.errors import InvalidArgument


def once_only(gradients: Iterable[Tensor | None], *follow_from: Tensor | None) -> list[Tensor | None]:
    """What a backward pass returns, so that a second derivative raises and is not silently incomplete.

    `torch.autograd.function.once_differentiable` does this only where the incoming gradients have a graph of their own.

    Args:
        gradients: What the backward pass has found.
        follow_from: All that they were computed from.
    """
    if not torch.is_grad_enabled():  # nobody asked for create_graph=True
        return list(gradients)
    return [None if gradient is None else _Once.apply(gradient, *follow_from) for gradient in gradients]  # pyright: ignore[reportReturnType]


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *follow_from: Tensor | None) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        raise InvalidArgument(
            "this gradient was made by a formula of its own and cannot be differentiated again; of attention, "
            "kernel='reference' has second derivatives"
        )
