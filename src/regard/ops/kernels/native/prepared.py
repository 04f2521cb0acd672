"""A call that was packed once, for later calls that differ from it in their numbers alone.

The layers of a model, and the batches of a loop, make the same call with other queries, keys and values. What follows
from shapes, strides and rules is the same for all: the kernel, the steps, and the structures except for addresses.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from regard.native.library import Library, MeasureCall, NativeCall
from regard.ops.kernels.base import KernelInputs, Measured, RunOptions
from regard.ops.kernels.differentiable import DifferentiableCall, DifferentiableKernel
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
        inputs: A call without tensors but those of value, query and key.
        packer: What it was packed with.
        call: The call, which has run.
        output: What it filled: the output, if there is a value.
        results: The results of the measures.
        lse: The log-sum-exp of each row, if a backward pass may follow.
    """

    fuses_measures = True

    def __init__(
        self,
        kernel: DifferentiableKernel,
        library: Library,
        inputs: KernelInputs,
        packer: Packer,
        call: NativeCall,
        output: Tensor | None,
        results: MeasureResults,
        lse: Tensor | None,
    ) -> None:
        tensors, filled = tensors_in(inputs), [each for each in (output, lse) if each is not None]
        self._library, self._num_outputs = library, int(output is not None)
        self._template = _Template(call, results.tensors(), [*filled, *packer.scratch], packer.kept)
        self._results = [(tensor.shape, tensor.dtype) for tensor in results.tensors()]
        self._specs = [each.result_specs(inputs.request.shape, torch.float32) for each in inputs.measures.values()]
        self._saved = [*map(_layout, tensors), *([] if lse is None else [_layout(lse)])]
        self._backward: dict[tuple[Any, ...], _Template] = {}
        options, num_saved, stand_in = RunOptions(saves=lse is not None), int(lse is not None), _stand_in()
        inputs, stand_ins = map_tensors(inputs, lambda _: stand_in), [stand_in] * len(tensors)
        self.passes = DifferentiableCall(kernel, inputs, options, stand_ins, results.layouts, num_saved, prepared=self)

    @property
    def kept_bytes(self) -> int:
        """Bytes of what the rules have made."""
        return self._template.kept_bytes

    def run(self, inputs: KernelInputs) -> tuple[Tensor | None, Measured]:
        """The output, if there is a value, and the measures by name; as `Kernel.run`."""
        request, value = inputs.request, inputs.value
        tensors = [request.query, request.key] if value is None else [value, request.query, request.key]
        if self.passes.options.saves:
            return self.passes.run(tensors)
        flat = self.forward(tensors)
        output, results = (None, flat) if value is None else (flat[0], flat[1:])
        return output, unflatten(inputs.measures, self.passes.layouts, results)

    def forward(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The output, if there is a value, the tensors of the results, and what the backward pass needs."""
        results = [torch.zeros(shape, dtype=dtype, device="cpu") for shape, dtype in self._results]
        filled = self._template.run(self._library, tensors, results)
        last = self._num_outputs + self.passes.num_saved
        return *filled[: self._num_outputs], *results, *filled[self._num_outputs : last]

    def backward(
        self, needed: Sequence[bool], gradients: Sequence[Tensor | None], tensors: Sequence[Tensor], lse: Tensor
    ) -> tuple[Tensor, ...] | None:
        """As `DifferentiableKernel.gradients`; None for a pass that cannot be prepared.

        Hooks may have replaced what was saved, and transforms all of it.
        """
        saved = *tensors, lse
        given = *saved, *(gradient for gradient in gradients if gradient is not None)
        if {*map(type, given)} != {Tensor} or [*map(_layout, saved)] != self._saved:
            return None
        outputs, rest = gradients[: self._num_outputs], gradients[self._num_outputs :]
        if any(gradient is None for gradient in outputs):
            return None
        gradients = [*outputs, *whole_gradients(self._specs, rest)]
        present = [lse, *(gradient for gradient in gradients if gradient is not None)]
        key = *needed, *[None if gradient is None else _layout(gradient) for gradient in gradients]
        template = self._backward.get(key)
        if template is not None:
            totals = template.run(self._library, tensors, present, backward=True)
        elif _overlap(present) or len(self._backward) == MAX_BACKWARD_CALLS:
            return None
        else:
            call = BackwardCall(self.passes.with_tensors(tensors), needed, gradients, lse, 0)
            self._library.run(call.call, backward=True)
            totals = call.results()
            self._backward[key] = _Template(call.call, present, [*totals, *call.packer.scratch], call.packer.kept)
        dtypes = [tensor.dtype for tensor, need in zip(tensors, needed, strict=True) if need]
        return tuple([total.to(dtype) for total, dtype in zip(totals, dtypes, strict=False)])  # then comes scratch


class _Template:
    """A call as memory in which the addresses of tensors are replaced.

    Args:
        call: The call.
        given: The tensors that a later call brings, beside value, query and key, which may share memory.
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
        ranges, words = [*map(_range, tensors)], self._words.from_buffer_copy(self._memory)
        for word in (word for word in _pointers(call.measure_count) if words[word]):
            address = words[word]
            for number, (start, end) in enumerate(ranges):
                if start <= address < end:
                    self._addresses.append((word, number, address - start))
        self._filled = [*map(_layout, filled)]
        ids = {*map(id, tensors)}
        self._kept = [each for each in kept if id(each) not in ids]

    @property
    def kept_bytes(self) -> int:
        """Bytes of the tensors that are kept."""
        return sum(each.nbytes for each in self._kept if isinstance(each, Tensor))

    def run(
        self, library: Library, inputs: Sequence[Tensor], given: Sequence[Tensor], backward: bool = False
    ) -> list[Tensor]:
        """Run the call with other tensors, and return what it has filled.

        Args:
            library: What runs it.
            inputs: Value, if there is one, query and key.
            given: As those that the template was made with.
            backward: Whether it is a backward pass.
        """
        filled = [*map(_empty, self._filled)]
        starts = [tensor.data_ptr() for tensor in (*given, *filled)]
        words = self._words.from_buffer_copy(self._memory)
        for word, number, start in self._addresses:
            words[word] = starts[number] + start
        call = NativeCall.from_buffer(words)
        *value, query, key = inputs
        call.matrix.query.data, call.matrix.key.data = query.data_ptr(), key.data_ptr()
        if value:
            call.value.data = value[0].data_ptr()
        if call.measures:
            call.measures = ctypes.cast(ctypes.addressof(words) + ctypes.sizeof(call), type(call.measures))
        library.run(call, backward)
        return filled


@lru_cache(maxsize=16)
def _pointers(measure_count: int) -> list[int]:
    """Which words of a call and its measures are addresses of tensors."""
    words, size = [*_pointer_fields(NativeCall)], ctypes.sizeof(NativeCall) // 8
    of_measure, measure_size = [*_pointer_fields(MeasureCall)], ctypes.sizeof(MeasureCall) // 8
    return words + [size + number * measure_size + word for number in range(measure_count) for word in of_measure]


def _pointer_fields(structure: Any) -> Iterator[int]:
    for name, kind in structure._fields_:
        start = getattr(structure, name).offset // 8
        if kind is ctypes.c_void_p:
            yield start
        elif issubclass(kind, ctypes.Structure):
            yield from (start + word for word in _pointer_fields(kind))


def _range(tensor: Tensor) -> tuple[int, int]:
    """The addresses of a tensor's elements, from the first to behind the last."""
    start, strides = tensor.data_ptr(), zip(tensor.shape, tensor.stride(), strict=True)
    return start, start + (1 + sum((size - 1) * stride for size, stride in strides)) * tensor.element_size()


def _overlap(tensors: Sequence[Tensor]) -> bool:
    ranges = sorted(map(_range, tensors))
    return any(start < end for (_, end), (start, _) in pairwise(ranges))


@lru_cache(maxsize=1)
def _stand_in() -> Tensor:
    """Instead of a tensor that is not kept; one for all, since small memory for each would divide what is free."""
    return torch.empty(0, device="cpu")


def _layout(tensor: Tensor) -> Layout:
    return tensor.shape, tensor.stride(), tensor.dtype


def _empty(layout: Layout) -> Tensor:
    shape, strides, dtype = layout
    return torch.empty_strided(shape, strides, dtype=dtype, device="cpu")
