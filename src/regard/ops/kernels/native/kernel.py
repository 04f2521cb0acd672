"""The native kernel: forward and backward pass in C++."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard.ops.kernels.base import KernelInputs, RunOptions
from regard.ops.kernels.blockwise import Blockwise
from regard.ops.kernels.native.cache_size import second_level_bytes
from regard.ops.kernels.native.choices import is_sdpa_faster
from regard.ops.kernels.native.encode import MASKS, SCORES, Encoder, unsupported_request
from regard.ops.kernels.native.encode_measures import MEASURES, encode_measure, unsupported_measures
from regard.ops.kernels.native.gradients import BackwardCall, has_gradients, unsupported_gradients
from regard.ops.kernels.native.library import DTYPES, Call, MeasureCall, Strided, library, strided
from regard.ops.kernels.results import MeasureResults
from regard.ops.kernels.sdpa import Sdpa
from regard.ops.measures import BlockMean, GroupPool

MAX_CHUNKS = 16
"""A head is cut into as many parts at most. More would need more memory for the sums over their columns."""

MIN_ROWS_PER_CHUNK = 128


class Native(Blockwise):
    """Output and measures in one pass in C++, on a CPU."""

    name = "native"
    description = "C++ for CPUs: output and measures in one pass"
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
        """Also: the library, dropout with gradients that are missing, scores that are not biased dot products."""
        is_compiling = torch.compiler.is_compiling()  # a compiler cannot trace how the library is found
        found = None if is_compiling else library()
        if isinstance(found, str):
            yield found
        yield from super().unsupported_reasons(inputs)
        value = inputs.value
        if value is not None and value.dtype not in DTYPES and value.dtype != inputs.request.query.dtype:
            yield f"it does not support {value.dtype}"
        yield from unsupported_request(inputs.request)
        yield from unsupported_measures(inputs)
        if inputs.dropout and is_compiling:
            yield "it has no dropout in a compiled program"
        elif inputs.dropout:  # blockwise, which has the other gradients, drops other cells
            yield from (f"{reason}, with dropout" for reason in unsupported_gradients(inputs))

    def inefficient_reasons(self, inputs: KernelInputs) -> Iterator[str]:
        """The output alone: where SDPA is faster, and in a compiled program, which plans SDPA with the rest."""
        if inputs.measures or inputs.dropout:
            return
        query = inputs.request.query
        is_slower = torch.compiler.is_compiling()
        if not is_slower and query.dtype in DTYPES:
            work = 2 * math.prod(inputs.request.shape[1:]) * query.shape[3]  # of a sequence: the batch must not decide
            dtype = str(query.dtype).removeprefix("torch.")
            is_slower = is_sdpa_faster(self.variant(), second_level_bytes(), dtype, work)
        if is_slower and Sdpa().suits(inputs):
            yield "SDPA computes the output alone faster"

    def forward(self, inputs: KernelInputs, options: RunOptions) -> tuple[Tensor | None, MeasureResults]:
        value, results = inputs.value, MeasureResults(inputs)
        found = library()
        if isinstance(found, str):  # a compiled program, for which nothing was checked
            return super().forward(inputs, options)
        output = None if value is None else value.new_empty(*inputs.request.shape[:3], value.shape[3])
        encoder = Encoder()  # holds the tensors that the call points to
        found.run(forward_call(encoder, inputs, output, results, options.seed))
        return output, results

    def backward(
        self,
        inputs: KernelInputs,
        options: RunOptions,
        needed: Sequence[bool],
        gradients: Sequence[Tensor | None],
    ) -> list[Tensor]:
        found = library()
        if isinstance(found, str) or not has_gradients(inputs, needed):
            return super().backward(inputs, options, needed, gradients)
        backward = BackwardCall(inputs, needed, gradients, options.seed)
        found.run(backward.call, backward=True)
        return backward.results()


def forward_call(
    encoder: Encoder, inputs: KernelInputs, output: Tensor | None, results: MeasureResults, seed: int
) -> Call:
    """The call of a forward pass that fills output and results."""
    request, value = inputs.request, inputs.value
    chunks, chunk_rows = cut_queries(inputs)
    measures = [
        call
        for name, measure in inputs.measures.items()
        for call in encode_measure(encoder, measure, results.whole(name), request, chunks)
    ]
    return Call(
        matrix=encoder.matrix(request),
        value_heads=request.shape[1] if value is None else value.shape[1],
        value_dim=0 if value is None else value.shape[3],
        value=Strided() if value is None else strided(value),
        output=Strided() if output is None else strided(output),
        measure_count=len(measures),
        measures=encoder.array(MeasureCall, measures),
        dropout=inputs.dropout,
        seed=seed,
        chunks=chunks,
        chunk_rows=chunk_rows,
        cache_bytes=second_level_bytes(),
    )


def cut_queries(inputs: KernelInputs) -> tuple[int, int]:
    """The number of chunks, and rows of each: a function of the shape and the measures alone."""
    queries = inputs.request.shape[2]
    measures = inputs.measures.values()
    if any(isinstance(measure, GroupPool) for measure in measures):
        return 1, queries  # rows of a group can be anywhere
    chunks = max(1, min(MAX_CHUNKS, queries // MIN_ROWS_PER_CHUNK))
    rows = -(-queries // chunks)
    unit = math.lcm(*(measure.block_size for measure in measures if isinstance(measure, BlockMean)))
    rows = min(-(-rows // unit) * unit, queries)  # no block is in two chunks
    return max(-(-queries // max(rows, 1)), 1), rows
