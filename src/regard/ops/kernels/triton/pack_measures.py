"""Write measures as functions and arguments of the passes, from their steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.ops.kernels.base import KernelInputs
from regard.ops.kernels.triton.configurations import next_power_of_two
from regard.ops.kernels.triton.kinds import COLUMN_KINDS, FUSED_KINDS, POOL_KINDS
from regard.ops.kernels.triton.launch import Function
from regard.ops.kernels.triton.pack import (
    LOG2E,
    PackedMatrix,
    clamped_offset,
    mask_rules,
    padded,
    precision,
    strided,
    with_dense_features,
)
from regard.ops.request import AttentionRequest
from regard.ops.steps import Step

MAX_PRODUCT_COLUMNS = 64
"""Columns of a product with the transposed matrix that a pass computes."""


class PackedMeasure(NamedTuple):
    """A measure in a pass: its functions, its arguments, and the tensors of its results."""

    function: Function
    args: tuple[Any, ...]
    results: tuple[Tensor, ...]


def pack_measures(inputs: KernelInputs, results: dict[str, list[Tensor]]) -> dict[str, list[PackedMeasure]]:
    """The measures of each pass, ``fused``, ``rows``, ``topk`` and ``columns``, with the tensors for their results."""
    passes: dict[str, list[PackedMeasure]] = {"fused": [], "rows": [], "topk": [], "columns": []}
    for name, steps in zip(inputs.measures, inputs.steps.measures, strict=True):
        for step in steps or ():
            if step.kind in POOL_KINDS:
                continue
            if step.kind in COLUMN_KINDS:
                passes["columns"] += column_measure(step, results[name], inputs.request)
            else:
                is_fused = step.kind in FUSED_KINDS
                place = "fused" if is_fused else "topk" if step.kind == "topk" else "rows"
                table = "rows.FUSED" if is_fused else "rows.SWEPT"
                constants, args = row_args(step, inputs.request, results[name][0])
                function = Function(table, step.kind, (constants,))
                passes[place].append(PackedMeasure(function, args, tuple(results[name])))
    return passes


def row_args(step: Step, request: AttentionRequest, result: Tensor) -> tuple[Any, tuple[Any, ...]]:
    """The constants and arguments of a measure of rows."""
    kind = step.kind
    if kind == "mass":
        assert step.mask is not None
        return mask_rules(step.mask, request)
    if kind == "divergence":
        (lse,) = step.tensors()
        assert lse is not None
        return _other_matrix(PackedMatrix(KernelInputs(None, step.other, {})), lse)
    if kind == "mean_distance":
        return (), (request.offset,)
    if kind == "diagonal":
        return (), (min(max(request.offset + step.numbers[0], -(2**30)), 2**30),)
    if kind == "select":
        return (), (strided(result), step.numbers[0], result.shape[3])
    if kind == "histogram":
        (reach,) = step.numbers
        return (), (strided(result), clamped_offset(request, reach), reach)
    if kind == "topk":
        (count,) = step.numbers
        return (count, max(2, next_power_of_two(count))), ()
    return (), ()


def _other_matrix(other: PackedMatrix, lse: Tensor) -> tuple[Any, tuple[Any, ...]]:
    """The constants and arguments of a matrix that a measure compares with."""
    options, (_, heads, queries, keys) = other.options(), other.request.shape
    constants = tuple([options[name] for name in ("SELECTED", "MASK", "SCORE", "D", "D_PAD", "PRECISION")])
    sizes = queries, keys, heads // other.key.shape[1]
    args = (
        strided(other.query), strided(other.key), strided(lse * LOG2E), other.log_scale, other.selection,
        other.mask.args, other.score.args, sizes,
    )  # fmt: skip
    return constants, args


def column_measure(step: Step, results: Sequence[Tensor], request: AttentionRequest) -> Iterable[PackedMeasure]:
    """A measure of columns; a wide product is several."""
    (rows,) = step.tensors()
    if step.kind == "received":
        name, args = ("received", ()) if rows is None else ("weighted", (strided(rows),))
        yield PackedMeasure(Function("columns.KINDS", name, ((),)), args, tuple(results))
        return
    assert rows is not None
    rows = with_dense_features(rows)
    total = rows.shape[3]
    for first in range(0, total, MAX_PRODUCT_COLUMNS):
        count = min(MAX_PRODUCT_COLUMNS, total - first)
        constants = (first, count, padded(count), precision(torch.float32, rows.device))
        function = Function("columns.KINDS", "transposed", (constants,))
        yield PackedMeasure(function, (strided(rows), total), tuple(results))
