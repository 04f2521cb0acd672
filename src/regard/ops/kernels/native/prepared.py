"""A call that was packed once, for later calls that differ from it in their numbers alone.

The layers of a model, and the batches of a loop, make the same call with other queries, keys and values. What follows
from shapes, strides and rules is the same for all: the kernel, the steps, and the structures except for addresses.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from regard.native.library import Library, MeasureCall, NativeCall
from regard.ops.kernels.base import KernelInputs, Measured
from regard.ops.kernels.native.pack import Packer
from regard.ops.kernels.results import MeasureResults, unflatten

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


def prepared_call(
    library: Callable[[], Library], packer: Packer, call: NativeCall, results: MeasureResults
) -> PreparedCall | None:
    """The prepared call, with the arguments of `PreparedCall`, if it keeps little."""
    kept = sum(each.nbytes for each in packer.kept if isinstance(each, Tensor))
    return PreparedCall(library, packer, call, results) if kept <= MAX_KEPT_BYTES else None


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
