"""A call that was packed once, for later calls that differ from it in their numbers alone.

The layers of a model, and the batches of a loop, make the same call with other queries, keys and values. What follows
from shapes, strides and rules is the same for all: the kernel, the steps, and the structures except for addresses.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from regard.native.library import Library, MeasureCall, NativeCall
from regard.ops.kernels.base import Kernel, KernelInputs, Measured
from regard.ops.kernels.native.pack import Packer
from regard.ops.kernels.results import MeasureResults, unflatten
from regard.ops.tree import structure

MAX_CALLS = 128
MAX_KEPT_BYTES = 2**16
"""A call whose rules make larger tables takes long enough to make them again."""


class PreparedCall:
    """A call that runs again with other tensors.

    Args:
        library: Finds the library.
        packer: What the call was packed with.
        call: The call, which has no tensors in its rules.
        results: Its results.
    """

    fuses_measures = True

    def __init__(
        self, library: Callable[[], Library], packer: Packer, call: NativeCall, results: MeasureResults
    ) -> None:
        tensors = results.tensors()
        self._library, self._layouts, self._kept = library, results.layouts, packer.kept
        self._results, self._scratch = _specs(tensors), _specs(packer.scratch)
        self._call, self._array = bytes(call), MeasureCall * call.measure_count
        self._measures = ctypes.string_at(call.measures, ctypes.sizeof(self._array)) if call.measure_count else b""
        self._addresses = _addresses(call, [*tensors, *packer.scratch])

    def run(self, inputs: KernelInputs) -> tuple[Tensor | None, Measured]:
        """The output, if there is a value, and the measures by name; as `Kernel.run`."""
        query, value = inputs.request.query, inputs.value
        output = None if value is None else inputs.new_output()
        call = NativeCall.from_buffer_copy(self._call)
        call.matrix.query.data, call.matrix.key.data = query.data_ptr(), inputs.request.key.data_ptr()
        if value is not None and output is not None:
            call.value.data, call.output.data = value.data_ptr(), output.data_ptr()
        results = [query.new_zeros(shape, dtype=dtype) for shape, dtype in self._results]
        scratch = [query.new_empty(shape, dtype=dtype) for shape, dtype in self._scratch]
        if results:
            tensors = results + scratch
            measures = self._array.from_buffer_copy(self._measures)
            for measure, field, tensor, start in self._addresses:
                setattr(measures[measure], field, tensors[tensor].data_ptr() + start)
            call.measures = measures
        self._library().run(call)
        return output, unflatten(inputs.measures, self._layouts, results)


class Preparation:
    """What computes the calls of a key of `preparation_for`: SDPA, or from its second use on a native call."""

    def __init__(self) -> None:
        self.call: Kernel | PreparedCall | None = None
        self.is_repeated = False

    def prepare(
        self, library: Callable[[], Library], packer: Packer, call: NativeCall, results: MeasureResults
    ) -> None:
        """Keep a call that has run, if there was another one like it."""
        kept = sum(each.nbytes for each in packer.kept if isinstance(each, Tensor))
        if self.is_repeated and kept <= MAX_KEPT_BYTES:
            self.call = PreparedCall(library, packer, call, results)
        self.is_repeated = True


def preparation_for(inputs: KernelInputs) -> Preparation | None:
    """What is kept for calls like this one; None if it has a gradient, or tensors beyond query, key and value."""
    request, value = inputs.request, inputs.value
    tensors = (request.query, request.key) if value is None else (request.query, request.key, value)
    is_tracked = torch.is_grad_enabled()
    for tensor in tensors:
        if type(tensor) is not Tensor or (is_tracked and tensor.requires_grad) or tensor.is_neg():
            return None
    is_transformed = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0  # pyright: ignore[reportPrivateUsage]
    if is_transformed or not tensors[0].is_cpu or inputs.dropout or request.full_shape is not None:
        return None
    try:
        rules = structure(request.mask), structure(request.score), structure(inputs.measures)
    except TypeError:  # a tensor, or a user's rule
        return None
    layouts = [(tensor.dtype, tensor.shape, tensor.stride()) for tensor in tensors]
    return _preparation((request.scale, request.offset, rules, *layouts))


@lru_cache(MAX_CALLS)
def _preparation(key: tuple[Any, ...]) -> Preparation:
    return Preparation()


def _specs(tensors: Sequence[Tensor]) -> list[tuple[torch.Size, torch.dtype]]:
    return [(tensor.shape, tensor.dtype) for tensor in tensors]


def _addresses(call: NativeCall, tensors: Sequence[Tensor]) -> list[tuple[int, str, int, int]]:
    """The addresses within measures: the measure, its field, and which byte of which tensor it points to."""
    found: list[tuple[int, str, int, int]] = []
    for measure in range(call.measure_count):
        for field in ("result", "second", "by_chunk"):
            address = getattr(call.measures[measure], field)
            for number, tensor in enumerate(tensors):
                if address is not None and 0 <= address - tensor.data_ptr() < tensor.nbytes:
                    found.append((measure, field, number, address - tensor.data_ptr()))
    return found
