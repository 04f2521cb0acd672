"""Which gradients a backward pass has, and what measures send to each weight."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from regard.ops.kernels.base import KernelInputs
from regard.ops.kernels.step_gradients import first_rule, steps_with_gradients, with_leaves
from regard.ops.kernels.triton.launch import Function
from regard.ops.kernels.triton.pack import RELATIVE_KINDS, PackedMatrix, strided, with_dense_features
from regard.ops.kernels.triton.pack_measures import row_args
from regard.ops.kernels.triton.pooling import groups_of
from regard.ops.steps import Step
from regard.ops.tree import tensors_in

COLUMN_GRADIENTS = frozenset({"received", "block_mean", "group_pool"})
ROW_GRADIENTS = frozenset(
    {"entropy", "lse", "max", "mean_distance", "mass", "diagonal", "select", "histogram", "topk", "divergence"}
)


def has_gradients(inputs: KernelInputs, needed: Sequence[bool]) -> bool:
    """Whether a backward pass can compute the gradients that are needed."""
    request, num_caps = inputs.request, 0
    for step in inputs.steps.score or ():
        num_caps += step.kind == "soft_cap"
    kinds = {step.kind for steps in inputs.steps.measures for step in steps or ()}
    if num_caps > 1 or not kinds <= ROW_GRADIENTS | COLUMN_GRADIENTS:
        return False
    if not any(needed[first_rule(inputs) :]):
        return True
    if request.full_shape is not None:
        return False
    inputs = with_leaves(inputs, needed)
    with torch.enable_grad():
        return all(_has_gradient(step) for _, step in steps_with_gradients(inputs))


def _has_gradient(step: Step) -> bool:
    if step.kind in ("add_bias", "add_distances", *RELATIVE_KINDS, "received"):
        return True
    if step.other is not None and any(tensor.requires_grad for tensor in tensors_in(step.other)):
        return False
    return not any(tensor is not None and tensor.requires_grad for tensor in step.tensors())


def incoming_gradients(
    inputs: KernelInputs, gradients: Sequence[Tensor | None]
) -> tuple[Tensor | None, list[tuple[Step, list[Tensor]]]]:
    """The gradients of the output, and of each measure that has some."""
    rest, d_output = iter(gradients), None
    if inputs.value is not None:
        d_output = next(rest)
        if d_output is not None:
            d_output = with_dense_features(d_output.to(inputs.value.dtype))
    measures: list[tuple[Step, list[Tensor]]] = []
    like = inputs.request.query
    for measure, steps in zip(inputs.measures.values(), inputs.steps.measures, strict=True):
        specs = measure.result_specs(inputs.request.shape, torch.float32)
        own = [*islice(rest, len(specs))]
        if all(gradient is None for gradient in own):
            continue
        filled = [
            like.new_zeros(shape, dtype=torch.float32) if gradient is None else gradient.float().contiguous()
            for gradient, (shape, _) in zip(own, specs, strict=True)
        ]
        measures += [(step, filled) for step in steps or ()]
    return d_output, measures


def measure_gradient(step: Step, gradient: Tensor, matrix: PackedMatrix) -> tuple[Function, tuple[Any, ...]]:
    """What a measure sends to each weight, as functions of a pass, and their arguments."""
    kind = step.kind
    if kind == "received":
        (weights,) = step.tensors()
        name, of_keys = "received" if weights is None else "weighted", strided(gradient[:, :, None])
        args = (of_keys,) if weights is None else (of_keys, strided(weights.detach()))
        return Function("columns.GRADIENTS", name, ((),)), args
    if kind in ("block_mean", "group_pool"):
        rows, columns = groups_of(step, matrix, gradient)
        gradient = gradient * rows.shares()[:, None, :, None]
        if kind == "block_mean":
            gradient = gradient * columns.shares()[:, None, None]
        args = strided(gradient), strided(rows.group[:, None, :, None]), strided(columns.group[:, None, None])
        return Function("columns.GRADIENTS", "pooled", ((),)), args
    table = "rows.GRADIENTS"
    if kind in ("select", "histogram"):
        constants, (_, *args) = row_args(step, matrix.request, gradient)
        return Function(table, kind, (constants,)), (strided(gradient), *args)
    constants, args = row_args(step, matrix.request, gradient)
    args = (args,) if kind in ("mass", "divergence") else args
    return Function(table, kind, (constants,)), (strided(gradient[..., None]), *args)
