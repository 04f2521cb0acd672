"""Row blocks: the whole rows of a few queries at a time, so that softmax, output and any measure come from one pass.

Memory is linear in the keys, forward and backward: the backward pass runs each block again with gradients on. That
makes any score rule and any measure differentiable without a derivative of its own; only the product with value has its
gradient written here, so that the block's output need not be computed a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.errors import InvalidArgument
from regard.ops.autograd import ONCE, vmap_by_loop
from regard.ops.dropout import keep, keep_cells
from regard.ops.grouped_query import grouped_matmul, grouped_matmul_grad
from regard.ops.kernels.base import Kernel, KernelInputs, Measured
from regard.ops.kernels.blocks import Place, streams
from regard.ops.kernels.custom_op import Cutters, run_opaque
from regard.ops.kernels.results import Answers, parts_of
from regard.ops.kernels.spec import is_known
from regard.ops.kernels.threads import most_threads, run_all
from regard.ops.measures import FORBIDDEN, Block, sunk
from regard.ops.tree import TensorVersions, map_tensors, tensors_in


class Blockwise(Kernel):
    """Any device, mask, score and measure in O(queries + keys) memory."""

    name = "blockwise"
    about = "row blocks: any mask, score and measure, O(queries + keys) memory, exact gradients"

    def __init__(self) -> None:
        Cutters[self.name] = self.streams

    def run(self, job: KernelInputs) -> tuple[Tensor | None, Measured]:
        if not torch.compiler.is_compiling():
            return run_here(job, self.streams)
        if is_known(job):
            return run_opaque(self.name, job)
        from regard.ops.kernels.graph_break import run_uncompiled

        return run_uncompiled(job, self.streams)

    def streams(self, job: KernelInputs, parts: int) -> list[Iterator[Place]]:
        """The blocks that the job is cut into, in streams that share nothing, so many at least if it can be."""
        value_heads = [] if job.value is None else [job.value.shape[1]]
        return streams(job.request, parts, job.request.key.shape[1], *value_heads)


@dataclass(frozen=True)
class Cut:
    """How a job is cut into blocks, forward and backward alike.

    Args:
        streams: What cuts it.
        parts: On how many threads it is to run.
    """

    streams: Callable[[KernelInputs, int], list[Iterator[Place]]]
    parts: int

    def __call__(self, job: KernelInputs) -> list[Iterator[Place]]:
        return self.streams(job, self.parts)


def threads_for(job: KernelInputs) -> int:
    """On how many threads a job may run: several on a CPU, where it is worth it and no rule is a user's own."""
    query, keys = job.request.query, job.request.shape[3]
    return most_threads(query.numel() * keys) if query.device.type == "cpu" and is_known(job) else 1


def run_here(
    job: KernelInputs, cutter: Callable[[KernelInputs, int], list[Iterator[Place]]]
) -> tuple[Tensor | None, Measured]:
    """Run a job as one step of autograd."""
    cut = Cut(cutter, threads_for(job))
    seed = int(torch.randint(2**62, ())) if job.dropout else 0
    answers = Answers(job.measures, job.request.shape)
    found = _Streamed.apply(job, cut, seed, answers, *tensors_in(job))
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
    def forward(job: KernelInputs, cut: Cut, seed: int, answers: Answers, *tensors: Tensor) -> tuple[Tensor, ...]:
        put = iter(tensors)  # under torch.func they are others than the job's own
        job = map_tensors(job, lambda _: next(put))
        answers = Answers(job.measures, job.request.shape, answers.forms)  # of this call: vmap makes several
        with torch.no_grad(), torch.autocast(tensors[0].device.type, enabled=False):
            return forward(job, cut, seed, answers)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.job, ctx.cut, ctx.seed, _, *tensors = inputs
        ctx.unchanged = TensorVersions(ctx.job.request.mask)
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(tensor for tensor in output if not tensor.is_floating_point()))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.unchanged.check("the mask that the weights were computed with")
        tensors, needed = ctx.saved_tensors, ctx.needs_input_grad[4:]
        came = [gradient is not None for gradient in gradients]
        present = [gradient for gradient in gradients if gradient is not None]
        found = iter(_Backward.apply(ctx.job, ctx.cut, ctx.seed, needed, came, *tensors, *present))
        return None, None, None, None, *(next(found) if need else None for need in needed)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        return vmap_by_loop(_Streamed, info.batch_size, in_dims, inputs)


class _Backward(torch.autograd.Function):
    """The gradients that are needed; they refuse to be differentiated again, where they would else be constants."""

    @staticmethod
    def forward(
        job: KernelInputs, cut: Cut, seed: int, needed: Sequence[bool], came: Sequence[bool], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        count = len(needed)
        present = iter(tensors[count:])
        gradients = [next(present) if each else None for each in came]
        with torch.autocast(tensors[0].device.type, enabled=False):
            return tuple(backward(job, cut, seed, tensors[:count], needed, gradients))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        raise InvalidArgument(ONCE)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        return vmap_by_loop(_Backward, info.batch_size, in_dims, inputs)


def forward(job: KernelInputs, cut: Cut, seed: int, answers: Answers) -> tuple[Tensor, ...]:
    """The output, if there is a value, and the answers in a row."""
    request, value = job.request, job.value
    output = None if value is None else value.new_empty(*request.shape[:3], value.shape[3])

    def work(stream: int, places: Iterable[Place]) -> None:
        before, key, values = None, request.key, value
        for number, place in enumerate(places):
            if before is None or not place.has_keys_of(before):
                before, key, values = place, place.of_keys(request.key), None if value is None else place.of_keys(value)
            block = _block(place, place.of_queries(request.query).to(request.dtype), key)
            if output is not None and values is not None:
                weights, scale = block.weights, 1.0
                if job.dropout:
                    kept, scale = _kept(weights, job.dropout, seed, stream, number)
                    weights = keep(weights, kept)
                found = grouped_matmul(weights, values)
                if scale != 1.0:
                    found.mul_(scale)
                output[place.batch, place.heads, place.rows] = found.to(output.dtype)
            for name, measure in job.measures.items():
                answers.add(name, measure.of(block), place)
            del block  # so that the next one takes over its memory, and finds it in the cache

    run_all(work, cut(job), cut.parts)
    return *(() if output is None else (output,)), *answers.tensors()


def backward(
    job: KernelInputs,
    cut: Cut,
    seed: int,
    tensors: Sequence[Tensor],
    needed: Sequence[bool],
    gradients: Sequence[Tensor | None],
) -> list[Tensor]:
    """The gradients of those of a job's tensors that need one; each block runs again, from leaves of its own."""
    sums: list[Any] = [
        tensor.new_zeros(tensor.shape, dtype=job.request.dtype) if need else None
        for tensor, need in zip(tensors, needed, strict=True)
    ]
    # The order of the tensors is: query, key, those of the mask and the score; value; those of the measures.
    at_value = None if job.value is None else len(tensors_in(job.request))
    of_output, of_answers = (None, gradients) if job.value is None else (gradients[0], gradients[1:])
    rules = [number for number in range(2, len(tensors)) if number != at_value and tensors[number].is_floating_point()]
    given = [_leaf(t, need) if i in rules else t for i, (t, need) in enumerate(zip(tensors, needed, strict=True))]
    put = iter(given)
    job = map_tensors(job, lambda _: next(put))
    request, value = job.request, job.value
    of_rules = {id(given[number]): sums[number] for number in rules if sums[number] is not None}

    def work(stream: int, places: Iterable[Place]) -> None:
        for number, place in enumerate(places):
            step(place, stream, number)

    def step(plain: Place, stream: int, number: int) -> None:
        place = replace(plain, cells=replace(plain.cells, gradients=of_rules)) if of_rules else plain
        query = _leaf(place.of_queries(request.query).to(request.dtype), needed[0])
        key = _leaf(place.of_keys(request.key), needed[1])
        with torch.enable_grad():
            block = _block(place, query, key)
            parts = [
                (name, at, part)
                for name, measure in job.measures.items()
                for at in [measure.entries(place.index, request.shape)]
                for part in parts_of(name, measure, measure.of(block), at)
            ]
        pairs: list[tuple[Tensor, Tensor]] = []
        for (name, at, part), gradient in zip(parts, of_answers, strict=True):
            lost = block.weights.requires_grad and part.is_floating_point() and not part.requires_grad
            if gradient is not None and lost:
                raise InvalidArgument(
                    f"measure '{name}': its answer does not follow from weights or scores by steps that can be "
                    "differentiated, so it has no gradient; detach it before it enters a loss"
                )
            pairs += [] if gradient is None else [(part, gradient[at])]
        if of_output is not None and value is not None and at_value is not None:
            of_block, value_block = place.of_queries(of_output).to(request.dtype), place.of_keys(value)
            weights, kept = block.weights.detach(), None
            if job.dropout:
                kept, scale = _kept(weights, job.dropout, seed, stream, number)
                of_block = of_block * scale
            of_weights = grouped_matmul(of_block, value_block.mT, often=place.cells.whole)
            pairs.append((block.weights, of_weights if kept is None else keep(of_weights, kept)))
            if needed[at_value]:
                weights = weights if kept is None else keep(weights, kept)
                place.add_to_keys(
                    sums[at_value], grouped_matmul_grad(weights, of_block, value_block, often=place.cells.whole)
                )
        found = _gradients(pairs, [query, key, *(given[number] for number in rules)])
        adders = place.add_to_queries, place.add_to_keys, *(Tensor.add_ for _ in rules)
        for add, which, gradient in zip(adders, (0, 1, *rules), found, strict=True):
            if gradient is not None:
                add(sums[which], gradient)

    run_all(work, cut(job), 1 if of_rules else cut.parts)  # all blocks share the sums of a rule's tensor
    return [total.to(t.dtype) for total, t in zip(sums, tensors, strict=True) if total is not None]


def _gradients(pairs: list[tuple[Tensor, Tensor]], leaves: list[Tensor]) -> list[Tensor | None]:
    """The gradients of leaves, from what was computed of them, each with the gradient that comes in for it."""
    pairs = [(part, gradient) for part, gradient in pairs if part.requires_grad]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    if not pairs or not wanted:
        return [None] * len(leaves)
    parts, gradients = zip(*pairs, strict=True)
    found = iter(torch.autograd.grad(parts, wanted, gradients, allow_unused=True))
    return [next(found) if leaf.requires_grad else None for leaf in leaves]


def _block(place: Place, query: Tensor, key: Tensor) -> Block:
    """The rows of one place, from its queries and keys."""
    request, cells = place.request, place.cells
    score = request.score
    scores = request.scores(query, key, cells)
    certain = place.certain()
    masked = place.masked(certain)
    if not score.plain:  # it may forbid cells by −∞; and what it gives may be its own table, or what its gradient needs
        scores = scores.expand(*query.shape[:3], place.width).clamp(min=FORBIDDEN)
    elif scores.shape[:2] != query.shape[:2]:
        scores = scores.expand(*query.shape[:3], place.width).clone()
    for keys, forbidden in masked:  # behind autograd's back: softmax hands nothing to cells whose weight is 0
        scores.detach()[..., keys].masked_fill_(forbidden, FORBIDDEN)
    weights, lse = scores.softmax(-1), None
    if not score.plain or (masked and certain[0] == certain[1]):
        weights = weights.masked_fill(scores.detach().amax(-1, keepdim=True) <= FORBIDDEN, 0.0)
    if masked and scores.requires_grad:
        scores = _Masked.apply(scores, masked)
    if score.sinks is not None:
        weights, lse = sunk(scores, weights, score.sinks[cells.heads])
    anchor = certain[0] - cells.keys[0] if certain[0] < certain[1] else None
    return Block(weights, scores, cells, place.index, request.shape, lse, anchor, concrete=True)


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


def _leaf(tensor: Tensor, needed: bool) -> Tensor:
    return tensor.detach().requires_grad_(needed)


def _kept(weights: Tensor, p: float, seed: int, stream: int, number: int) -> tuple[Tensor, float]:
    """Which weights dropout keeps, the same each time that the block of this number in its stream is computed."""
    of_block = hash((seed, stream, number)) % 2**62
    return keep_cells(weights.shape, p, of_block, weights.dtype, weights.device)
