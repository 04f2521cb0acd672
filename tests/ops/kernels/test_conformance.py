"""Every kernel gives what the definition says: outputs, answers and gradients, whatever the rules, dtype and shape."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import inf

import pytest
import torch

from helpers.ops import cases
from helpers.ops.cases import CPU_KERNELS, MASKS, SCORES, allowed, masks_of, measures, scores_of
from helpers.ops.dense_reference import ADDED_ONE_BY_ONE, definition, grid
from helpers.pairwise import each_value, grouped, pairwise
from regard.errors import KernelNotSupported
from regard.ops import attend
from regard.ops.kernels.base import KernelInputs
from regard.ops.kernels.blocks import CPU
from regard.ops.kernels.blockwise import Blockwise
from regard.ops.kernels.reference import Reference
from regard.ops.request import make_request

SHAPES = {  # batch, heads, kv_heads, queries, keys, head_dim, value_dim
    "square": (2, 4, 4, 33, 33, 8, 8),
    "one query": (2, 4, 4, 1, 20, 8, 8),
    "one key": (1, 2, 2, 5, 1, 4, 4),
    "one of each": (1, 1, 1, 1, 1, 1, 1),
    "grouped": (2, 6, 2, 20, 31, 8, 5),
    "one kv head": (3, 4, 1, 17, 9, 4, 8),
    "blocks": (1, 2, 1, 300, 270, 4, 6),
    "more queries than keys": (1, 2, 2, 40, 13, 4, 4),
    "one query and many keys": (2, 2, 1, 1, 700, 8, 4),
    "one more than blocks": (2, 2, 2, 257, 129, 4, 4),
    "many lengths": (5, 2, 1, 19, 23, 4, 4),
}
OFFSETS = {"default": None, "zero": 0, "ahead": 7, "behind": -6, "beyond": 50, "before": -50}
SCALES = {"default": None, "given": 0.3, "negative": -0.7}
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
WITHOUT_PRODUCT = ("bias of keys alone", "relative of heads")
"""Scores that a kernel may refuse although it supports their classes: they do not multiply query and key."""


def leaves(shape, score, dtype, times=None):
    """Query, key, value, and the tensors of the score, by name.

    Where `times` is given, the score's own tensors are so many times as large, or the query where it has none.
    """
    batch, heads, kv_heads, queries, keys, head_dim, value_dim = SHAPES[shape]
    random = torch.Generator().manual_seed(1)
    # Not contiguous: the layout that projecting and splitting heads leaves behind.
    sizes = (queries, heads, head_dim), (keys, kv_heads, head_dim), (keys, kv_heads, value_dim)
    draws = (torch.randn(batch, *size, generator=random, dtype=torch.float64) for size in sizes)
    query, key, value = (tensor.to(dtype).transpose(1, 2) for tensor in draws)
    of_score = SCORES[score].tensors(heads, queries, keys, head_dim)
    of_score = {name: (tensor * (times or 1)).to(dtype) for name, tensor in of_score.items()}
    query = query * times if times and not of_score else query
    whole = {"query": query, "key": key, "value": value, **of_score}
    return {name: tensor.requires_grad_() for name, tensor in whole.items()}


def with_gradients(results, leaves):
    """The results, and the gradients of one number that depends on every finite entry of them."""
    finite = [part.masked_fill(~part.isfinite(), 0.0).double() for parts in results.values() for part in parts]
    loss = sum((part * torch.linspace(0.5, 1.5, part.numel()).view(part.shape)).sum() for part in finite)
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return results | {f"gradient of {name}": (part,) for name, part in zip(leaves, gradients, strict=True)}


def check(ours, dense, exact, dtype, terms, largest=0.0):
    """In float64 equal to 1e-12; else at most twice as far from the truth as dense torch in the same dtype.

    Where the last digits decide, eight units of the last place are allowed: which of two is nearer is chance there. So
    is it for the sums over all cells that gradients of shared tensors are, with a few more digits, and for sums that a
    product adds one by one, in an order that its library chooses for the processor. Beyond 128 keys more is allowed in
    proportion, as sums of equal terms are rounded in the same direction again and again. The last digits of the largest
    score, where one is given, are allowed as well.
    """
    of_scores = 8 * torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps * largest
    assert ours.keys() == exact.keys()
    for name, parts in exact.items():
        for mine, theirs, truth in zip(ours[name], dense[name], parts, strict=True):
            same = torch.isfinite(truth)
            assert torch.equal(mine.double()[~same], truth[~same]), name
            if not same.any():
                continue
            scale = max(1.0, truth[same].abs().max().item())
            error, other = ((x.double() - truth)[same].abs().max().item() / scale for x in (mine, theirs))
            digits = (
                2**-17 if name.startswith("gradient") else 2**-19 if name in {"received", *ADDED_ONE_BY_ONE} else 2**-20
            )
            digits *= max(1.0, terms / 128)
            floor = 1e-12 if dtype == torch.float64 else max(8 * torch.finfo(mine.dtype).eps, digits, 2 * other)
            assert error <= max(floor, of_scores), (name, error, other)


def check_indices(indices, weights, scores):
    """As many different visible keys as there are, up to k, and −1 after them."""
    visible, actual = scores > -inf, indices >= 0
    assert torch.equal(actual, torch.arange(indices.shape[-1]) < visible.sum(-1, keepdim=True))
    assert visible.gather(-1, indices.clamp(min=0))[actual].all()
    times = torch.zeros_like(weights).scatter_add_(-1, indices.clamp(min=0), actual.to(weights.dtype))
    assert times.max() <= 1


def at_indices(weights, indices):
    """The weights of the chosen keys; 0 where there is none."""
    return weights.detach().gather(-1, indices.clamp(min=0)).where(indices >= 0, 0.0)


def cases_of(kernel):
    """Kernel, mask, shape, score, offset, scale and dtype: in pairs of what the kernel supports.

    The reference kernel is the definition in a few lines around the rules, and `blockwise` tests the rules in pairs.
    """
    sample = each_value if isinstance(kernel, Reference) else pairwise
    axes = masks_of(kernel), list(SHAPES), scores_of(kernel), list(OFFSETS), list(SCALES), kernel.dtypes
    return [(kernel, *case) for case in sample(*axes)]


@pytest.mark.parametrize(
    ("kernel", "mask", "cases"), grouped([case for kernel in CPU_KERNELS for case in cases_of(kernel)], 2)
)
def test_a_kernel_gives_what_the_definition_says(kernel, mask, cases, subtests):
    for shape, score, offset, scale, dtype in cases:
        with subtests.test(shape=shape, score=score, offset=offset, scale=scale, dtype=dtype):
            assert not compare(kernel, shape, mask, score, offset, scale, dtype) or score in WITHOUT_PRODUCT


@pytest.mark.parametrize("kernel", CPU_KERNELS, ids=lambda kernel: kernel.name)
def test_a_kernel_refuses_all_other_rules_and_dtypes(kernel, subtests):
    mask = masks_of(kernel)[0]
    options = [(other, "scaled_dot", torch.float32) for other in MASKS if other not in masks_of(kernel)]
    options += [(mask, score, torch.float32) for score in SCORES if score not in scores_of(kernel)]
    options += [(mask, "scaled_dot", dtype) for dtype in DTYPES if dtype not in kernel.dtypes]
    for mask, score, dtype in options:
        with subtests.test(mask=mask, score=score, dtype=dtype):
            assert compare(kernel, "square", mask, score, "default", "default", dtype)


def rules_of(kernel):
    """A mask with each score, and each mask with the default one, that the kernel supports."""
    masks = masks_of(kernel)
    mask = "and" if "and" in masks else masks[-1]
    return [(mask, score) for score in scores_of(kernel)] + [(mask, "scaled_dot") for mask in masks]


HUGE = [
    (kernel, *case)
    for kernel in CPU_KERNELS
    for case in pairwise([dtype for dtype in DTYPES[:3] if dtype in kernel.dtypes], rules_of(kernel))
]


@pytest.mark.parametrize(("kernel", "dtype", "cases"), grouped(HUGE, 2))
def test_huge_scores_cost_no_more_than_their_own_last_digits(kernel, dtype, cases, subtests):
    for (rules,) in cases:
        with subtests.test(rules=rules):
            reasons = compare(kernel, "square", *rules, "default", "default", dtype, times=1e4)
            assert not reasons or rules[1] in WITHOUT_PRODUCT


SMALL_BLOCKS = Blockwise(replace(CPU, rows=4, elements=64))


def assert_cells(rule, visible, offset=None):
    """The weights are above 0 in these cells and 0 in all others, in the whole matrix and in sums over its blocks.

    With the kernel of choice, and with several blocks, each of which skips the keys that it can.
    """
    query, key = (torch.ones(*visible.shape[:2], tokens, 4) for tokens in visible.shape[2:])
    value = torch.eye(visible.shape[3]).expand(visible.shape[0], 1, -1, -1)
    for kernel in (None, SMALL_BLOCKS):
        att = attend(query, key, value, mask=rule, offset=offset, measure="received", kernel=kernel)
        assert torch.equal(att.output > 0, visible)
        assert torch.equal(att.measured["received"] > 0, visible.any(-2))


@pytest.mark.parametrize("offset", OFFSETS)
def test_the_cells_with_a_weight_are_those_that_the_mask_allows(offset, subtests):
    for mask, shape in product(MASKS, ((2, 2, 13, 21), (3, 1, 21, 13))):
        with subtests.test(mask=mask, shape=shape):
            shift = shape[3] - shape[2] if OFFSETS[offset] is None else OFFSETS[offset]
            assert_cells(cases.mask(mask, *shape), allowed(mask, *shape, shift), OFFSETS[offset])


def test_a_mask_whose_tensors_were_changed_allows_other_cells(subtests):
    masks = sorted(MASKS.keys() - {"neighbours", "neighbours and"})  # which copy their edges
    for mask, shape in product(masks, ((2, 2, 13, 21), (3, 1, 21, 13))):
        with subtests.test(mask=mask, shape=shape):
            check_changed(mask, shape)


def check_changed(mask, shape):
    case, parameters, at = MASKS[mask], MASKS[mask].parameters(*shape), grid(*shape, offset=shape[3] - shape[2])
    rule = case.rule(parameters)
    assert_cells(rule, case.visible(parameters, at).expand(shape))
    for tensor in filter(torch.is_tensor, parameters.values()):
        tensor.copy_(tensor.flip(tuple(range(tensor.ndim))))
    assert_cells(rule, case.visible(parameters, at).expand(shape))


def truth(shape, mask, score, offset, scale, dtype, times, names):
    """By the definition: these answers in this dtype and in float64, and the weights and scores in float64."""
    batch, heads, _, queries, keys, _, _ = SHAPES[shape]
    shift, case = keys - queries if OFFSETS[offset] is None else OFFSETS[offset], SCORES[score]
    cells = allowed(mask, batch, heads, queries, keys, shift)
    answers, chosen = [], []
    for precision in (dtype, torch.float64):
        inputs = leaves(shape, score, dtype, times)
        inputs = {name: tensor.detach().to(precision).requires_grad_() for name, tensor in inputs.items()}
        query, key, value, *_ = inputs.values()
        output, W, scores, measured = definition(
            query, key, value, cells, shift,
            lambda query, key, distance, inputs=inputs: case.dense(inputs, query, key, distance, SCALES[scale]),
            inputs.get("sinks"),
        )  # fmt: skip
        results = with_gradients({"output": (output,)} | {name: measured[name] for name in names}, inputs)
        answers.append({name: tuple(part.detach() for part in parts) for name, parts in results.items()})
        chosen.append(W.detach().sort(-1, descending=True).indices[..., :3])
    for actual, indices in zip(answers, chosen, strict=True):
        actual |= {"topk": (*actual["topk"], at_indices(W, indices))} if "topk" in names else {}
    return *answers, W.detach(), scores.detach()


def largest_of(query, key, scores):
    """The largest score, or what it was before it was capped."""
    key = key.double().repeat_interleave(query.shape[1] // key.shape[1], 1)
    uncapped = query.double() @ key.mT * query.shape[-1] ** -0.5
    return max(x.abs().max().item() for x in (uncapped, scores.masked_fill(scores == -inf, 0.0)))


def compare(kernel, shape, mask, score, offset, scale, dtype, times=None):
    """Compare what a kernel computes with the definition; or return the reasons why it refuses the call."""
    batch, heads, _, queries, keys, _, _ = SHAPES[shape]
    inputs = leaves(shape, score, dtype, times)
    query, key, value, *_ = inputs.values()
    options = {
        "mask": cases.mask(mask, batch, heads, queries, keys),
        "score": SCORES[score].rule(inputs),
        "offset": OFFSETS[offset],
        "scale": SCALES[scale],
    }
    requested = {n: m for n, m in measures(queries, keys).items() if kernel.supports(type(m))}
    reasons = list(kernel.unsupported_reasons(KernelInputs(value, make_request(query, key, **options), requested)))
    if reasons:
        with pytest.raises(KernelNotSupported) as error:
            attend(query, key, value, **options, measure=requested, kernel=kernel)
        assert reasons[0] in str(error.value)
        return reasons

    dense, exact, W, scores = truth(shape, mask, score, offset, scale, dtype, times, tuple(requested))
    att = attend(query, key, value, **options, measure=requested, kernel=kernel)
    assert att.output.dtype == dtype
    answers = {name: answer if isinstance(answer, tuple) else (answer,) for name, answer in att.measured.items()}
    indices = answers["topk"].indices if "topk" in answers else None
    answers |= {} if indices is None else {"topk": answers["topk"][:1]}
    ours = with_gradients({"output": (att.output,)} | answers, inputs)
    if indices is not None:  # where two weights are nearly equal, rounding decides which key is chosen
        check_indices(indices, W, scores)
        ours["topk"] += (at_indices(W, indices),)
    check(ours, dense, exact, dtype, max(queries, keys), largest_of(query, key, scores) if times else 0.0)
    return []
