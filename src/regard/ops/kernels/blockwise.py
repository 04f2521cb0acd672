"""Row blocks: whole rows of a few queries at a time, so that softmax, output and any measure come from one pass.

Memory is linear in the keys, forward and backward: the backward pass computes each block again with gradients on. So
any score and any measure is differentiable without a derivative of its own; only the product with the value has its
gradient written here, so that the output of a block is not computed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.checks import Checks
from regard.errors import InvalidArgument, short_repr
from regard.ops.autograd import AutogradFunction
from regard.ops.dropout import dropped_weights
from regard.ops.grouped_query import grouped_matmul, grouped_matmul_grad
from regard.ops.kernels.base import KernelInputs, RunOptions, untracked_tensor_error
from regard.ops.kernels.blocks import BlockLocation, BlockSizes, partition, sizes_on
from regard.ops.kernels.derivatives import Derivative
from regard.ops.kernels.differentiable import DifferentiableKernel, ForwardResult
from regard.ops.kernels.results import MeasureResults, as_tensors
from regard.ops.kernels.threads import run_parallel
from regard.ops.measures.base import Block, BlockIndex, Measure, apply_sinks, lowest
from regard.ops.tile import Index
from regard.ops.tree import map_tensors, tensors_in

MAX_THREADS = 8
"""More threads would wait for Python's lock, which each holds for a twentieth of its time."""


@dataclass(frozen=True)
class Blockwise(DifferentiableKernel):
    """Any device, mask, score and measure in O(queries + keys) memory.

    Args:
        sizes: Sizes of the blocks. Default: those that suit the device.
        min_multiply_adds: A call on a CPU runs on several threads if query · key has so many multiply-adds. For fewer,
            OpenMP's threads, which spin for a few milliseconds after each operation, would compete with ours.
    """

    name = "blockwise"
    description = "row blocks: any mask, score and measure, O(queries + keys) memory, exact gradients"

    sizes: BlockSizes | None = None
    min_multiply_adds: int = 2**32

    def __post_init__(self) -> None:
        with Checks() as checks:
            if self.sizes is not None and not isinstance(self.sizes, BlockSizes):  # pyright: ignore[reportUnnecessaryIsInstance]
                checks.fail_type(f"sizes: expected BlockSizes or None, got {short_repr(self.sizes)}")
            checks.integer("min_multiply_adds", self.min_multiply_adds, low=0)

    def sizes_on(self, device: torch.device) -> BlockSizes:
        """The sizes of the blocks on a device."""
        return sizes_on(device) if self.sizes is None else self.sizes

    def streams(self, inputs: KernelInputs) -> tuple[list[Iterator[BlockLocation]], int]:
        """The blocks of a call, and the number of threads, several on a CPU where the call is large enough.

        Blocks of different streams share no query, key or entry of a result.
        """
        request, threads = inputs.request, 1
        device = request.query.device
        if device.type == "cpu" and request.query.numel() * request.shape[3] >= self.min_multiply_adds:
            threads = min(MAX_THREADS, torch.get_num_threads())
        value_heads = [] if inputs.value is None else [inputs.value.shape[1]]
        return partition(request, self.sizes_on(device), threads, request.key.shape[1], *value_heads), threads

    def forward(self, inputs: KernelInputs, options: RunOptions) -> ForwardResult:
        request, value, results = inputs.request, inputs.value, MeasureResults(inputs)
        output = None if value is None else inputs.new_output()

        def work(locations: Iterable[BlockLocation]) -> None:
            previous, key, values = None, request.key, value
            for location in locations:
                if previous is None or not location.shares_keys_with(previous):
                    previous, key = location, location.slice_keys(request.key)
                    values = None if value is None else location.slice_keys(value)
                query = location.slice_queries(request.query).to(request.dtype)
                block = compute_block(location, query, key)
                if options.checks_untracked_tensors and block.weights.requires_grad:
                    raise untracked_tensor_error("score", request.score)
                if output is not None and values is not None:
                    weights, scale = block.weights, 1.0
                    if options.seed is not None:
                        dropped, scale = _dropped(location, inputs.dropout, options.seed)
                        weights = weights.masked_fill(dropped, 0.0)
                    product = grouped_matmul(weights, values)
                    if scale != 1.0:
                        product.mul_(scale)
                    output[location.batch, location.heads, location.rows] = product.to(output.dtype)
                for name, measure in inputs.measures.items():
                    result, index = _compute(measure, block)
                    if options.checks_untracked_tensors and _requires_grad(result):
                        raise untracked_tensor_error("measure", measure)
                    results.add(name, result, index)
                del block  # so that the next one takes over its memory, which is in the cache

        def guarded(locations: Iterable[BlockLocation]) -> None:
            with torch.enable_grad() if options.checks_untracked_tensors else nullcontext():
                work(locations)

        run_parallel(guarded, *self.streams(inputs))
        return ForwardResult(output, results)

    def backward(
        self,
        inputs: KernelInputs,
        options: RunOptions,
        needed: Sequence[bool],
        gradients: Sequence[Tensor | None],
        saved: Sequence[Tensor],
    ) -> list[Tensor]:
        tensors = tensors_in(inputs)
        dtype = inputs.request.dtype
        sums: list[Any] = [
            tensor.new_zeros(tensor.shape, dtype=torch.promote_types(tensor.dtype, dtype)) if need else None
            for tensor, need in zip(tensors, needed, strict=True)
        ]
        # Value, if there is one, query and key come first; then the tensors of mask, score and measures.
        value_index = None if inputs.value is None else 0
        query_index = 0 if value_index is None else 1
        key_index, first_rule = query_index + 1, query_index + 2
        output_gradient, result_gradients = (None, gradients) if value_index is None else (gradients[0], gradients[1:])
        rules = [i for i in range(first_rule, len(tensors)) if tensors[i].is_floating_point()]
        leaves = [_leaf(tensor, needed[i]) if i in rules else tensor for i, tensor in enumerate(tensors)]
        rest = iter(leaves)
        inputs = map_tensors(inputs, lambda _: next(rest))
        request, value = inputs.request, inputs.value
        rule_gradients = {id(leaves[i]): sums[i] for i in rules if sums[i] is not None}
        protect_masked = not all(measure.builtin for measure in inputs.measures.values())

        def work(locations: Iterable[BlockLocation]) -> None:
            for location in locations:
                step(location)

        def step(location: BlockLocation) -> None:
            if rule_gradients:
                location = replace(location, tile=replace(location.tile, gradients=rule_gradients))
            query = _leaf(location.slice_queries(request.query).to(dtype), needed[query_index])
            key = _leaf(location.slice_keys(request.key), needed[key_index])
            pairs: list[tuple[Tensor, Tensor]] = []
            with torch.enable_grad():
                block = compute_block(location, query, key, differentiate=True, protect_masked=protect_masked)
                incoming = iter(result_gradients)
                for name, measure in inputs.measures.items():
                    result, index = _compute(measure, block)
                    at = measure.result_index(index, request.shape)
                    for part in as_tensors(name, measure, result, at):
                        gradient = next(incoming)
                        if gradient is None:
                            continue
                        if part.is_floating_point() and not part.requires_grad:
                            raise _constant_result_error(name)
                        pairs.append((part, gradient[at]))
            if output_gradient is not None and value is not None and value_index is not None:
                gradient, values = location.slice_queries(output_gradient).to(dtype), location.slice_keys(value)
                weights, dropped = block.weights.detach(), None
                if options.seed is not None:
                    dropped, scale = _dropped(location, inputs.dropout, options.seed)
                    weights, gradient = weights.masked_fill(dropped, 0.0), gradient * scale
                grad_weights = grouped_matmul(gradient, values.mT)
                pairs.append(
                    (block.weights, grad_weights if dropped is None else grad_weights.masked_fill_(dropped, 0.0))
                )
                if needed[value_index]:
                    part = grouped_matmul_grad(weights, gradient, values)
                    location.accumulate_keys(sums[value_index], part)
            parts = _gradients(pairs, [query, key, *(leaves[i] for i in rules)])
            add = location.accumulate_queries, location.accumulate_keys, *(Tensor.add_ for _ in rules)
            for accumulate, i, gradient in zip(add, (query_index, key_index, *rules), parts, strict=True):
                if gradient is not None:
                    accumulate(sums[i], gradient)

        # All blocks share the sums of a rule's tensor.
        streams, threads = self.streams(inputs)
        run_parallel(work, streams, 1 if rule_gradients else threads)
        return [total for total in sums if total is not None]

    def derivative(
        self, inputs: KernelInputs, options: RunOptions, which: Derivative, tensors: Sequence[Tensor]
    ) -> list[Tensor]:
        inputs = inputs.with_wide_rules()
        own, dtype = tensors_in(inputs), inputs.request.dtype
        count, first_rule = len(own), 2 if inputs.value is None else 3
        originals, active = which.originals(count), which.active
        wholes = [*own, *tensors]
        for i, original in enumerate(originals):
            if first_rule <= original < count and wholes[i].is_floating_point():  # whole, and the same for all blocks
                wholes[i] = _leaf(wholes[i].to(own[original].dtype), i in active)
        rest = iter(wholes)
        inputs = map_tensors(inputs, lambda _: next(rest))
        sums = [
            wholes[i].new_zeros(wholes[i].shape, dtype=torch.promote_types(wholes[i].dtype, dtype))
            for i in which.results
        ]

        def step(location: BlockLocation) -> None:
            def read(i: int) -> Tensor:
                original = originals[i]
                if first_rule <= original < count:
                    return wholes[i]
                return _leaf(places[original].read(wholes[i]).to(dtype), i in active)

            of_keys = _Place(location.slice_keys, location.accumulate_keys)
            of_queries = _Place(location.slice_queries, location.accumulate_queries)
            places = [of_keys, of_queries, of_keys][3 - first_rule :] + [_WHOLE] * (count - first_rule)
            parts = [read(i) for i in range(count)]
            results = _results(location, inputs, options, parts)
            places += [results[output][1] for output in which.outputs]
            parts += [read(i) for i in range(count, len(wholes))]
            total = _inner_product([results[output][0] for output in which.outputs], parts[count:])
            first = count + len(which.outputs)
            for direction in which.directions:
                gradients = _gradients_of(total, [parts[i] for i in direction], create_graph=True)
                total = _inner_product(gradients, parts[first:])
                first += len(direction)
            gradients = _gradients_of(total, [parts[i] for i in which.results])
            for whole, i, gradient in zip(sums, which.results, gradients, strict=True):
                if gradient is not None:
                    places[originals[i]].add(whole, gradient)

        def work(locations: Iterable[BlockLocation]) -> None:
            with torch.enable_grad():
                for location in locations:
                    step(location)

        streams, threads = self.streams(inputs)
        has_rules = any(first_rule <= originals[i] < count for i in which.results)
        run_parallel(work, streams, 1 if has_rules else threads)
        return sums


class _Place(NamedTuple):
    """How a block's part of a whole tensor is read, and how one is added to it."""

    read: Callable[[Tensor], Tensor]
    add: Callable[[Tensor, Tensor], Any]


_WHOLE = _Place(Tensor.detach, Tensor.add_)


def _results(
    location: BlockLocation, inputs: KernelInputs, options: RunOptions, parts: list[Tensor]
) -> list[tuple[Tensor, _Place]]:
    """The output, if there is a value, and each tensor of the results of a block, differentiable, with its place."""
    values, query, key = parts[:3] if inputs.value is not None else (None, *parts[:2])
    block = compute_block(location, query, key, differentiate=True, protect_masked=True)
    results: list[tuple[Tensor, _Place]] = []
    if values is not None:
        weights, scale = block.weights, 1.0
        if options.seed is not None:
            dropped, scale = _dropped(location, inputs.dropout, options.seed)
            weights = weights.masked_fill(dropped, 0.0)
        output = grouped_matmul(weights, values) * scale
        results.append((output, _Place(location.slice_queries, location.accumulate_queries)))
    for name, measure in inputs.measures.items():
        result, index = _compute(measure, block)
        at = measure.result_index(index, inputs.request.shape)
        for part in as_tensors(name, measure, result, at):
            if part.is_floating_point() and not part.requires_grad:
                raise _constant_result_error(name)
            results.append((part, _Place(partial(_read, at=at), partial(_add, at=at))))
    return results


def _read(whole: Tensor, at: tuple[Index, ...]) -> Tensor:
    return whole[at]


def _add(whole: Tensor, part: Tensor, at: tuple[Index, ...]) -> None:
    whole[at] += part


def _inner_product(left: Sequence[Tensor | None], right: Iterable[Tensor]) -> Tensor | None:
    """The sum of the products of tensors with others, of which there may be more; None if there is nothing to add."""
    products = [(a * b).sum() for a, b in zip(left, right, strict=False) if a is not None]
    return torch.stack(products).sum() if products else None


def _gradients_of(total: Tensor | None, tensors: list[Tensor], create_graph: bool = False) -> list[Tensor | None]:
    """The gradients of a sum; None where it does not depend on a tensor."""
    if total is None or not total.requires_grad or not tensors:
        return [None] * len(tensors)
    try:
        return [*torch.autograd.grad(total, tensors, create_graph=create_graph, allow_unused=True)]
    except RuntimeError as error:
        raise InvalidArgument(
            "second derivative: mask, score and measures must consist of operations that can be differentiated again; "
            f"one of them cannot: {error}"
        ) from error


def compute_block(
    location: BlockLocation, query: Tensor, key: Tensor, differentiate: bool = False, protect_masked: bool = False
) -> Block:
    """The rows of a block.

    Args:
        location: Where they are.
        query: Their queries.
        key: Their keys.
        differentiate: Whether weights and scores must be part of a graph, also where no score depends on a leaf.
        protect_masked: Whether the gradient of masked weights is dropped: a user's measure may give them an infinite
            one, as that of weight * score is, and 0 * ∞ is NaN.
    """
    request, tile = location.request, location.tile
    score, shape = request.score, (*query.shape[:3], tile.width)
    scores = request.scores(query, key, tile)
    full, masked = location.full_keys, location.masked_ranges()
    floor = lowest(scores.dtype)
    if not score.is_fresh_and_finite:  # it may contain −∞, and be a tensor of the rule or one that its gradient needs
        scores = scores.expand(shape).clamp(min=floor)
    elif scores.shape != shape:
        scores = scores.expand(shape).clone()
    if differentiate and not scores.requires_grad:
        scores = scores.detach().requires_grad_()
    for keys, forbidden in masked:  # without autograd: softmax passes no gradient to cells of weight 0
        scores.detach()[..., keys].masked_fill_(forbidden, floor)
    weights, lse = scores.softmax(-1), None
    if not score.is_fresh_and_finite or (masked and full.start == full.stop):  # rows without keys
        weights = weights.masked_fill(scores.detach().amax(-1, keepdim=True) <= floor, 0.0)
    if masked and scores.requires_grad:
        scores = _StopMaskedGradient.apply(scores, masked)
    if score.sinks is not None:
        weights, lse = apply_sinks(scores, weights, score.sinks[tile.heads])
    # Where a score is NaN or infinity, softmax makes masked weights NaN, too.
    if protect_masked or ((masked or not score.is_fresh_and_finite) and (location.waits or _is_nan(weights))):
        weights = weights.masked_fill(scores.detach() <= floor, 0.0)
    return Block(weights, scores, tile, location.index, request.shape, lse)


def _is_nan(weights: Tensor) -> bool:
    """Whether any row is NaN."""
    return bool(weights.detach()[..., 0].isnan().any())


def _compute(measure: Measure, block: Block) -> tuple[Any, BlockIndex]:
    """The result of a measure for a block, and the index of the cells that it has seen."""
    visible = block.with_all_keys() if measure.needs_all_keys else block
    return measure.compute(visible), visible.index


class _StopMaskedGradient(AutogradFunction):
    """Scores whose masked cells are constants: a measure's gradient for them is dropped."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, masked: list[tuple[slice, Tensor]]) -> Tensor:
        ctx.masked = masked
        return scores.view_as(scores)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.clone()
        for keys, forbidden in ctx.masked:
            gradient[..., keys].masked_fill_(forbidden, 0.0)
        return gradient, None


def _gradients(pairs: list[tuple[Tensor, Tensor]], leaves: list[Tensor]) -> list[Tensor | None]:
    """The gradients of leaves, from pairs of a result and its gradient."""
    pairs = [(part, gradient) for part, gradient in pairs if part.requires_grad]
    needed = [leaf for leaf in leaves if leaf.requires_grad]
    if not pairs or not needed:
        return [None] * len(leaves)
    parts, gradients = zip(*pairs, strict=True)
    results = iter(torch.autograd.grad(parts, needed, gradients, allow_unused=True))
    return [next(results) if leaf.requires_grad else None for leaf in leaves]


def _constant_result_error(name: str) -> InvalidArgument:
    return InvalidArgument(
        f"measure '{name}': its result does not follow from weights or scores by differentiable operations, so it has "
        "no gradient; detach it before using it in a loss"
    )


def _leaf(tensor: Tensor, needed: bool) -> Tensor:
    return tensor.detach().requires_grad_(needed)


def _dropped(location: BlockLocation, p: float, seed: Tensor) -> tuple[Tensor, float]:
    """The cells of a block that dropout sets to 0, and the factor of the others."""
    batch, heads, rows, _ = location.index
    return dropped_weights(p, seed, location.request.shape, batch, heads, rows, location.tile.kv_idx)


def _requires_grad(result: Any) -> bool:
    parts = result if isinstance(result, tuple) else (result,)
    return any(isinstance(part, Tensor) and part.requires_grad for part in parts)
