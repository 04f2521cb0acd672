"""A call that was packed once, for later calls that differ from it in their numbers alone.

The layers of a model, and the batches of a loop, make the same call with other queries, keys and values. What follows
from shapes, strides and rules is the same for all: the kernel, the steps, and the structures except for addresses.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.native.library import Library, MeasureCall, NativeCall
from regard.ops.kernels.base import KernelInputs, Measured, RunOptions
from regard.ops.kernels.differentiable import DifferentiableCall, DifferentiableKernel
from regard.ops.kernels.native.forward import forward_call
from regard.ops.kernels.native.gradients import BackwardCall, whole_gradients
from regard.ops.kernels.native.pack import Packer
from regard.ops.kernels.results import MeasureResults, unflatten
from regard.ops.tree import map_tensors, tensors_in

MAX_BACKWARD_CALLS = 8
"""Backward passes of a call differ in which gradients they get and compute, and in strides."""

Layout = tuple[torch.Size, tuple[int, ...], torch.dtype]
"""Shape, strides and dtype."""


class PreparedCall:
    """A call that runs again with other tensors, forward and backward.

    Args:
        kernel: The kernel, which has what is not prepared, such as second derivatives.
        library: What runs the calls.
        cache_bytes: Bytes of a core's second-level cache.
        inputs: A call without tensors but those of value, query and key.
        saves: Whether a backward pass may follow.
    """

    fuses_measures = True

    def __init__(
        self, kernel: DifferentiableKernel, library: Library, cache_bytes: int, inputs: KernelInputs, saves: bool
    ) -> None:
        # Each tensor gets memory of its own, by which it is found in the structures; nobody touches it.
        inputs = map_tensors(inputs, lambda tensor: _empty(_layout(tensor)))
        packer, results, query = Packer(), MeasureResults(inputs), inputs.request.query
        output = None if inputs.value is None else inputs.new_output()
        lse = query.new_empty(query.shape[:3], dtype=torch.float32) if saves else None
        call = forward_call(packer, inputs, output, results, lse, 0)
        call.cache_bytes = cache_bytes
        tensors, filled = tensors_in(inputs), [each for each in (output, lse) if each is not None]
        self._library, self._num_outputs = library, int(output is not None)
        self._template = _Template(call, [*tensors, *results.tensors()], [*filled, *packer.scratch], packer.kept)
        self._results = [(tensor.shape, tensor.dtype) for tensor in results.tensors()]
        self._specs = [each.result_specs(inputs.request.shape, torch.float32) for each in inputs.measures.values()]
        self._saved = [*map(_layout, tensors), *([] if lse is None else [_layout(lse)])]
        self._backward: dict[tuple[Any, ...], _Template] = {}
        options, num_saved = RunOptions(saves=saves), int(saves)
        call = DifferentiableCall(kernel, inputs, options, tensors, results.layouts, num_saved, prepared=self)
        self._call = call.without_tensors()

    @property
    def kept_bytes(self) -> int:
        """Bytes of what the rules have made."""
        return self._template.kept_bytes

    def run(self, inputs: KernelInputs) -> tuple[Tensor | None, Measured]:
        """The output, if there is a value, and the measures by name; as `Kernel.run`."""
        request, value = inputs.request, inputs.value
        tensors = [request.query, request.key] if value is None else [value, request.query, request.key]
        if self._call.options.saves:
            return self._call.run(tensors)
        flat = self.forward(tensors)
        output, results = (None, flat) if value is None else (flat[0], flat[1:])
        return output, unflatten(inputs.measures, self._call.layouts, results)

    def forward(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The output, if there is a value, the tensors of the results, and what the backward pass needs."""
        results = [torch.zeros(shape, dtype=dtype, device="cpu") for shape, dtype in self._results]
        filled = self._template.run(self._library, [*tensors, *results])
        last = self._num_outputs + self._call.num_saved
        return *filled[: self._num_outputs], *results, *filled[self._num_outputs : last]

    def backward(
        self, needed: Sequence[bool], gradients: Sequence[Tensor | None], tensors: Sequence[Tensor], lse: Tensor
    ) -> tuple[Tensor, ...] | None:
        """As `DifferentiableKernel.gradients`; None for a pass that is not prepared.

        Hooks may have replaced what was saved, and transforms all of it.
        """
        saved = *tensors, lse
        given = *saved, *(gradient for gradient in gradients if gradient is not None)
        if {*map(type, given)} != {Tensor} or [*map(_layout, saved)] != self._saved:
            return None
        outputs, rest = gradients[: self._num_outputs], gradients[self._num_outputs :]
        gradients = [*outputs, *whole_gradients(self._specs, rest)]
        key = *needed, *[None if gradient is None else _layout(gradient) for gradient in gradients]
        template = self._backward.get(key)
        if template is None:
            if any(each is None for each in outputs) or len(self._backward) == MAX_BACKWARD_CALLS:
                return None
            template = self._backward[key] = self._prepare_backward(needed, gradients)
        present = [gradient for gradient in gradients if gradient is not None]
        totals = template.run(self._library, [*saved, *present], backward=True)
        dtypes = [tensor.dtype for tensor, need in zip(tensors, needed, strict=True) if need]
        return tuple([total.to(dtype) for total, dtype in zip(totals, dtypes, strict=False)])  # then come scratch

    def _prepare_backward(self, needed: Sequence[bool], gradients: Sequence[Tensor | None]) -> _Template:
        *tensors, lse = map(_empty, self._saved)
        gradients = [None if gradient is None else _empty(_layout(gradient)) for gradient in gradients]
        call = BackwardCall(self._call.with_tensors(tensors), needed, gradients, lse, 0)
        given = *tensors, lse, *(gradient for gradient in gradients if gradient is not None)
        return _Template(call.call, given, [*call.results(), *call.packer.scratch], call.packer.kept)


class _Template:
    """A call as memory in which the addresses of tensors are replaced.

    Args:
        call: The call.
        given: The tensors that a later call brings.
        filled: The tensors that each call makes anew. No two of all these share memory.
        kept: What else the structures point to.
    """

    def __init__(self, call: NativeCall, given: Sequence[Tensor], filled: Sequence[Tensor], kept: list[Any]) -> None:
        tensors = [*given, *filled]
        array = MeasureCall * call.measure_count
        self._memory = bytes(call) + (ctypes.string_at(call.measures, ctypes.sizeof(array)) if call.measures else b"")
        self._words: Any = ctypes.c_uint64 * (len(self._memory) // 8)
        self._addresses: list[tuple[int, int, int]] = []
        """Which word points to which tensor, and to which of its bytes."""
        starts = [(tensor.data_ptr(), tensor.untyped_storage().nbytes()) for tensor in tensors]
        for word, address in enumerate(self._words.from_buffer_copy(self._memory)):
            for number, (start, size) in enumerate(starts):
                if start <= address < start + size:
                    self._addresses.append((word, number, address - start))
        self._filled = [*map(_layout, filled)]
        given_ids = {*map(id, tensors)}
        self._kept = [each for each in kept if id(each) not in given_ids]

    @property
    def kept_bytes(self) -> int:
        """Bytes of the tensors that are kept."""
        return sum(each.nbytes for each in self._kept if isinstance(each, Tensor))

    def run(self, library: Library, given: Sequence[Tensor], backward: bool = False) -> list[Tensor]:
        """Run the call with other tensors, and return what it has filled."""
        filled = [*map(_empty, self._filled)]
        starts = [tensor.data_ptr() for tensor in (*given, *filled)]
        words = self._words.from_buffer_copy(self._memory)
        for word, number, start in self._addresses:
            words[word] = starts[number] + start
        call = NativeCall.from_buffer(words)
        if call.measures:
            call.measures = ctypes.cast(ctypes.addressof(words) + ctypes.sizeof(call), type(call.measures))
        library.run(call, backward)
        return filled


def _layout(tensor: Tensor) -> Layout:
    return tensor.shape, tensor.stride(), tensor.dtype


def _empty(layout: Layout) -> Tensor:
    shape, strides, dtype = layout
    return torch.empty_strided(shape, strides, dtype=dtype, device="cpu")
