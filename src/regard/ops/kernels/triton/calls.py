"""The launches of a call: forward pass and sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.ops.dropout import dropout_threshold
from regard.ops.kernels.base import KernelInputs, RunOptions
from regard.ops.kernels.differentiable import ForwardResult
from regard.ops.kernels.results import MeasureResults
from regard.ops.kernels.triton.configurations import Tiles, num_splits
from regard.ops.kernels.triton.kinds import POOL_KINDS
from regard.ops.kernels.triton.launch import Launcher
from regard.ops.kernels.triton.pack import PackedMatrix, padded, with_dense_features
from regard.ops.kernels.triton.pack_measures import PackedMeasure, pack_measures
from regard.ops.kernels.triton.pooling import pool


def run_forward(inputs: KernelInputs, options: RunOptions, run: Launcher) -> ForwardResult:
    """Output, measures, and the log-sum-exp of each row in units of log 2."""
    matrix, results = PackedMatrix(inputs), MeasureResults(inputs)
    passes = pack_measures(inputs, {name: results.whole(name) for name in inputs.measures})
    query, value = inputs.request.query, inputs.value
    output = None if value is None else value.new_empty(*query.shape[:3], value.shape[3])
    lse = query.new_empty(query.shape[:3], dtype=torch.float32)
    forward(matrix, inputs, output, lse, passes["fused"], options.seed, run)
    for name in ("rows", "topk"):
        if passes[name]:
            sweep_rows(matrix, lse, passes[name], run, name)
    if passes["columns"]:
        sweep_columns(matrix, lse, passes["columns"], run)
    for name, steps in zip(inputs.measures, inputs.steps.measures, strict=True):
        for step in steps or ():
            if step.kind in POOL_KINDS:
                pool(matrix, lse, step, results.whole(name)[0], run)
    return ForwardResult(output, results, (lse,) if options.saves else ())


def forward(
    matrix: PackedMatrix,
    inputs: KernelInputs,
    output: Tensor | None,
    lse: Tensor,
    measures: Sequence[PackedMeasure],
    seed: Tensor | None,
    run: Launcher,
) -> None:
    """Fill output, log-sum-exp and the measures that are computed while the softmax runs."""
    from regard.ops.kernels.triton.jit import forward as jit

    batch, heads, queries, keys = matrix.request.shape
    value = None if inputs.value is None else with_dense_features(inputs.value)
    value_dim = 0 if value is None else value.shape[3]
    functions, measure_args, results = parts_of(measures)
    sizes = matrix.tiles("forward", functions, value_dim, inputs.dropout > 0)
    splits = num_splits(batch * heads, queries, keys, sizes, lse.device)
    range_options, range_args = matrix.ranges(True, sizes.queries, sizes.keys)
    parts: tuple[Any, ...] = ()
    if splits > 1:
        shape = batch * heads, splits, queries
        parts = (
            lse.new_empty(shape), lse.new_empty(shape), lse.new_empty(*shape, value_dim),
            tuple([lse.new_empty(shape) for _ in measures]),
        )  # fmt: skip
    rows = {"HAS_SINKS": matrix.sinks is not None, "MEASURES": functions, "SPLITS": splits, "V": value_dim}
    rows["V_PAD"] = padded(value_dim)
    dropout = dropout_args(inputs, seed, lse)
    selection, sinks = matrix.selection, matrix.sinks
    args = (
        matrix.query, matrix.key, value, output, lse, results, parts, queries, keys, heads,
        heads // matrix.key.shape[1], 1 if value is None else heads // value.shape[1], matrix.query.stride()[:3],
        matrix.key.stride()[:3], (0, 0, 0) if value is None else value.stride()[:3], matrix.log_scale, selection,
        range_args, matrix.mask.args, matrix.score.args, sinks, measure_args, dropout,
    )  # fmt: skip
    constants = matrix.options() | range_options | rows | {"DROPOUT": inputs.dropout > 0} | sizes.options()
    run(jit.forward, -(-queries // sizes.queries) * batch * heads * splits, args, constants)
    if splits > 1:
        args = lse, output, results, parts, queries, heads, selection, sinks, measure_args, dropout[2]
        constants = rows | {"SELECTED": constants["SELECTED"], "QUERIES": sizes.queries, "num_warps": 4}
        run(jit.merge, batch * heads, args, constants)


def dropout_args(inputs: KernelInputs, seed: Tensor | None, like: Tensor) -> tuple[Any, ...]:
    """The seed, the number below which a hash drops a weight, and the factor of the others."""
    if seed is None or not inputs.dropout:
        return like, 0, 1.0
    threshold = dropout_threshold(inputs.dropout)
    return seed.to(like.device, non_blocking=True), threshold, 2**32 / (2**32 - threshold)


def sweep_rows(
    matrix: PackedMatrix, lse: Tensor, measures: Sequence[PackedMeasure], run: Launcher, name: str = "rows"
) -> None:
    """Fill the measures of rows that need the log-sum-exp; with the tiles of ``"rows"`` or ``"topk"``."""
    from regard.ops.kernels.triton.jit import sweeps as jit

    batch, heads, queries, _ = matrix.request.shape
    sizes = matrix.tiles(name, parts_of(measures)[0])
    run(jit.sweep_rows, -(-queries // sizes.queries) * batch * heads, *sweep(matrix, lse, measures, True, sizes))


def sweep_columns(matrix: PackedMatrix, lse: Tensor, measures: Sequence[PackedMeasure], run: Launcher) -> None:
    """Fill the measures of columns."""
    from regard.ops.kernels.triton.jit import sweeps as jit

    batch, heads, _, keys = matrix.request.shape
    sizes = matrix.tiles("columns", parts_of(measures)[0])
    run(jit.sweep_columns, -(-keys // sizes.keys) * batch * heads, *sweep(matrix, lse, measures, False, sizes))


def sweep(
    matrix: PackedMatrix, lse: Tensor, measures: Sequence[PackedMeasure], is_by_rows: bool, sizes: Tiles
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments and constants of a sweep."""
    range_options, range_args = matrix.ranges(is_by_rows, sizes.queries, sizes.keys)
    functions, measure_args, results = parts_of(measures)
    args = (
        matrix.query, matrix.key, lse, results, *sizes_of(matrix), matrix.query.stride()[:3], matrix.key.stride()[:3],
        matrix.log_scale, matrix.selection, range_args, matrix.mask.args, matrix.score.args, measure_args,
    )  # fmt: skip
    return args, matrix.options() | range_options | {"MEASURES": functions} | sizes.options()


def sizes_of(matrix: PackedMatrix) -> tuple[int, int, int, int]:
    """Queries, keys, heads, and heads that share a key."""
    _, heads, queries, keys = matrix.request.shape
    return queries, keys, heads, heads // matrix.key.shape[1]


def parts_of(measures: Sequence[PackedMeasure]) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
    """Functions, arguments and results of measures."""
    parts = tuple(zip(*measures, strict=True))
    return parts if parts else ((), (), ())  # pyright: ignore[reportReturnType]
