"""Derivatives of any order, reverse and forward mode, each as one pass over the blocks of a call.

A call computes results f(x) from tensors x. All its derivatives follow from s(x, v) = ⟨f(x), v⟩:

- f is ∂s/∂v, and the backward pass is ∂s/∂x.
- Reverse mode: ⟨∂s/∂x, u⟩ is a number, too, a function of x, v and u. The gradients of ∂s/∂x are its gradients.
- Forward mode: second derivatives are symmetric, so the tangent of ∂s/∂x along t is ∂/∂x of ⟨∂s/∂(x, v), t⟩.

So each mode adds tensors that s is differentiated along, and a pass returns gradients of the number that results. It is
a sum over blocks, and torch's autograd differentiates it within a block: no rule needs code of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from torch import Tensor

from regard.ops.autograd import AutogradFunction, check_forward_mode, vmap_by_loop, without_autocast


@dataclass(frozen=True)
class Derivative:
    """Which derivative of s(x, v) a pass computes, by the numbers of its tensors: x, v, then each direction's.

    Args:
        outputs: Of which results there is a v, counted in the output, if there is a value, and the measures' tensors.
        directions: The tensors that s is differentiated along, first one group, then the next. The tensors of a group
            follow those that were there before.
        results: The tensors whose gradients are returned.
    """

    outputs: tuple[int, ...]
    directions: tuple[tuple[int, ...], ...]
    results: tuple[int, ...]

    @property
    def active(self) -> frozenset[int]:
        """The tensors that anything is differentiated along, or for."""
        return frozenset((*self.results, *chain.from_iterable(self.directions)))

    def along(self, direction: Sequence[int], results: Sequence[int]) -> Derivative:
        """This derivative, differentiated along more tensors."""
        return replace(self, directions=(*self.directions, tuple(direction)), results=tuple(results))

    def originals(self, count: int) -> list[int]:
        """For each tensor, the one of x (of which there are so many) or v whose shape it has."""
        numbers = [*range(count + len(self.outputs))]
        for direction in self.directions:
            numbers += [numbers[i] for i in direction]
        return numbers


class Differentiate(AutogradFunction):
    """A derivative of a call as one step of autograd, differentiable again in both modes."""

    @staticmethod
    def forward(call: Any, derivative: Derivative, *tensors: Tensor) -> tuple[Tensor, ...]:
        with without_autocast(tensors[0].device.type):
            return tuple(call.derivative(derivative, [tensor.resolve_neg() for tensor in tensors]))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        call, derivative, *tensors = inputs
        keep(ctx, call, derivative, tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, None, *reverse(ctx, gradients, ctx.needs_input_grad[2:])

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        return forward(ctx, tangents[2:])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        return vmap_by_loop(Differentiate, info.batch_size, in_dims, inputs)


def keep(ctx: Any, call: Any, derivative: Derivative, tensors: Sequence[Tensor]) -> None:
    """Save what `reverse` and `forward` need."""
    ctx.call, ctx.derivative = call, derivative
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)
    ctx.set_materialize_grads(False)


def reverse(ctx: Any, gradients: Sequence[Tensor | None], needed: Sequence[bool]) -> list[Tensor | None]:
    """Of a derivative's tensors, the gradients that are needed, from those of its results."""
    pairs = [pair for pair in zip(ctx.derivative.results, gradients, strict=True) if pair[1] is not None]
    derivative = ctx.derivative.along([i for i, _ in pairs], [i for i, need in enumerate(needed) if need])
    results = iter(Differentiate.apply(ctx.call, derivative, *ctx.saved_tensors, *(each for _, each in pairs)))
    return [next(results) if need else None for need in needed]


def forward(ctx: Any, tangents: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """The tangents of a derivative's results, from those of its tensors."""
    check_forward_mode()
    pairs = [pair for pair in enumerate(tangents) if pair[1] is not None]
    derivative = ctx.derivative.along([i for i, _ in pairs], ctx.derivative.results)
    return Differentiate.apply(ctx.call, derivative, *ctx.saved_tensors, *(each for _, each in pairs))
