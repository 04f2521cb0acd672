"""A streaming kernel as one node of a compiled or an exported program, forward and backward.

A compiler would else trace the blocks one by one. Here it sees an operator of the job's tensors, its numbers and a
text that says the rest (see `spec`); rules that a user wrote cannot be said so, and break the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.ops.kernels.base import KernelInputs, Measured
from regard.ops.kernels.results import Answers
from regard.ops.kernels.spec import Number, describe, restore
from regard.ops.tree import tensors_in

_ABOVE = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
"""What torch's dispatcher does for an ordinary call, as this module is loaded by one."""

Cutters: dict[str, Any] = {}
"""How each kernel cuts a job into blocks, by the kernel's name."""


def run_opaque(name: str, job: KernelInputs) -> tuple[Tensor | None, Measured]:
    """Run a job of known rules as one operator."""
    tensors: list[Tensor] = []
    numbers: list[Number] = []
    text = describe(job, tensors, numbers)
    device = job.request.query.device
    seed = torch.randint(2**62, (), device=device) if job.dropout else torch.zeros((), dtype=torch.int64, device=device)
    row = torch.ops.regard.attend(tensors, numbers, text, name, seed)
    output = None if job.value is None else row[0]
    rest = iter(row if job.value is None else row[1:])
    measured = {}
    for key, measure in job.measures.items():
        parts = [next(rest) for _ in measure.parts(job.request.shape, job.request.dtype)]
        measured[key] = parts[0] if measure.answer is None else measure.answer(*parts)
    return output, measured


_SCHEMA = "Tensor[] tensors, Scalar[] numbers, str text, str kernel, Tensor seed"


@torch.library.custom_op("regard::attend", mutates_args=(), schema=f"({_SCHEMA}) -> Tensor[]")
def _attend(tensors: Sequence[Tensor], numbers: Sequence[Number], text: str, kernel: str, seed: Tensor) -> list[Tensor]:
    from regard.ops.kernels.blockwise import forward

    job: KernelInputs = restore(text, tensors, numbers)
    return list(forward(job, _cut(kernel, job), int(seed), Answers(job.measures, job.request.shape)))


def _cut(kernel: str, job: KernelInputs) -> Any:
    """How the blocks lie, which dropout must find again in the backward pass: there may be other threads then."""
    from regard.ops.kernels.blockwise import Cut, threads_for

    return Cut(Cutters[kernel], 1 if job.dropout else threads_for(job))


@_attend.register_fake
def _(tensors: Sequence[Tensor], numbers: Sequence[Number], text: str, kernel: str, seed: Tensor) -> list[Tensor]:
    job: KernelInputs = restore(text, tensors, numbers)
    request, value, like = job.request, job.value, tensors[0]
    found = [] if value is None else [value.new_empty(*request.shape[:3], value.shape[3])]
    for measure in job.measures.values():
        found += [like.new_empty(shape, dtype=dtype) for shape, dtype in measure.parts(request.shape, request.dtype)]
    return found


@torch.library.custom_op(
    "regard::attend_backward",
    mutates_args=(),
    schema=f"({_SCHEMA}, Tensor[] gradients, bool[] came, bool[] needed) -> Tensor[]",
)
def _attend_backward(
    tensors: Sequence[Tensor],
    numbers: Sequence[Number],
    text: str,
    kernel: str,
    seed: Tensor,
    gradients: Sequence[Tensor],
    came: Sequence[bool],
    needed: Sequence[bool],
) -> list[Tensor]:
    from regard.ops.kernels.blockwise import backward

    job: KernelInputs = restore(text, tensors, numbers)
    walked, needs = tensors_in(job), {id(tensor): need for tensor, need in zip(tensors, needed, strict=True)}
    present = iter(gradients)
    given = [next(present) if each else None for each in came]
    # An operator runs below autograd, which the blocks of a backward pass need; torch's own compiler does it so.
    with torch._C._ForceDispatchKeyGuard(*_ABOVE), torch.no_grad():
        return backward(job, _cut(kernel, job), int(seed), walked, [needs[id(tensor)] for tensor in walked], given)


@_attend_backward.register_fake
def _(
    tensors: Sequence[Tensor],
    numbers: Sequence[Number],
    text: str,
    kernel: str,
    seed: Tensor,
    gradients: Sequence[Tensor],
    came: Sequence[bool],
    needed: Sequence[bool],
) -> list[Tensor]:
    return [torch.empty_like(tensor) for tensor, need in zip(tensors, needed, strict=True) if need]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    tensors, ctx.numbers, ctx.text, ctx.kernel, seed = inputs
    ctx.needed = [tensor.requires_grad for tensor in tensors]
    ctx.save_for_backward(seed, *tensors)


def _gradients(ctx: Any, gradients: Sequence[Tensor | None]) -> tuple[Any, ...]:
    seed, *tensors = ctx.saved_tensors
    came = [gradient is not None for gradient in gradients]
    present = [gradient for gradient in gradients if gradient is not None]
    rest = ctx.numbers, ctx.text, ctx.kernel, seed
    found = iter(torch.ops.regard.attend_backward(tensors, *rest, present, came, ctx.needed))
    return [next(found) if need else None for need in ctx.needed], None, None, None, None


_attend.register_autograd(_gradients, setup_context=_setup_context)
