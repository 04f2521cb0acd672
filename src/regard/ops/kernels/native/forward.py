"""The call of a forward pass."""

from __future__ import annotations

import math

from torch import Tensor

from regard.native.library import MeasureCall, NativeCall, Strided, strided
from regard.ops.kernels.base import KernelInputs
from regard.ops.kernels.native.pack import Packer
from regard.ops.kernels.results import MeasureResults
from regard.ops.steps import Step

MAX_CHUNKS = 16
"""A head is cut into as many parts at most. More would need more memory for the sums over their columns."""

MIN_ROWS_PER_CHUNK = 128


def forward_call(
    packer: Packer, inputs: KernelInputs, output: Tensor | None, results: MeasureResults, lse: Tensor | None, seed: int
) -> NativeCall:
    """The call of a forward pass that fills output, results and the log-sum-exp."""
    (_, heads, queries, _), value = inputs.request.query.shape, inputs.value
    steps: list[tuple[Step, list[Tensor]]] = [] if lse is None else [(Step("lse"), [lse])]
    for name, own in zip(inputs.measures, inputs.steps.measures, strict=True):
        for step in own or ():
            steps.append((step, results.whole(name)))
    chunks, chunk_rows = cut_queries(queries, steps)
    measures: list[MeasureCall] = []
    for step, tensors in steps:
        measures += packer.measure(step, tensors, chunks)
    return NativeCall(
        matrix=packer.matrix(inputs),
        value_heads=heads if value is None else value.shape[1],
        value_dim=0 if value is None else value.shape[3],
        value=Strided() if value is None else strided(value),
        output=Strided() if output is None else strided(output),
        measure_count=len(measures),
        measures=packer.array(MeasureCall, measures),
        dropout=inputs.dropout,
        seed=seed,
        chunks=chunks,
        chunk_rows=chunk_rows,
    )


def cut_queries(queries: int, measures: list[tuple[Step, list[Tensor]]]) -> tuple[int, int]:
    """The number of chunks, and rows of each: a function of the shape and the measures alone."""
    unit = 1
    for step, _ in measures:
        if step.kind == "group_pool":
            return 1, queries  # rows of a group can be anywhere
        if step.kind == "block_mean":
            unit = math.lcm(unit, step.numbers[0])
    chunks = max(1, min(MAX_CHUNKS, queries // MIN_ROWS_PER_CHUNK))
    rows = -(-queries // chunks)
    rows = min(-(-rows // unit) * unit, queries)  # no block is in two chunks
    return max(-(-queries // max(rows, 1)), 1), rows
