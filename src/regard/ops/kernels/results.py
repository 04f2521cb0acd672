"""Collect the results of measures over the blocks of a matrix."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from typing import Any

from torch import Tensor

from regard.errors import InvalidArgument
from regard.ops.kernels.base import KernelInputs
from regard.ops.measures.base import BlockIndex, Measure
from regard.ops.rules import has_steps
from regard.ops.tile import Index, index_size

Layouts = dict[str, tuple[Any, int]]
"""By measure: what makes its result from a list of tensors (None: it is the only tensor), and how many there are."""


class MeasureResults:
    """The whole results, filled block by block.

    Measures that are built in or have steps say what their results look like; those of others follow from their first
    block.
    """

    def __init__(self, inputs: KernelInputs) -> None:
        self.measures, self.shape = inputs.measures, inputs.request.shape
        self.layouts: Layouts = {}
        self._wholes: dict[str, list[Tensor]] = {}
        self._allocating = threading.Lock()
        query, dtype = inputs.request.query, inputs.request.dtype
        for name, measure in self.measures.items():
            if measure.builtin or has_steps(type(measure)):
                specs = measure.result_specs(self.shape, dtype)
                self.layouts[name] = measure.result_type, len(specs)
                self._wholes[name] = [query.new_zeros(shape, dtype=dtype) for shape, dtype in specs]

    def whole(self, name: str) -> list[Tensor]:
        """The tensors of a result that is described by `result_specs`, to be filled."""
        return self._wholes[name]

    def add(self, name: str, result: Any, index: BlockIndex) -> None:
        """Add what a measure returned for the block at an index."""
        measure = self.measures[name]
        at = measure.result_index(index, self.shape)
        parts = as_tensors(name, measure, result, at)
        if name not in self._wholes:
            with self._allocating:
                self._allocate(name, result, parts)
        for whole, part in zip(self._wholes[name], parts, strict=True):
            if measure.axis == "queries":
                whole[at] = part
            else:
                whole[at] += part

    def _allocate(self, name: str, result: Any, parts: tuple[Tensor, ...]) -> None:
        if name in self._wholes:  # another thread was first
            return
        axes = self.measures[name].result_shape(self.shape)
        cls = type(result)
        self.layouts[name] = (cls if isinstance(result, tuple) else None), len(parts)
        self._wholes[name] = [part.new_zeros(*axes, *part.shape[len(axes) :]) for part in parts]

    def tensors(self) -> list[Tensor]:
        """The tensors of all results, in the order of the measures."""
        return [*chain.from_iterable(map(self._wholes.__getitem__, self.measures))]


def result_layouts(inputs: KernelInputs) -> Layouts:
    """The layouts of the results, if every measure describes them by `result_specs`."""
    shape, dtype = inputs.request.shape, inputs.request.dtype
    return {
        name: (measure.result_type, len(measure.result_specs(shape, dtype)))
        for name, measure in inputs.measures.items()
    }


def unflatten(measures: Mapping[str, Measure], layouts: Layouts, tensors: Sequence[Tensor]) -> dict[str, Any]:
    """The results by name, from the tensors of `MeasureResults.tensors`."""
    rest = iter(tensors)
    results = {}
    for name in measures:
        make, count = layouts[name]
        parts = islice(rest, count)
        results[name] = next(parts) if make is None else tuple(parts) if make is tuple else make(*parts)
    return results


def as_tensors(name: str, measure: Measure, result: Any, at: tuple[Index, ...]) -> tuple[Tensor, ...]:
    """The tensors of a block's result, which belongs to these entries of the whole.

    Raises:
        InvalidArgument: If it is something else, or its shape is not what the measure's axis says.
    """
    parts = result if isinstance(result, tuple) else (result,)
    start = tuple([index_size(index) for index in at])
    for part in parts:
        if not isinstance(part, Tensor):
            raise InvalidArgument(
                f"measure '{name}': compute() must return a tensor or a tuple of tensors, got {type(part).__name__}"
            )
        if part.shape[: len(start)] != start:
            axes = ("batch", "heads", str(measure.axis))[: len(start)]
            raise InvalidArgument(
                f"measure '{name}': with axis = {measure.axis!r}, the result for this block must start with "
                f"({', '.join(axes)}) = {start}, got shape {tuple(part.shape)}"
            )
    return parts
