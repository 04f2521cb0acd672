"""Row blocks: the whole rows of a few queries at a time, so that softmax, output and any measure come from one pass.

Memory is linear in the keys, forward and backward: the backward pass runs each block again with gradients on. That
makes any score rule and any measure differentiable without a derivative of its own; only the product with value has its
gradient written here, so that the block's output need not be computed a second time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from regard.ops.dropout import keep_mask
from regard.ops.heads import heads_of, multiply, multiply_over_rows
from regard.ops.kernels.base import Job, Kernel, Measured
from regard.ops.kernels.blocks import Place, any_certain, masked_parts, places
from regard.ops.kernels.once import once_only
from regard.ops.measures import FORBIDDEN, Block, Measure
from regard.ops.request import AttentionRequest
from regard.ops.tensors import replace_tensors, tensors_of


class Streamed(Kernel):
    """Any device, mask, score and measure in O(queries + keys) memory."""

    name = "streamed"
    about = "row blocks: any mask, score and measure, O(queries + keys) memory, exact gradients"

    def run(self, job: Job) -> tuple[Tensor | None, Measured]:
        seed = int(torch.randint(2**62, ())) if job.dropout else 0
        kinds: dict[str, type] = {}
        answers = iter(_Streamed.apply(job, seed, kinds, *tensors_of(job)))  # pyright: ignore[reportArgumentType]
        output = None if job.value is None else next(answers)
        return output, {name: _as_given(kind, answers) for name, kind in kinds.items()}


class _Streamed(torch.autograd.Function):
    """A job as one step of autograd: its tensors go in, the output and the answers come out.

    `kinds` is filled with the type of each measure's answer: a tensor, or a named tuple of several.
    """

    @staticmethod
    def forward(ctx: Any, job: Job, seed: int, kinds: dict[str, type], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.job, ctx.seed = job, seed
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        with torch.autocast(tensors[0].device.type, enabled=False):
            answers = _forward(job, seed, kinds)
        ctx.mark_non_differentiable(*(answer for answer in answers if not answer.is_floating_point()))
        return answers

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        with torch.no_grad(), torch.autocast(tensors[0].device.type, enabled=False):
            sums = _backward(ctx.job, ctx.seed, tensors, ctx.needs_input_grad[3:], gradients)
        return None, None, None, *once_only(sums, *tensors, *gradients)


def _forward(job: Job, seed: int, kinds: dict[str, type]) -> tuple[Tensor, ...]:
    request, value = job.request, job.value
    output = None if value is None else value.new_empty(*request.shape[:3], value.shape[3])
    answers: dict[tuple[str, int], Tensor] = {}
    for place in _places(job):
        block = _block(
            request,
            place,
            _queries(request.query, place, request.dtype),
            _keys(request.key, request, place).to(request.dtype),
        )
        if output is not None and value is not None:
            weights = _dropped(block.weights, job.dropout, seed, place)
            output[place.queries] = multiply(weights, _keys(value, request, place).to(request.dtype))
        for name, measure in job.measures.items():
            answer = measure.of(block)
            kinds[name] = type(answer)
            for number, part in enumerate(_parts(answer)):
                if (name, number) not in answers:
                    answers[name, number] = _room(measure, part, request)
                whole, at = answers[name, number], _where(measure, place)
                whole[at] = part if measure.axis == "queries" else whole[at] + part
    return (*(() if output is None else (output,)), *answers.values())


def _backward(
    job: Job, seed: int, tensors: Sequence[Tensor], needed: Sequence[bool], gradients: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """The gradients of a job's tensors; each block runs again, from leaves of its own."""
    dtype = job.request.dtype
    sums: list[Any] = [
        tensor.new_zeros(tensor.shape, dtype=dtype) if need else None
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
    for place in _places(job):
        query = _leaf(_queries(request.query, place, request.dtype), needed[0])
        key = _leaf(_keys(request.key, request, place).to(request.dtype), needed[1])
        with torch.enable_grad():
            block = _block(request, place, query, key)
            parts = [(part, measure) for measure in job.measures.values() for part in _parts(measure.of(block))]
        pairs = [(part, g[_where(m, place)]) for (part, m), g in zip(parts, of_answers, strict=True) if g is not None]
        if of_output is not None and value is not None and at_value is not None:
            of_block, value_block = of_output[place.queries].to(dtype), _keys(value, request, place).to(request.dtype)
            pairs.append((block.weights, _dropped(multiply(of_block, value_block.mT), job.dropout, seed, place)))
            if needed[at_value]:
                weights = _dropped(block.weights.detach(), job.dropout, seed, place)
                of_value = multiply_over_rows(weights, of_block, value_block)
                _keys(sums[at_value], request, place).add_(of_value)
        wanted = [(query, sums[0]), (key, sums[1]), *((given[number], sums[number]) for number in rules)]
        for total, gradient in _gradients(pairs, wanted):
            at = (
                total[place.queries]
                if total is sums[0]
                else _keys(total, request, place)
                if total is sums[1]
                else total
            )
            at.add_(gradient)
    return [None if total is None else total.to(t.dtype) for total, t in zip(sums, tensors, strict=True)]


def _gradients(pairs: list[tuple[Tensor, Tensor]], wanted: list[tuple[Tensor, Any]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Each wanted leaf's sum, with what is to be added to it."""
    pairs = [(part, gradient) for part, gradient in pairs if part.requires_grad]
    wanted = [(leaf, total) for leaf, total in wanted if leaf.requires_grad]
    if pairs and wanted:
        parts, gradients = zip(*pairs, strict=True)
        found = torch.autograd.grad(parts, [leaf for leaf, _ in wanted], gradients, allow_unused=True)
        for (_, total), gradient in zip(wanted, found, strict=True):
            if gradient is not None:
                yield total, gradient


def _block(request: AttentionRequest, place: Place, query: Tensor, key: Tensor) -> Block:
    """The rows of one place, from its queries and keys."""
    scores = request.score(query, key, request.scale, place.cells)
    masked = masked_parts(request.mask, place.cells)
    with (
        torch.no_grad()
    ):  # softmax hands nothing back to cells whose weight is 0, so they need not be masked for autograd
        for keys, forbidden in masked:
            scores[..., keys].masked_fill_(forbidden, FORBIDDEN)
    weights = scores.softmax(-1)
    if masked:
        if not any_certain(request.mask, place.cells):
            weights = weights.masked_fill(scores.detach().amax(-1, keepdim=True) <= FORBIDDEN, 0.0)
        if scores.requires_grad:
            scores = _Masked.apply(scores, masked)
    index = (place.batch, place.heads, place.rows, place.keys)
    return Block(weights, scores, place.cells.positions, index, request.shape)  # pyright: ignore[reportArgumentType]


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


def _queries(query: Tensor, place: Place, dtype: torch.dtype) -> Tensor:
    return query[place.queries].to(dtype)


def _keys(tensor: Tensor, request: AttentionRequest, place: Place) -> Tensor:
    """The part of keys or values (or of their gradient) that a place needs, (batch, heads or 1, keys, dim)."""
    return heads_of(tensor[place.batch], place.heads, request.shape[1])[:, :, place.keys]


def _leaf(tensor: Tensor, needed: bool) -> Tensor:
    return tensor.detach().requires_grad_(needed)


def _dropped(weights: Tensor, p: float, seed: int, place: Place) -> Tensor:
    """The weights after dropout, the same each time that this place is computed."""
    if p == 0.0:
        return weights
    of_place = hash((seed, place.batch.start, place.heads.start, place.rows.start)) % 2**62
    return weights * keep_mask(weights.shape, p, of_place, weights.device).to(weights.dtype)


def _parts(answer: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (answer,) if isinstance(answer, Tensor) else answer


def _as_given(kind: type, answers: Iterator[Tensor]) -> Any:
    """The next answer, in the form in which its measure gave it."""
    return kind(*islice(answers, len(kind._fields))) if issubclass(kind, tuple) else next(answers)  # pyright: ignore[reportAttributeAccessIssue]


def _room(measure: Measure, part: Tensor, request: AttentionRequest) -> Tensor:
    """Where the answers of all blocks come together."""
    batch, heads, queries, keys = request.shape
    if measure.axis is None:
        return part.new_zeros(batch, heads, *part.shape[2:])
    return part.new_zeros(batch, heads, queries if measure.axis == "queries" else keys, *part.shape[3:])


def _where(measure: Measure, place: Place) -> tuple[slice, ...]:
    """Which entries of the whole answer a block's answer is, or is added to."""
    along = {"queries": (place.rows,), "keys": (place.keys,), None: ()}[measure.axis]
    return (place.batch, place.heads, *along)
