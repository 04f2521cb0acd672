"""Row blocks: the whole rows of a few queries at a time, so that softmax, output and any measure come from one pass.

Memory is linear in the keys, forward and backward: the backward pass runs each block again with gradients on. That
makes any score rule and any measure differentiable without a derivative of its own; only the product with value has its
gradient written here, so that the block's output need not be computed a second time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.errors import InvalidArgument
from regard.ops.dropout import keep_mask
from regard.ops.heads import heads_used, multiply, multiply_over_rows
from regard.ops.kernels.answers import Answers, entries, parts_of
from regard.ops.kernels.base import Job, Kernel, Measured
from regard.ops.kernels.blocks import Place, any_certain, masked_parts, places
from regard.ops.kernels.once import once_only
from regard.ops.measures import FORBIDDEN, Block
from regard.ops.request import AttentionRequest
from regard.ops.scores import ScaledDot
from regard.ops.tensors import Unchanged, replace_tensors, tensors_of


class Streamed(Kernel):
    """Any device, mask, score and measure in O(queries + keys) memory."""

    name = "streamed"
    about = "row blocks: any mask, score and measure, O(queries + keys) memory, exact gradients"

    def run(self, job: Job) -> tuple[Tensor | None, Measured]:
        seed = int(torch.randint(2**62, ())) if job.dropout else 0
        answers = Answers(job.measures, job.request.shape)
        found = _Streamed.apply(job, seed, answers, *tensors_of(job))
        assert isinstance(found, tuple)
        output, measured = (None, found) if job.value is None else (found[0], found[1:])
        return output, answers.named(measured)


# Lets the C library keep the memory of a block for the next one. Beyond twice the largest piece that was ever freed, up
# to pieces of 32 MiB, glibc gives freed memory back to the system (mallopt(3), M_TRIM_THRESHOLD), and blocks of 2 MiB
# would be mapped, and cleared, over and over. So one such piece, never touched, is freed once.
torch.empty(31 * 2**20, dtype=torch.uint8)


class _Streamed(torch.autograd.Function):
    """A job as one step of autograd: its tensors go in, the output and the answers come out."""

    @staticmethod
    def forward(ctx: Any, job: Job, seed: int, answers: Answers, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.job, ctx.seed = job, seed
        ctx.unchanged = Unchanged(job.request.mask.tensors if job.request.mask is not None else ())
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        with torch.autocast(tensors[0].device.type, enabled=False):
            output = _forward(job, seed, answers)
        found = (*(() if output is None else (output,)), *answers.tensors())
        ctx.mark_non_differentiable(*(tensor for tensor in found if not tensor.is_floating_point()))
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        ctx.unchanged.check("the mask that the weights were computed with")
        with torch.no_grad(), torch.autocast(tensors[0].device.type, enabled=False):
            sums = _backward(ctx.job, ctx.seed, tensors, ctx.needs_input_grad[3:], gradients)
        return None, None, None, *once_only(sums, *tensors, *gradients)


def _forward(job: Job, seed: int, answers: Answers) -> Tensor | None:
    request, value = job.request, job.value
    output = None if value is None else value.new_empty(*request.shape[:3], value.shape[3])
    for place in _places(job):
        block = _block(request, place, _queries(request, place), _keys(request.key, request, place))
        if output is not None and value is not None:
            weights = _dropped(block.weights, job.dropout, seed, place)
            output[place.queries] = multiply(weights, _keys(value, request, place))
        for name, measure in job.measures.items():
            answers.add(name, measure.of(block), place)
    return output


def _backward(
    job: Job, seed: int, tensors: Sequence[Tensor], needed: Sequence[bool], gradients: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """The gradients of a job's tensors; each block runs again, from leaves of its own."""
    sums: list[Any] = [
        tensor.new_zeros(tensor.shape, dtype=job.request.dtype) if need else None
        for tensor, need in zip(tensors, needed, strict=True)
    ]
    # The order of the tensors is: query, key, those of the score; value; those of the measures.
    at_value = None if job.value is None else len(tensors_of(job.request))
    of_output, of_answers = (None, gradients) if job.value is None else (gradients[0], gradients[1:])
    rules = [number for number in range(2, len(tensors)) if number != at_value]
    given = [_leaf(t, need) if i in rules else t for i, (t, need) in enumerate(zip(tensors, needed, strict=True))]
    put = iter(given)
    job = replace_tensors(job, lambda _: next(put))
    request, value = job.request, job.value
    weights_matter = any(need for number, need in enumerate(needed) if number != at_value)
    for place in _places(job):
        query = _leaf(_queries(request, place), needed[0])
        key = _leaf(_keys(request.key, request, place), needed[1])
        with torch.enable_grad():
            block = _block(request, place, query, key)
            parts = [
                (name, measure, part)
                for name, measure in job.measures.items()
                for part in parts_of(name, measure, measure.of(block), place)
            ]
        pairs: list[tuple[Tensor, Tensor]] = []
        for (name, measure, part), gradient in zip(parts, of_answers, strict=True):
            if gradient is not None and weights_matter and not part.requires_grad:
                raise InvalidArgument(
                    f"measure '{name}': its answer does not follow from weights or scores by steps that can be "
                    "differentiated, so it has no gradient; detach it before it enters a loss"
                )
            pairs += [] if gradient is None else [(part, gradient[entries(measure, place)])]
        if of_output is not None and value is not None and at_value is not None:
            of_block, value_block = of_output[place.queries].to(request.dtype), _keys(value, request, place)
            pairs.append((block.weights, _dropped(multiply(of_block, value_block.mT), job.dropout, seed, place)))
            if needed[at_value]:
                weights = _dropped(block.weights.detach(), job.dropout, seed, place)
                _part_of_keys(sums[at_value], request, place).add_(multiply_over_rows(weights, of_block, value_block))
        wanted = [(query, sums[0] if sums[0] is None else sums[0][place.queries])]
        wanted += [(key, sums[1] if sums[1] is None else _part_of_keys(sums[1], request, place))]
        wanted += [(given[number], sums[number]) for number in rules]
        _add_gradients(pairs, wanted)
    return [None if total is None else total.to(t.dtype) for total, t in zip(sums, tensors, strict=True)]


def _add_gradients(pairs: list[tuple[Tensor, Tensor]], wanted: list[tuple[Tensor, Any]]) -> None:
    """Add the gradient of each leaf to its sum.

    Args:
        pairs: What was computed, with the gradient that comes in for it.
        wanted: Leaves, each with where its gradient goes.
    """
    pairs = [(part, gradient) for part, gradient in pairs if part.requires_grad]
    wanted = [(leaf, total) for leaf, total in wanted if leaf.requires_grad]
    if pairs and wanted:
        parts, gradients = zip(*pairs, strict=True)
        found = torch.autograd.grad(parts, [leaf for leaf, _ in wanted], gradients, allow_unused=True)
        for (_, total), gradient in zip(wanted, found, strict=True):
            if gradient is not None:
                total.add_(gradient)


def _block(request: AttentionRequest, place: Place, query: Tensor, key: Tensor) -> Block:
    """The rows of one place, from its queries and keys."""
    scores = request.score(query, key, request.scale, place.cells)
    masked = masked_parts(request.mask, place.cells)
    own_rule = type(request.score) is not ScaledDot
    if own_rule:  # it may forbid cells by −∞; and what it gives may be its own table, or what its gradient needs
        scores = scores.clamp(min=FORBIDDEN)
    elif not masked:
        return Block(scores.softmax(-1), scores, place.cells, place.index, request.shape)
    with torch.no_grad():
        # softmax hands nothing back to cells whose weight is 0, so they need not be masked for autograd
        for keys, forbidden in masked:
            scores[..., keys].masked_fill_(forbidden, FORBIDDEN)
    weights = scores.softmax(-1)
    if own_rule or not any_certain(request.mask, place.cells):
        weights = weights.masked_fill(scores.detach().amax(-1, keepdim=True) <= FORBIDDEN, 0.0)
    if masked and scores.requires_grad:
        scores = _Masked.apply(scores, masked)
    return Block(weights, scores, place.cells, place.index, request.shape)


class _Masked(torch.autograd.Function):
    """Scores whose masked cells are constants: what a measure hands back to them ends here."""

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


def _places(job: Job) -> Iterator[Place]:
    value_heads = [] if job.value is None else [job.value.shape[1]]
    return places(job.request, job.request.key.shape[1], *value_heads)


def _queries(request: AttentionRequest, place: Place) -> Tensor:
    return request.query[place.queries].to(request.dtype)


def _keys(tensor: Tensor, request: AttentionRequest, place: Place) -> Tensor:
    """The part of keys or values that a place needs, (batch, heads or 1, keys, dim), in the dtype of sums."""
    return _part_of_keys(tensor, request, place).to(request.dtype)


def _part_of_keys(tensor: Tensor, request: AttentionRequest, place: Place) -> Tensor:
    return tensor[place.batch, heads_used(place.heads, request.query.shape[1], tensor.shape[1]), place.keys]


def _leaf(tensor: Tensor, needed: bool) -> Tensor:
    return tensor.detach().requires_grad_(needed)


def _dropped(weights: Tensor, p: float, seed: int, place: Place) -> Tensor:
    """The weights after dropout, the same each time that this place is computed."""
    if p == 0.0:
        return weights
    of_place = hash((seed, place.batch.start, place.heads.start, place.rows.start)) % 2**62
    return weights * keep_mask(weights.shape, p, of_place, weights.device).to(weights.dtype)
