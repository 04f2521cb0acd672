"""The kernels, and which of them computes a call."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from regard.errors import InvalidArgument, InvalidType, KernelNotSupported, did_you_mean, short_repr
from regard.ops.autograd import is_traced
from regard.ops.kernels.base import Kernel, KernelInputs
from regard.ops.kernels.blockwise import Blockwise
from regard.ops.kernels.differentiable import DifferentiableCall
from regard.ops.kernels.native.kernel import Native
from regard.ops.kernels.native.prepared import PreparedCall
from regard.ops.kernels.reference import Reference
from regard.ops.kernels.sdpa import Sdpa
from regard.ops.kernels.sparse import Sparse
from regard.ops.kernels.triton.kernel import Triton
from regard.ops.tree import structure

NATIVE, SDPA = Native(), Sdpa()
KERNELS: tuple[Kernel, ...] = (NATIVE, SDPA, Triton(), Sparse(), Blockwise(), Reference())
"""In the order in which they are tried."""

MAX_PREPARED_CALLS = 128
MAX_KEPT_BYTES = 2**16
"""A call whose rules make larger tables takes long enough to make them again, so it is not prepared."""

Kernel.registered.update({kernel.name: kernel for kernel in KERNELS})


def select_kernel(inputs: KernelInputs, choice: str | Kernel | None = None) -> Kernel:
    """The first kernel that can and should compute a call, or the chosen one if it can.

    Raises:
        InvalidArgument: If there is no kernel of the chosen name.
        KernelNotSupported: If the chosen kernel cannot compute the call; the message says why.
    """
    if choice is None:
        if _sdpa_is_better(inputs):
            return SDPA
        for kernel in KERNELS:
            if kernel.is_suitable(inputs):
                return kernel
        raise AssertionError("the kernel 'reference' computes every call")
    kernel = as_kernel(choice)
    reasons = list(kernel.unsupported_reasons(inputs))
    if reasons:
        raise KernelNotSupported(f"kernel '{kernel.name}' cannot compute this call: {'; '.join(reasons)}")
    return kernel


class Preparation:
    """What computes calls that differ in their numbers alone; None if it is not known yet."""

    def __init__(self) -> None:
        self.call: Kernel | PreparedCall | None = None
        self._is_repeated = False

    @property
    def passes(self) -> DifferentiableCall | None:
        """Both passes of a prepared call, without tensors."""
        return self.call.passes if isinstance(self.call, PreparedCall) else None

    def prepare(self, make: Callable[[], PreparedCall]) -> None:
        """Keep what is made of a call that has run, if another one like it ran before, and it is small."""
        if self._is_repeated and self.call is None:
            made = make()
            self.call = made if made.kept_bytes <= MAX_KEPT_BYTES else NATIVE
        self._is_repeated = True


def prepare(inputs: KernelInputs, choice: str | Kernel | None = None) -> Kernel | PreparedCall:
    """What runs a call: the kernel that `select_kernel` finds, or what a call like it was prepared with."""
    value, request = inputs.value, inputs.request
    tensors = [request.query, request.key] if value is None else [request.query, request.key, value]
    has_gradients = torch.is_grad_enabled()
    tracked = tuple([has_gradients and tensor.requires_grad for tensor in tensors])
    preparation = None if choice is not None or is_traced() else _preparation(inputs, tensors, tracked)
    if preparation is not None and preparation.call is not None:
        return preparation.call
    inputs.preparation = preparation
    kernel = select_kernel(inputs, choice)
    if preparation is not None and kernel is SDPA:
        preparation.call = SDPA
    return kernel


def _preparation(inputs: KernelInputs, tensors: list[Tensor], tracked: tuple[bool, ...]) -> Preparation | None:
    """The one of calls like this; None if there are transforms, or tensors beyond query, key and value."""
    request = inputs.request
    for tensor in tensors:
        if type(tensor) is not Tensor or tensor.is_neg():
            return None
    is_transformed = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0  # pyright: ignore[reportPrivateUsage]
    if is_transformed or not tensors[0].is_cpu or inputs.dropout or request.full_shape is not None:
        return None
    try:
        rules = structure(request.mask), structure(request.score), structure(inputs.measures)
    except TypeError:  # a tensor, or a user's rule
        return None
    layouts = [(tensor.dtype, tensor.shape, tensor.stride()) for tensor in tensors]
    return _preparation_of((request.scale, request.offset, rules, tracked, *layouts))


@lru_cache(MAX_PREPARED_CALLS)
def _preparation_of(key: tuple[Any, ...]) -> Preparation:
    return Preparation()


def as_kernel(choice: str | Kernel) -> Kernel:
    """The kernel that an argument means.

    Raises:
        InvalidArgument: If there is none of this name.
        InvalidType: If it is a class.
    """
    if isinstance(choice, type) and issubclass(choice, Kernel):
        raise InvalidType(f"kernel: expected a kernel, got the class {choice.__name__}; use {choice.__name__}()")
    kernel = choice if isinstance(choice, Kernel) else Kernel.registered.get(str(choice))
    if kernel is None:
        known = ", ".join(Kernel.registered)
        hint = did_you_mean(str(choice), Kernel.registered)
        raise InvalidArgument(f"kernel: unknown name {short_repr(choice)}{hint}; known: {known}")
    return kernel


def _sdpa_is_better(inputs: KernelInputs) -> bool:
    """Whether SDPA computes the output alone, and faster than `native`; a compiled program plans it with the rest."""
    if inputs.measures or inputs.dropout:
        return False
    return (torch.compiler.is_compiling() or NATIVE.is_slower_than_sdpa(inputs)) and SDPA.is_suitable(inputs)
