"""A kernel as one operator of a compiled or exported program, forward and backward.

A compiler would otherwise trace the blocks one by one. The operator takes the tensors and numbers of a call, and a
literal that says how they belong together; see `tree.TreeEncoder`. User-defined rules cannot be encoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from regard.ops.dropout import draw_seed
from regard.ops.indexing import SelectCells
from regard.ops.kernels.base import Kernel, KernelInputs, Measured, RunOptions
from regard.ops.kernels.results import result_layouts, unflatten
from regard.ops.measures.base import Spec
from regard.ops.request import AttentionRequest
from regard.ops.rules import builtin_classes
from regard.ops.tree import Number, TreeEncoder, decode, tensors_in

_SCHEMA = "Tensor[] tensors, Scalar[] integers, Scalar[] floats, str text, str kernel, Tensor seed, int num_saved"


def call_operator(kernel: str, inputs: KernelInputs, num_saved: int) -> tuple[Tensor | None, Measured]:
    """Call the operator, for built-in rules; where a gradient may be needed, the kernel saves so many tensors."""
    encoder = TreeEncoder()
    text = encoder.encode(inputs)
    query = inputs.request.query
    seed = draw_seed(query.device) if inputs.dropout else query.new_zeros((), dtype=torch.int64)
    is_tracked = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in encoder.tensors)
    flat = torch.ops.regard.attend(*encoder.lists, text, kernel, seed, num_saved if is_tracked else 0)
    output, results = (None, flat) if inputs.value is None else (flat[0], flat[1:])
    return output, unflatten(inputs.measures, result_layouts(inputs), results)


@torch.library.custom_op("regard::attend", mutates_args=(), schema=f"({_SCHEMA}) -> Tensor[]")
def _attend(
    tensors: Sequence[Tensor],
    integers: Sequence[Number],
    floats: Sequence[Number],
    text: str,
    kernel: str,
    seed: Tensor,
    num_saved: int,
) -> list[Tensor]:
    inputs = _decode(text, tensors, integers, floats)
    output, results, saved = _kernel(kernel).forward(inputs, RunOptions(seed, num_saved > 0))
    if len(saved) < num_saved:  # the fallback of a kernel that saves something, which then needs nothing
        saved = _empty(tensors[0], Kernel.registered[kernel].saved_specs(inputs))
    return [*([] if output is None else [output]), *results.tensors(), *saved]


@_attend.register_fake
def _(
    tensors: Sequence[Tensor],
    integers: Sequence[Number],
    floats: Sequence[Number],
    text: str,
    kernel: str,
    seed: Tensor,
    num_saved: int,
) -> list[Tensor]:
    inputs = _decode(text, tensors, integers, floats)
    request, like = inputs.request, tensors[0]
    results = [] if inputs.value is None else [inputs.new_output()]
    for measure in inputs.measures.values():
        results += _empty(like, measure.result_specs(request.shape, request.dtype))
    return results + (_empty(like, Kernel.registered[kernel].saved_specs(inputs)) if num_saved else [])


def _empty(like: Tensor, specs: Iterable[Spec]) -> list[Tensor]:
    return [like.new_empty(shape, dtype=dtype) for shape, dtype in specs]


@torch.library.custom_op(
    "regard::attend_backward",
    mutates_args=(),
    schema=f"({_SCHEMA}, Tensor[] saved, Tensor[] gradients, bool[] is_present, bool[] needed) -> Tensor[]",
)
def _attend_backward(
    tensors: Sequence[Tensor],
    integers: Sequence[Number],
    floats: Sequence[Number],
    text: str,
    kernel: str,
    seed: Tensor,
    num_saved: int,
    saved: Sequence[Tensor],
    gradients: Sequence[Tensor],
    is_present: Sequence[bool],
    needed: Sequence[bool],
) -> list[Tensor]:
    inputs = _decode(text, tensors, integers, floats)
    present = iter(gradients)
    all_gradients = [next(present) if each else None for each in is_present]
    # An operator runs below autograd, which the blocks of a backward pass need.
    with torch._C._ForceDispatchKeyGuard(*_autograd_state()), torch.no_grad():  # pyright: ignore[reportPrivateUsage]
        results = _kernel(kernel).gradients(inputs, RunOptions(seed), needed, all_gradients, saved)
    return [gradient.contiguous() for gradient in results]


@_attend_backward.register_fake
def _(tensors: Sequence[Tensor], *arguments: Any) -> list[Tensor]:
    *_, needed = arguments
    # Contiguous, as the real operator returns them: empty_like would promise the strides of transposed heads.
    return [tensor.new_empty(tensor.shape) for tensor, need in zip(tensors, needed, strict=True) if need]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    tensors, *ctx.rest, seed, ctx.num_saved = inputs
    ctx.needed = [tensor.requires_grad for tensor in tensors]
    *_, kernel = ctx.rest
    first_result = output[: int(ctx.num_saved > 0 and Kernel.registered[kernel].saves_first_result)]
    ctx.save_for_backward(seed, *tensors, *first_result, *output[len(output) - ctx.num_saved :])


def _gradients(ctx: Any, gradients: Sequence[Tensor | None]) -> tuple[Any, ...]:
    seed, *tensors = ctx.saved_tensors
    tensors, saved = tensors[: len(ctx.needed)], tensors[len(ctx.needed) :]
    gradients = gradients[: len(gradients) - ctx.num_saved]
    is_present = [gradient is not None for gradient in gradients]
    present = [gradient for gradient in gradients if gradient is not None]
    rest = *ctx.rest, seed, ctx.num_saved, saved
    results = iter(torch.ops.regard.attend_backward(tensors, *rest, present, is_present, ctx.needed))
    return [next(results) if need else None for need in ctx.needed], None, None, None, None, None, None


_attend.register_autograd(_gradients, setup_context=_setup_context)


def _decode(text: str, tensors: Sequence[Tensor], integers: Sequence[Number], floats: Sequence[Number]) -> KernelInputs:
    inputs = decode(text, tensors, integers, floats, _classes())
    assert len(tensors_in(inputs)) == len(tensors)
    return inputs


@lru_cache(maxsize=1)
def _classes() -> Mapping[str, type]:
    return {cls.__name__: cls for cls in (KernelInputs, AttentionRequest, SelectCells, *builtin_classes())}


def _kernel(name: str) -> Any:
    """The kernel of this name, or its fallback where a program runs on a machine without it."""
    kernel = Kernel.registered[name]
    return kernel.fallback if kernel.fallback and kernel.unavailable_reason() else kernel


@lru_cache(maxsize=1)
def _autograd_state() -> tuple[Any, Any]:
    """The state of torch's dispatcher in which autograd is active, from a new thread, which always starts in it."""

    def read() -> tuple[Any, Any]:
        return torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()  # pyright: ignore[reportPrivateUsage]

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(read).result()
