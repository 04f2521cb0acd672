"""First derivatives that refuse to be differentiated again, where they would else count as constants."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.errors import InvalidArgument

ONCE = (
    "this gradient was made by a formula of its own and cannot be differentiated again; of attention, "
    "kernel='reference' has second derivatives"
)


def first_order_only(gradients: Iterable[Tensor | None], *follow_from: Tensor | None) -> list[Tensor | None]:
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
    generate_vmap_rule = True

    @staticmethod
    def forward(gradient: Tensor, *follow_from: Tensor | None) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        raise InvalidArgument(ONCE)


def vmap_by_loop(
    function: type[torch.autograd.Function], count: int, in_dims: Sequence[int | None], inputs: Sequence[Any]
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """What `torch.vmap` asks of a function that gives a tuple of tensors: one call for each entry, stacked."""
    calls = [
        function.apply(
            *(
                given.select(dim, number) if isinstance(given, Tensor) and dim is not None else given
                for given, dim in zip(inputs, in_dims, strict=True)
            )
        )
        for number in range(count)
    ]
    stacked = tuple(torch.stack(parts) for parts in zip(*calls, strict=True))
    return stacked, (0,) * len(stacked)
