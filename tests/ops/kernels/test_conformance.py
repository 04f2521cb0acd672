"""Every kernel equals the definition: outputs, measures and gradients, for all rules, dtypes and shapes."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import inf

import pytest
import torch

from helpers.ops import cases
from helpers.ops.cases import CPU_KERNELS, MASKS, SCORES, VISIBLE, allowed, masks_of, measures, scores_of
from helpers.ops.dense_reference import ADDED_ONE_BY_ONE, definition, grid
from helpers.pairwise import each_value, grouped, pairwise
from regard.diagnostics.calls import difference, tolerance, with_gradients
from regard.diagnostics.cases import SHAPES, Case
from regard.errors import KernelNotSupported
from regard.ops import attend
from regard.ops.kernels.blocks import CPU
from regard.ops.kernels.blockwise import Blockwise
from regard.ops.kernels.reference import Reference

OFFSETS = {"default": None, "zero": 0, "ahead": 7, "behind": -6, "beyond": 50, "before": -50}
SCALES = {"default": None, "given": 0.3, "negative": -0.7}
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
WITHOUT_PRODUCT = ("bias of keys alone", "relative of heads")
"""Scores that a kernel may refuse although it supports their classes: they do not multiply query and key."""


def call_of(shape, mask, score, offset, scale, dtype, times=None):
    """The call; `times` makes the score's own tensors so many times as large, or the query if it has none."""
    case = Case("", MASKS[mask], SCORES[score], SHAPES[shape], OFFSETS[offset], SCALES[scale], measures)
    call = case.call(dtype)
    if times:
        names = list(call.tensors)[3:] or ["query"]
        call = replace(call, tensors=call.tensors | {name: call.tensors[name] * times for name in names}).to(dtype)
    return call


def check(actual, dense, exact, dtype, kernel, largest=0.0):
    """In float64 equal to 1e-12, in half precision within the tolerance, or at most twice as far off as dense torch.

    Where the last digits decide, eight units of the last place are allowed: which of two is nearer is chance there. So
    is it for the sums over all cells that gradients of shared tensors are, with a few more digits, and for sums that a
    product adds one by one, in an order that its library chooses for the processor. Beyond 128 keys more is allowed in
    proportion, as sums of equal terms are rounded in the same direction again and again. The last digits of the largest
    score, where one is given, are allowed as well.
    """
    of_scores = 8 * torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps * largest
    terms = max(exact["output"].shape[2], exact["gradient of key"].shape[2])
    assert actual.keys() == exact.keys()
    for name, expected in exact.items():
        expected = expected.where(
            expected.abs() <= torch.finfo(actual[name].dtype).max, expected * inf
        )  # float16 may overflow
        error, other = difference(actual[name], expected), difference(dense[name], expected)
        limit = 1e-12 if dtype == torch.float64 else tolerance(actual[name], dtype, kernel)
        if actual[name].dtype == torch.float32:
            is_long_sum = name in {"received", *ADDED_ONE_BY_ONE}
            limit = 2**-17 if name.startswith("gradient") else 2**-19 if is_long_sum else 2**-20
            limit *= max(1.0, terms / 128)
        assert error <= max(limit, 2 * other, of_scores), (name, error, other)


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
def test_a_kernel_equals_the_definition(kernel, mask, cases, subtests):
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
def test_huge_scores_have_errors_of_their_last_digits_only(kernel, dtype, cases, subtests):
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
    masks = sorted(MASKS.keys() - {"neighbors", "neighbors and"})  # which copy their edges
    for mask, shape in product(masks, ((2, 2, 13, 21), (3, 1, 21, 13))):
        with subtests.test(mask=mask, shape=shape):
            check_changed(mask, shape)


def check_changed(mask, shape):
    parameters, at = MASKS[mask].parameters(*shape), grid(*shape, offset=shape[3] - shape[2])
    rule = MASKS[mask].rule(parameters)
    assert_cells(rule, VISIBLE[mask](parameters, at).expand(shape))
    for tensor in filter(torch.is_tensor, parameters.values()):
        tensor.copy_(tensor.flip(tuple(range(tensor.ndim))))
    assert_cells(rule, VISIBLE[mask](parameters, at).expand(shape))


def exact_results(call, mask, score, offset, scale, precision, names):
    """By the definition in a precision: the results with these names, and weights and scores."""
    call = call.to(precision)
    inputs, (batch, heads, queries, _), keys = call.tensors, call.tensors["query"].shape, call.tensors["key"].shape[2]
    shift = keys - queries if OFFSETS[offset] is None else OFFSETS[offset]
    output, W, scores, measured = definition(
        *(inputs[name] for name in ("query", "key", "value")),
        allowed(mask, batch, heads, queries, keys, shift),
        shift,
        lambda query, key, distance: SCORES[score].dense(inputs, query, key, distance, SCALES[scale]),
        inputs.get("sinks"),
    )
    parts = {name: parts[0] for name, parts in measured.items()}
    parts |= {f"{name}[{i}]": part for name, parts in measured.items() for i, part in enumerate(parts)}
    results = with_gradients({"output": output} | {name: parts[name] for name in names if name in parts}, inputs)
    return {name: part.detach() for name, part in results.items()}, W.detach(), scores.detach()


def largest_of(query, key, scores):
    """The largest score, before it is capped."""
    key = key.double().repeat_interleave(query.shape[1] // key.shape[1], 1)
    uncapped = query.double() @ key.mT * query.shape[-1] ** -0.5
    return max(x.abs().max().item() for x in (uncapped, scores.masked_fill(scores == -inf, 0.0)))


def compare(kernel, shape, mask, score, offset, scale, dtype, times=None):
    """Compare what a kernel computes with the definition; or return the reasons why it refuses the call."""
    rules = mask, score, offset, scale
    call = call_of(shape, *rules, dtype, times).with_measures_of(kernel)
    reasons = list(kernel.unsupported_reasons(call.inputs()))
    if reasons:
        with pytest.raises(KernelNotSupported) as error:
            call.results(kernel)
        assert reasons[0] in str(error.value)
        return reasons

    actual = call.results(kernel)
    assert actual["output"].dtype == dtype
    dense, rounded, _ = exact_results(call, *rules, dtype, actual)
    exact, W, scores = exact_results(call, *rules, torch.float64, actual)
    if "topk[1]" in actual:  # where two weights are nearly equal, rounding decides which key is chosen
        check_indices(actual["topk[1]"], W, scores)
        actual["topk[1]"] = at_indices(W, actual["topk[1]"])
        for results, weights in ((dense, rounded), (exact, W)):
            results["topk[1]"] = at_indices(W, weights.sort(-1, descending=True).indices[..., :3])
    largest = largest_of(call.tensors["query"], call.tensors["key"], scores) if times else 0.0
    check(actual, dense, exact, dtype, kernel, largest)
    return []
