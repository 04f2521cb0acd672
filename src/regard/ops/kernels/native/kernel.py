"""The native kernel: a forward pass in C++; gradients come from `Blockwise`."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from regard.ops.kernels.base import KernelInputs, RunOptions
from regard.ops.kernels.blockwise import Blockwise
from regard.ops.kernels.native.encode import (
    DTYPES,
    MASKS,
    MAX_MASK_DEPTH,
    MEASURES,
    SCORES,
    EncodedCall,
    mask_depth,
    score_order,
)
from regard.ops.kernels.native.library import Library, library
from regard.ops.kernels.results import MeasureResults


class Native(Blockwise):
    """Output and measures in one pass in C++, on a CPU."""

    name = "native"
    description = "C++ for CPUs: output, entropy, lse and received in one pass"
    devices = ("cpu",)
    dtypes = tuple(DTYPES)
    masks = MASKS
    scores = SCORES
    measures = MEASURES

    def unavailable_reason(self) -> str | None:
        found = library()
        return found if isinstance(found, str) else None

    def variant(self) -> str:
        found = library()
        return "" if isinstance(found, str) else found.level

    def unsupported_reasons(self, inputs: KernelInputs) -> Iterator[str]:
        """Also: the library, dropout, scores that are not a scaled dot product with biases."""
        if torch.compiler.is_compiling():  # first: the compiler could not trace the questions below
            yield "it cannot be compiled"
            return
        found = library()
        if isinstance(found, str):
            yield found
        yield from super().unsupported_reasons(inputs)
        request, value = inputs.request, inputs.value
        if inputs.dropout:
            yield "it has no dropout"
        if value is not None and value.dtype != request.query.dtype:
            yield f"the value is {value.dtype}, the query {request.query.dtype}"
        if mask_depth(request.mask) > MAX_MASK_DEPTH:
            yield f"it supports masks combined up to {MAX_MASK_DEPTH} deep"
        if score_order(request.score) is None:
            yield f"it adds biases to one ScaledDotProduct, the score is {request.score!r}"
        kinds = [type(measure) for measure in inputs.measures.values()]
        if len({kind for kind in kinds if kind.axis == "queries"}) < sum(kind.axis == "queries" for kind in kinds):
            yield "it computes each measure of rows once"

    def inefficient_reasons(self, inputs: KernelInputs) -> Iterator[str]:
        """No measures, or few queries."""
        if not inputs.measures:
            yield "SDPA computes the output alone, with a backward pass of its own"
        if inputs.request.shape[2] < MIN_QUERIES:
            yield "for a few queries, packing the keys takes longer than the product"

    def forward(self, inputs: KernelInputs, options: RunOptions) -> tuple[Tensor | None, MeasureResults]:
        value, results = inputs.value, MeasureResults(inputs)
        output = None if value is None else value.new_empty(*inputs.request.shape[:3], value.shape[3])
        found = library()
        assert isinstance(found, Library)
        encoded = EncodedCall(inputs, output, results)  # holds the tensors that the call points to
        found.run(encoded.call)
        return output, results


MIN_QUERIES = 8
