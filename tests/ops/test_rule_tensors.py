"""A tensor held by a rule gets its gradient, or the call is refused; a mask's tensors are watched and moved."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from helpers.ops.holders import HOLDERS, SUPPORTED, Below, Parcel, Scaled, Squares
from helpers.pairwise import grouped, pairwise, sampled
from regard.errors import InvalidArgument, StaleView
from regard.ops import attend, weights
from regard.ops.kernels.blocks import CPU
from regard.ops.kernels.blockwise import Blockwise
from regard.ops.masks import Causal, Mask, Window
from regard.ops.scores import Bias, ScaledDotProduct, Sinks, SoftCap

HEADS, QUERIES, KEYS = 2, 9, 12


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


TENSORS = [numbers(2, HEADS, tokens, 4, seed=i) for i, tokens in enumerate((QUERIES, KEYS, KEYS))]
LOGITS, BIAS = numbers(HEADS), numbers(QUERIES, KEYS)


BLOCKWISE = Blockwise(replace(CPU, rows=5))  # even these few rows make several blocks
SCORES = {  # the score built around a rule, and its formula, from the rule's own scores and the scaled dot product
    "alone": (lambda rule: rule, lambda own, dot: own),
    "in a sum": (lambda rule: ScaledDotProduct() + rule, lambda own, dot: dot + own),
    "first in a sum": (lambda rule: rule + ScaledDotProduct(), lambda own, dot: own + dot),
    "added to itself": (lambda rule: rule + rule, lambda own, dot: own + own),
    "beside a bias that learns": (
        lambda rule: ScaledDotProduct() + Bias(nn.Parameter(BIAS)) + rule,
        lambda own, dot: dot + BIAS + own,
    ),
    "capped": (lambda rule: SoftCap(rule, 5.0), lambda own, dot: 5 * (own / 5).tanh()),
    "with sinks": (lambda rule: Sinks(rule, LOGITS), lambda own, dot: own),
    "two deep": (
        lambda rule: Sinks(SoftCap(ScaledDotProduct() + rule, 5.0), LOGITS),
        lambda own, dot: 5 * ((dot + own) / 5).tanh(),
    ),
}
MEASURES = {  # what to measure, and the expected results in order
    "alone": (lambda rule: rule, ["own"]),
    "in a list": (lambda rule: ["entropy", rule], ["entropy", "own"]),
    "in a dict": (lambda rule: {"a": rule, "b": "entropy", "c": rule}, ["own", "entropy", "own"]),
}
BASES = {"score": Scaled, "measure": Squares}
CASES = [("score", combination) for combination in SCORES] + [("measure", combination) for combination in MEASURES]


def compute(kernel, tensors, kind, combination, rule):
    """The output and the measurements, from a kernel or from a view."""
    score = SCORES[combination][0](rule) if kind == "score" else None
    measure = MEASURES[combination][0](rule) if kind == "measure" else "entropy"
    if kernel == "view":
        W = weights(*tensors[:2], score=score, scale=0.5)
        return [W @ tensors[2], *W.measure(measure).values()]
    att = attend(*tensors, score=score, scale=0.5, measure=measure, kernel=kernel)
    return [att.output, *att.measured.values()]


def exact_results(tensors, kind, combination, stored):
    """The same, from the dense formula."""
    query, key, value = tensors
    dot = query @ key.mT * 0.5
    scores = SCORES[combination][1](dot * stored[:, None, None], dot) if kind == "score" else dot
    sinks = LOGITS if combination in ("with sinks", "two deep") else torch.full((HEADS,), -inf, dtype=dot.dtype)
    with_sinks = torch.cat((scores, sinks[:, None, None].expand(*scores.shape[:3], 1)), -1)
    weights = with_sinks.softmax(-1)[..., :-1]
    expected_measures = {
        "entropy": -(weights * weights.log()).sum(-1),
        "own": weights.square().sum(-1) * stored[:, None],
    }
    return [
        weights @ value,
        *(expected_measures[name] for name in (MEASURES[combination][1] if kind == "measure" else ["entropy"])),
    ]


def gradients(parts, leaves):
    loss = sum((part * torch.linspace(0.5, 1.5, part.numel()).view_as(part)).sum() for part in parts)
    assert loss.requires_grad
    return torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True)


def check(kernel, holder, case, computed, inputs):
    """Compare a call with the dense formula, gradients included; return the error if the call was refused."""
    leaf = nn.Parameter(numbers(HEADS, seed=5))
    stored = leaf * 2 if computed else leaf
    tensors = [tensor.clone().requires_grad_(inputs) for tensor in TENSORS]
    rule = HOLDERS[holder](BASES[case[0]], stored)
    try:
        actual = compute(kernel, tensors, *case, rule)
    except InvalidArgument as error:
        return error
    expected, leaves = exact_results(tensors, *case, stored), [leaf, *(tensors if inputs else ())]
    torch.testing.assert_close(actual, expected)
    result, reference = gradients(actual, leaves), gradients(expected, leaves)
    assert result[0] is not None
    torch.testing.assert_close(result, reference)
    assert holder not in SUPPORTED or rule.stored() is stored
    return None


@pytest.mark.parametrize(
    ("case", "cases"),
    grouped(pairwise(CASES, HOLDERS, [BLOCKWISE, None, "view"], [False, True], [True, False])),
)
def test_a_tensor_gets_its_gradient_or_the_error_names_the_rule_that_holds_it(case, cases, subtests):
    for holder, kernel, computed, inputs in cases:
        with subtests.test(holder=holder, kernel=kernel, computed=computed, inputs=inputs):
            error = check(kernel, holder, case, computed, inputs)
            assert error is None or (holder not in SUPPORTED and "Holder" in str(error)), error


@pytest.mark.parametrize(
    ("case", "cases"), grouped(sampled(pairwise(CASES, HOLDERS, [False, True], [True, False]), 100))
)
def test_the_reference_kernel_accepts_every_rule_and_gives_the_gradient(case, cases, subtests):
    for holder, computed, inputs in cases:
        with subtests.test(holder=holder, computed=computed, inputs=inputs):
            assert check("reference", holder, case, computed, inputs) is None


MODES = [torch.no_grad, torch.inference_mode, torch.enable_grad]
ALL_WAYS = [BLOCKWISE, None, "view", "reference"]


@pytest.mark.parametrize(
    ("mode", "kernel", "cases"), grouped(sampled(pairwise(MODES, ALL_WAYS, HOLDERS, CASES), 200), 2)
)
def test_a_tensor_that_needs_no_gradient_may_be_held_anywhere(mode, kernel, cases, subtests):
    constant = mode is torch.enable_grad
    tensors = [tensor.clone().requires_grad_() for tensor in TENSORS]
    for holder, case in cases:
        with subtests.test(holder=holder, case=case):
            stored = nn.Parameter(numbers(HEADS, seed=5)).requires_grad_(not constant)
            expected = exact_results(tensors, *case, stored)
            with mode():
                actual = compute(kernel, tensors, *case, HOLDERS[holder](BASES[case[0]], stored))
            torch.testing.assert_close(actual, expected)
            if constant:
                torch.testing.assert_close(gradients(actual, tensors), gradients(expected, tensors))


MASKS = {
    "alone": lambda mask, causal, band: mask,
    "not": lambda mask, causal, band: ~mask,
    "and": lambda mask, causal, band: causal & mask,
    "or": lambda mask, causal, band: mask | band,
    "deep": lambda mask, causal, band: ~(causal & (mask | band)),
}


def mask_of(holder, combination, stored, base=Below):
    return MASKS[combination](HOLDERS[holder](base, stored), Causal(), Window(1, 0))


def cells_of(combination, stored):
    distance = torch.arange(KEYS) - torch.arange(QUERIES)[:, None] - (KEYS - QUERIES)
    below = (torch.arange(KEYS) < stored[:, None, None]).expand(HEADS, QUERIES, KEYS)
    return MASKS[combination](below, distance <= 0, (distance <= 0) & (distance >= -1))


@pytest.mark.parametrize("combination", MASKS)
def test_a_view_is_stale_once_a_tensor_held_by_its_mask_changes(combination, subtests):
    for holder in SUPPORTED:
        with subtests.test(holder=holder):
            stored, tensors = torch.tensor([5, 8]), [tensor.clone().requires_grad_() for tensor in TENSORS]
            mask = mask_of(holder, combination, stored)
            W, output = weights(*tensors[:2], mask=mask), attend(*tensors, mask=mask, kernel=BLOCKWISE).output
            W.entropy()
            stored.add_(1)
            with pytest.raises(StaleView, match="was changed in place"):
                W.entropy()
            with pytest.raises(StaleView, match="was changed in place"):
                output.sum().backward()


@pytest.mark.parametrize("combination", MASKS)
def test_a_mask_reads_its_tensors_again_once_they_change(combination, subtests):
    class UpTo(Below):
        def summarize(self):
            return int(self.stored().max())

        def key_range(self, tile):
            return tile.clip(tile.keys.start, tile.summary(self))

    for holder in SUPPORTED:
        stored = torch.tensor([3, 4])
        mask = mask_of(holder, combination, stored, UpTo)
        for change in range(2):
            with subtests.test(holder=holder, change=change):
                actual = attend(*TENSORS, mask=mask, kernel=BLOCKWISE).output
                expected = scaled_dot_product_attention(*TENSORS, attn_mask=cells_of(combination, stored))
                torch.testing.assert_close(actual, expected)
            stored.add_(4)


def reachable(content):
    if isinstance(content, Tensor):
        return [content]
    parts = content if isinstance(content, (list, tuple)) else content.values() if isinstance(content, dict) else ()
    parts = vars(content).values() if isinstance(content, (Mask, Parcel)) else parts
    return [tensor for part in parts for tensor in reachable(part)]


@pytest.mark.parametrize("combination", MASKS)
def test_moving_a_mask_moves_every_tensor_that_it_holds(combination, subtests):
    for holder in SUPPORTED:
        with subtests.test(holder=holder):
            mask = mask_of(holder, combination, torch.tensor([5, 8]))
            moved = mask.to(torch.device("meta"))
            assert {tensor.device.type for tensor in reachable(moved)} == {"meta"}
            assert {tensor.device.type for tensor in reachable(mask)} == {"cpu"}


@pytest.mark.parametrize(
    ("combination", "kernel", "cases"), grouped(pairwise(MASKS, ["reference", BLOCKWISE, None], HOLDERS), 2)
)
def test_a_mask_may_compare_with_a_tensor_that_requires_grad(combination, kernel, cases, subtests):
    tensors = [tensor.clone().requires_grad_() for tensor in TENSORS]
    for (holder,) in cases:
        with subtests.test(holder=holder):
            stored = nn.Parameter(torch.tensor([5.5, 8.5]))
            expected = scaled_dot_product_attention(*tensors, attn_mask=cells_of(combination, stored))
            actual = attend(*tensors, mask=mask_of(holder, combination, stored), kernel=kernel).output
            torch.testing.assert_close(actual, expected)
            *result, nothing = gradients([actual], [*tensors, stored])
            torch.testing.assert_close(result, list(gradients([expected], tensors)))
            assert nothing is None or not nothing.any()
