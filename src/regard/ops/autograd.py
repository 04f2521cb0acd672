"""Custom gradients: refuse a second derivative that would be silently incomplete, vmap by a loop, no autocast."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from regard.errors import InvalidArgument

if TYPE_CHECKING:

    class AutogradFunction(torch.autograd.Function):
        """torch's class, with types that let `backward` and `jvp` name what they take."""

        backward: Any
        jvp: Any

        @classmethod
        def apply(cls, *inputs: Any) -> Any: ...
else:

    class AutogradFunction(torch.autograd.Function):
        """torch's class, whose `apply` looks at the signature of `forward` in every call: here it is computed once."""

        def __init_subclass__(cls) -> None:
            super().__init_subclass__()
            forward = vars(cls).get("forward")
            if isinstance(forward, staticmethod):
                forward.__func__.__signature__ = inspect.signature(forward.__func__)


def is_traced() -> bool:
    """Whether torch records operators, or replaces them, instead of only running them.

    It does in a compiler, in `torch.jit.trace` and in a dispatch mode, as of `make_fx` or `FakeTensorMode`. Memory must
    not be read without torch then, and a number that is read becomes a constant.
    """
    return (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()  # pyright: ignore[reportPrivateUsage]
        or torch._C._len_torch_dispatch_stack() > 0  # pyright: ignore[reportPrivateUsage]
    )


def has_no_memory(x: Tensor) -> bool:
    """Whether a tensor stands for others, or has a shape only: a fake or a meta tensor."""
    return x.device.type == "meta" or (
        type(x).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage]
    )


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """Disable autocast, if it is enabled: to enter torch's context takes as long as ten operations.

    A meta device, which gives shapes only, has no autocast.
    """
    if device != "meta" and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


def is_differentiated_twice() -> bool:
    """Whether forward mode, or reverse mode within another transform that differentiates, may need more than SDPA has.

    A backward pass with ``create_graph=True`` cannot be foreseen.
    """
    if forward_ad._current_level >= 0:  # pyright: ignore[reportPrivateUsage]
        return True
    if not torch._C._are_functorch_transforms_active():  # pyright: ignore[reportPrivateUsage]
        return False
    stack = torch._C._functorch.get_interpreter_stack() or ()  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage]
    return [interpreter.key().name for interpreter in stack].count("Grad") > 1


def check_forward_mode() -> None:
    """Raise where the tangent of a custom function would lose one of its own, which torch drops.

    Raises:
        InvalidArgument: If forward mode is nested in forward mode.
    """
    stack = torch._C._functorch.get_interpreter_stack() or ()  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage]
    if [interpreter.key().name for interpreter in stack].count("Jvp") > 1:
        raise InvalidArgument(
            "forward mode: torch cannot nest torch.func.jvp or jacfwd of a custom function in another; use "
            "torch.func.hessian, or jvp of torch.func.grad"
        )


SECOND_ORDER_MESSAGE = (
    "second derivative: this gradient comes from a custom backward pass, which cannot be differentiated again"
)


def first_order_only(gradients: Iterable[Tensor | None], *inputs: Tensor | None) -> list[Tensor | None]:
    """Return the gradients of a backward pass, computed from `inputs`, so that a second derivative raises.

    `torch.autograd.function.once_differentiable` does so only where the incoming gradients have a graph of their own.
    """
    if not torch.is_grad_enabled():  # no create_graph=True
        return list(gradients)
    return [None if gradient is None else _FirstOrderOnly.apply(gradient, *inputs) for gradient in gradients]


class _FirstOrderOnly(AutogradFunction):
    generate_vmap_rule = True

    @staticmethod
    def forward(gradient: Tensor, *inputs: Tensor | None) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        raise InvalidArgument(SECOND_ORDER_MESSAGE)


def vmap_by_loop(
    function: type[AutogradFunction], count: int, in_dims: Sequence[int | None], inputs: Sequence[Any]
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """The `vmap` of a function that returns a tuple of tensors: one call per entry, stacked."""
    calls = [
        function.apply(
            *(
                value.select(dim, number) if isinstance(value, Tensor) and dim is not None else value
                for value, dim in zip(inputs, in_dims, strict=True)
            )
        )
        for number in range(count)
    ]
    stacked = tuple(torch.stack(parts) for parts in zip(*calls, strict=True))
    return stacked, (0,) * len(stacked)
