"""The launches of a backward pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.ops.kernels.base import KernelInputs, RunOptions
from regard.ops.kernels.step_gradients import first_rule, with_leaves
from regard.ops.kernels.triton.calls import dropout_args, sizes_of, sweep_rows
from regard.ops.kernels.triton.configurations import Tiles
from regard.ops.kernels.triton.gradients import incoming_gradients, measure_gradient
from regard.ops.kernels.triton.launch import Function, Launcher
from regard.ops.kernels.triton.pack import (
    LN2,
    RELATIVE_KINDS,
    PackedMatrix,
    clamped_offset,
    padded,
    strided,
    with_dense_features,
)
from regard.ops.kernels.triton.pack_measures import PackedMeasure, row_args
from regard.ops.steps import Step
from regard.ops.tree import tensors_in

CONSTANTS = {"entropy": 1, "divergence": -1}
"""Measures that send to all weights of a row the same, which `measure_gradient` leaves out, times their gradients."""


class Backward:
    """A backward pass: `run` fills the gradients, `results` returns those that are needed.

    Args:
        inputs: As in the forward pass.
        options: As in the forward pass.
        needed: For each tensor of `tensors_in(inputs)`, whether it needs a gradient.
        gradients: For the output, if there is a value, and each tensor of the results; None for zero.
        saved: The output, or anything without a value, and the log-sum-exp of each row, in units of log 2.
        launch: Launches kernels.
    """

    def __init__(
        self,
        inputs: KernelInputs,
        options: RunOptions,
        needed: Sequence[bool],
        gradients: Sequence[Tensor | None],
        saved: Sequence[Tensor],
        launch: Launcher,
    ) -> None:
        first = first_rule(inputs)
        *self._needs_value, self._needs_query, self._needs_key = needed[:first]
        has_relative = any(step.kind in RELATIVE_KINDS for step in inputs.steps.score or ())
        self._is_tracked = any(needed[first:]) or has_relative
        if self._is_tracked:
            inputs = with_leaves(inputs, needed)
        self._inputs, self._launch = inputs, launch
        self._leaves = [tensor for tensor, need in zip(tensors_in(inputs), needed, strict=True) if need]
        self._output, lse = saved
        self._lse = lse.contiguous()  # a transform or a compiled program may change strides
        self._sums: list[tuple[Tensor, Tensor]] = []
        """Tensors of rules, and their gradients before those are summed over axes that are broadcast."""
        with torch.set_grad_enabled(self._is_tracked):
            self._matrix = PackedMatrix(inputs)
            self._d_output, self._measures = incoming_gradients(inputs, gradients)
        self._dropout = dropout_args(inputs, options.seed, self._lse)

    def run(self) -> list[Tensor]:
        """The gradients of the tensors that need one, in the order of `tensors_in`."""
        term = self._terms()
        d_query = self._by_queries(term)
        d_key, d_value = self._by_keys(term)
        self._of_biases(term)
        own = [d_query, d_key] if self._inputs.value is None else [d_value, d_query, d_key]
        flags = [*self._needs_value, self._needs_query, self._needs_key]
        direct = [gradient for gradient, need in zip(own, flags, strict=True) if need and gradient is not None]
        if not self._is_tracked:
            return direct
        tensors = [tensor for tensor, _ in self._sums if tensor.requires_grad]
        totals = [
            sums.sum_to_size(tensor.shape).to(tensor.dtype) for tensor, sums in self._sums if tensor.requires_grad
        ]
        if not tensors:
            others = [torch.zeros_like(leaf) for leaf in self._leaves]
        else:
            others = torch.autograd.grad(tensors, self._leaves, totals, allow_unused=True, materialize_grads=True)
        sums = [gradient + other for gradient, other in zip(direct, others, strict=False)]
        return [*sums, *others[len(direct) :]]

    def _terms(self) -> Tensor:
        """What is the same for all keys of a row: Σⱼ Pᵢⱼ Aᵢⱼ, and what lse and entropy send to all scores."""
        from regard.ops.kernels.triton.jit import backward as jit

        request, lse = self._inputs.request, self._lse
        batch, heads, queries, _ = request.shape
        term = lse.new_zeros(lse.shape)
        self._functions, self._args, self._direct = list[Any](), list[Any](), ()
        products: list[PackedMeasure] = []
        for step, own in self._measures:
            if step.kind == "lse":
                term -= own[0]
                continue
            if step.kind in CONSTANTS and self._matrix.sinks is not None:
                term += CONSTANTS[step.kind] * own[0] * self._sink_weights()
            if step.kind in ("max", "topk"):
                function, args = self._to_strongest(step, own)
            else:
                function, args = measure_gradient(step, own[0], self._matrix)
            self._functions.append(function)
            self._args.append(args)
            if step.kind == "received":
                (weights,) = step.tensors()
                if weights is not None and weights.requires_grad:
                    sums = lse.new_empty(*lse.shape, 1)
                    products.append(PackedMeasure(Function("rows.SWEPT", "products", ((),)), args[:1], (sums,)))
                    self._sums.append((weights, sums))
        if self._functions:
            sums = lse.new_empty(lse.shape)
            constants = tuple(self._functions)
            products.append(PackedMeasure(Function("rows.SWEPT", "terms", (constants,)), tuple(self._args), (sums,)))
            sweep_rows(self._matrix, lse, products, self._launch)
            term += sums
        if self._d_output is not None:
            output, width = with_dense_features(self._output), self._d_output.shape[3]
            args = output, self._d_output, term, queries, heads, output.stride()[:3], self._d_output.stride()[:3]
            options = {"V": width, "V_PAD": padded(width), "QUERIES": 64, "num_warps": 4}
            self._launch(jit.row_terms, -(-queries // 64) * batch * heads, args, options)
        sinks = request.score.sinks
        if sinks is not None and sinks.requires_grad:
            constants = [CONSTANTS[step.kind] * own[0] for step, own in self._measures if step.kind in CONSTANTS]
            self._sums.append((sinks, -(self._sink_weights() * (term - sum(constants))).sum((0, 2))))
        return term

    def _sink_weights(self) -> Tensor:
        sinks = self._matrix.sinks
        assert sinks is not None
        if self._inputs.request.heads is not None:
            sinks = sinks[self._inputs.request.heads]
        return torch.exp2(sinks.detach()[:, None] / LN2 - self._lse)

    def _to_strongest(self, step: Step, own: list[Tensor]) -> tuple[Function, tuple[Any, ...]]:
        """What the largest weights send to the keys that have them, which are found again."""
        count = 1 if step.kind == "max" else step.numbers[0]
        values = self._lse.new_empty(*self._lse.shape, count)
        indices = values.new_empty(values.shape, dtype=torch.int64)
        constants, args = row_args(Step("topk", (count,)), self._inputs.request, values)
        packed = PackedMeasure(Function("rows.SWEPT", "topk", (constants,)), args, (values, indices))
        sweep_rows(self._matrix, self._lse, [packed], self._launch, "topk")
        if step.kind == "max":
            self._direct = strided(indices), strided(own[1][..., None])
        args = strided(own[0].view(values.shape)), strided(indices)
        return Function("rows.GRADIENTS", step.kind, ((count,),)), args

    def _tensors(self, term: Tensor) -> tuple[Any, ...]:
        """The tensors that all passes start with."""
        value = None if self._d_output is None else self._value
        return self._matrix.query, self._matrix.key, value, self._d_output, self._lse, term

    @property
    def _value(self) -> Tensor:
        assert self._inputs.value is not None
        return with_dense_features(self._inputs.value)

    def _tiles(self, name: str, num_sums: int) -> Tiles:
        width = 0 if self._d_output is None else self._d_output.shape[3]
        others = num_sums + bool(self._direct) + (self._inputs.dropout > 0)
        return self._matrix.tiles(name, self._functions, width, others)

    def _strides(self) -> tuple[Any, ...]:
        none = (0, 0, 0)
        value, d_output = none, none
        if self._d_output is not None:
            value, d_output = self._value.stride()[:3], self._d_output.stride()[:3]
        return self._matrix.query.stride()[:3], self._matrix.key.stride()[:3], value, d_output

    def _sizes(self) -> tuple[int, ...]:
        heads = self._inputs.request.shape[1]
        return *sizes_of(self._matrix), 1 if self._d_output is None else heads // self._value.shape[1]

    def _rules(self) -> tuple[Any, ...]:
        return self._matrix.mask.args, self._matrix.score.args, tuple(self._args), self._direct, self._dropout

    def _constants(self) -> dict[str, Any]:
        width = 0 if self._d_output is None else self._d_output.shape[3]
        constants = {"MEASURES": tuple(self._functions), "DIRECT": bool(self._direct), "V": width}
        constants |= {"DROPOUT": self._inputs.dropout > 0, "V_PAD": padded(width)}
        return self._matrix.options() | constants

    def _tracked_values(self) -> Iterator[tuple[Step, Tensor, bool]]:
        """The steps of the score with tensors that need gradients, these, and whether a soft-cap comes after."""
        steps = (self._inputs.steps.score or [])[1:]
        caps = [number for number, step in enumerate(steps) if step.kind == "soft_cap"]
        for number, (step, values) in enumerate(zip(steps, self._matrix.values, strict=True)):
            if values is not None and values.requires_grad:
                yield step, values, bool(caps) and number < caps[0]

    def _by_queries(self, term: Tensor) -> Tensor | None:
        from regard.ops.kernels.triton.jit import backward as jit

        request, lse = self._inputs.request, self._lse
        sums: list[tuple[Function, tuple[Any, ...], tuple[Tensor, ...]]] = []
        for step, values, is_capped in self._tracked_values():
            if step.kind == "add_bias" and values.shape[3] == 1:
                result = lse.new_empty(*lse.shape, 1)
                name, constants, args = "total", (), ()
            elif step.kind == "add_relative_key":
                (reach,) = step.numbers
                result = lse.new_zeros(*lse.shape, 2 * reach + 1)
                name, constants = "histogram", ()
                args = strided(result), clamped_offset(request, reach), reach
            else:
                continue
            sums.append((Function("rows.SWEPT", name, (constants, is_capped)), args, (result,)))
            self._sums.append((values, result))
        if not (sums or self._needs_query):
            return None
        d_query = self._matrix.query.new_empty(self._matrix.query.shape)
        sizes = self._tiles("backward queries", len(sums))
        blocks = -(-request.shape[2] // sizes.queries)
        self._pass(jit.backward_queries, term, (d_query,), sums, True, sizes, blocks)
        return d_query

    def _by_keys(self, term: Tensor) -> tuple[Tensor | None, Tensor | None]:
        from regard.ops.kernels.triton.jit import backward as jit

        matrix, lse = self._matrix, self._lse
        batch, heads, _, keys = self._inputs.request.shape
        sums: list[tuple[Function, tuple[Any, ...], tuple[Tensor, ...]]] = []
        for step, values, is_capped in self._tracked_values():
            if step.kind == "add_bias" and values.shape[2] == 1 and values.shape[3] > 1:
                result = lse.new_empty(batch, heads, 1, keys)
                sums.append((Function("columns.KINDS", "received", ((), is_capped)), (), (result,)))
                self._sums.append((values, result))
            elif step.kind == "add_relative_query":
                (reach,) = step.numbers
                result = lse.new_zeros(batch, heads, keys, 2 * reach + 1)
                args = strided(result), clamped_offset(self._inputs.request, reach), reach
                sums.append((Function("columns.KINDS", "histogram", ((), is_capped)), args, (result,)))
                self._sums.append((values, result))
        if not (sums or self._needs_key or any(self._needs_value)):
            return None, None
        d_key = _by_head(matrix.key, heads)
        d_value = None if self._d_output is None else _by_head(self._value, heads)
        sizes = self._tiles("backward keys", len(sums))
        self._pass(jit.backward_keys, term, (d_key, d_value), sums, False, sizes, -(-keys // sizes.keys))
        d_key = _of_group(d_key, matrix.key)
        if d_value is not None:
            return d_key, _of_group(d_value, self._value)
        return d_key, None if self._inputs.value is None else torch.zeros_like(self._inputs.value)

    def _pass(
        self,
        kernel: Any,
        term: Tensor,
        filled: tuple[Any, ...],
        sums: list[Any],
        is_by_rows: bool,
        sizes: Any,
        blocks: int,
    ) -> None:
        range_options, range_args = self._matrix.ranges(is_by_rows, sizes.queries, sizes.keys)
        functions, sum_args, results = tuple(zip(*sums, strict=True)) if sums else ((), (), ())
        batch, heads, _, _ = self._inputs.request.shape
        matrix = self._matrix
        args = (
            *self._tensors(term), *filled, results, *self._sizes(), *self._strides(), matrix.log_scale,
            float(self._inputs.request.scale), matrix.selection, range_args, *self._rules(), sum_args,
        )  # fmt: skip
        constants = self._constants() | range_options | {"SUMS": functions} | sizes.options()
        self._launch(kernel, blocks * batch * heads, args, constants)

    def _of_biases(self, term: Tensor) -> None:
        """Fill the gradients of biases that differ by query and key, or by distance."""
        from regard.ops.kernels.triton.jit import biases as jit

        batch, heads, queries, keys = self._inputs.request.shape
        common = *self._sizes(), *self._strides(), self._matrix.log_scale, *self._rules()
        sizes = self._tiles("biases", 0)
        constants = self._constants() | sizes.options()
        del constants["SELECTED"]
        for step, values, is_capped in self._tracked_values():
            constants["CAPPED"] = is_capped
            if step.kind == "add_bias" and values.shape[2] > 1 and values.shape[3] > 1:
                result = self._lse.new_empty(*values.shape[:2], queries, keys)
                blocks = -(-queries // sizes.queries) * -(-keys // sizes.keys)
                args = *self._tensors(term), result, batch, *values.shape[:2], *common
                self._launch(jit.backward_bias, blocks * values.shape[:2].numel(), args, constants)
            elif step.kind == "add_distances":
                result = self._lse.new_empty(batch, heads, 1, queries + keys - 1)
                own = {name: each for name, each in constants.items() if name != "KEYS"}
                blocks = -(-(queries + keys - 1) // sizes.queries)
                self._launch(
                    jit.backward_distances, blocks * batch * heads, (*self._tensors(term), result, *common), own
                )
            else:
                continue
            self._sums.append((values, result))


def _by_head(tensor: Tensor, heads: int) -> Tensor:
    """Memory for the gradient of keys or values for each head of queries; in float32 where several are added up."""
    batch, own, length, width = tensor.shape
    dtype = tensor.dtype if own == heads else torch.float32
    return tensor.new_empty(batch, heads, length, width, dtype=dtype)


def _of_group(gradient: Tensor, tensor: Tensor) -> Tensor:
    """The sum over heads of queries that share a head of keys or values."""
    if gradient.shape[1] == tensor.shape[1]:
        return gradient
    return gradient.unflatten(1, (tensor.shape[1], -1)).sum(2)
