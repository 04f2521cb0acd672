"""A subclass that overrides a rule is computed by its own rule, without the hints of its parent."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from itertools import product
from math import inf

import pytest
import torch

from helpers.ops.cases import allowed, masks, measures
from helpers.ops.dense_reference import definition, dot
from helpers.ops.subclasses import (
    HEADS,
    KEYS,
    OFFSET,
    QUERIES,
    SHAPE,
    TENSORS,
    WAYS,
    WHOLE,
    check,
    compare_kernels,
    numbers,
    subclass,
)
from helpers.pairwise import grouped, pairwise
from regard.ops.kernels.base import KernelInputs
from regard.ops.kernels.blocks import CPU, partition
from regard.ops.kernels.dispatch import select_kernel
from regard.ops.kernels.sdpa import Sdpa
from regard.ops.masks import Causal, DenseMask, Neighbors, Padding, Window, as_mask
from regard.ops.request import make_request
from regard.ops.rules import builtin_classes
from regard.ops.scores import (
    Additive,
    Alibi,
    Bias,
    Bilinear,
    RelativeKey,
    RelativeQuery,
    ScaledDotProduct,
    Score,
    ScoreMod,
    Sinks,
    SoftCap,
    T5RelativeBias,
)

QUERY, KEY = WHOLE.q_idx, WHOLE.kv_idx
LINKED = ((QUERY * KEY + KEY) % 3 == 0) | (QUERY == KEY)
GRAPH = Neighbors(*LINKED.nonzero().T)


MASKS = {name: as_mask(mask) for name, mask in masks(*SHAPE).items() if mask is not None}
CHANGES = {
    "narrower": lambda visible, query, key: visible & ((query + key) % 2 == 0),
    "wider": lambda visible, query, key: visible | ((query + 2 * key) % 3 == 0),
    "inverted": lambda visible, query, key: ~visible,
}
MASK_COMBINATIONS = {
    "alone": lambda rule, visible: (rule, visible),
    "not": lambda rule, visible: (~rule, ~visible),
    "and": lambda rule, visible: (rule & Causal(), visible & (KEY <= QUERY + OFFSET)),
    "or": lambda rule, visible: (
        Window(2, 0) | rule,
        visible | ((KEY <= QUERY + OFFSET) & (KEY >= QUERY + OFFSET - 2)),
    ),
    "on a graph": lambda rule, visible: (GRAPH & rule, visible & LINKED),
}


@cache
def visible(name):
    return allowed(name, *SHAPE, OFFSET)


def changed(rule, change, way="in a subclass"):
    return subclass(rule, "allowed", lambda self, visible, tile: CHANGES[change](visible, tile.q_idx, tile.kv_idx), way)


@pytest.mark.parametrize(("combination", "way", "cases"), grouped(pairwise(MASK_COMBINATIONS, WAYS, CHANGES, MASKS), 2))
def test_a_subclass_of_a_mask_with_its_own_allowed_gets_its_own_weights(combination, way, cases, subtests):
    for change, name in cases:
        with subtests.test(change=change, mask=name):
            mask, cells = MASK_COMBINATIONS[combination](
                changed(MASKS[name], change, way), CHANGES[change](visible(name), QUERY, KEY)
            )
            kernel_names = check(cells, mask=mask)
            assert {"blockwise", "reference"} | ({"sparse"} if combination == "on a graph" else set()) <= set(
                kernel_names
            )


@pytest.mark.parametrize(
    ("combination", "cases"), grouped(list(product(["alone", "not", "and", "or"], WAYS, ["narrower", "wider"])))
)
def test_sdpa_is_not_given_a_large_mask_whose_subclass_depends_on_the_query(combination, cases, subtests):
    for way, change in cases:
        with subtests.test(way=way, change=change):
            check_large_masks(change, way, combination)


def check_large_masks(change, way, combination):
    long, keys, lengths = torch.zeros(1, 1, 3000, 4), torch.ones(3000, dtype=torch.bool), Padding(torch.tensor([2000]))
    for rule in (lengths, Padding(keys[None]), DenseMask(keys), DenseMask(keys[:1])):
        changed_rule = changed(rule, change, way)
        mask = {
            "alone": changed_rule,
            "not": ~changed_rule,
            "and": lengths & changed_rule,
            "or": changed_rule | lengths,
        }[combination]
        inputs = KernelInputs(long, make_request(long, long, mask=mask), {})
        assert next(Sdpa().inefficient_reasons(inputs)).startswith("the mask would need a dense (1, 1, 3000, 3000) ten")
        assert select_kernel(inputs).name == "blockwise"


def layout(mask):
    """Where the blocks of the streaming kernel lie, and in which keys each of them masks nothing."""
    request = make_request(*TENSORS[:2], mask=mask)
    streams = partition(request, replace(CPU, rows=5), 1)
    return [(block.index, block.full_keys) for stream in streams for block in stream]


def test_a_subclass_that_keeps_allowed_keeps_all_hints(subtests):
    for name, rule in MASKS.items():
        with subtests.test(mask=name):
            changed_rule = object.__new__(type("Mine", (type(rule),), {"__repr__": lambda self: "Mine()"}))
            vars(changed_rule).update(vars(rule))
            assert layout(changed_rule) == layout(rule)
            assert changed_rule.depends_on_query == rule.depends_on_query


def test_hints_defined_with_the_rule_or_below_it_are_used():
    band = Window(1, 0)
    rule = {"allowed": lambda self, tile: band.allowed(tile)}
    hints = {
        "key_range": lambda self, tile: band.key_range(tile),
        "full_key_range": lambda self, tile: band.full_key_range(tile),
        "depends_on_query": property(lambda self: False),
    }
    together = type("Mine", (Causal,), rule | hints)
    after = type("Mine", (type("Parent", (Causal,), rule),), hints)
    mixed_in = type("Mine", (type("Mixin", (), rule | hints), Causal), {})
    assert layout(band) != layout(Causal())
    for kind in (together, after, mixed_in):
        assert layout(kind()) == layout(band)
        assert not kind().depends_on_query
    dot = {"__call__": lambda self, query, key, scale, tile: query @ key.mT * scale}
    is_fresh_and_finite = {"is_fresh_and_finite": property(lambda self: True)}
    assert type("Mine", (SoftCap,), dot | is_fresh_and_finite)(
        ScaledDotProduct() + Bias(torch.zeros(1)), 1.0
    ).is_fresh_and_finite
    assert type("Mine", (type("Parent", (ScaledDotProduct,), dot),), is_fresh_and_finite)().is_fresh_and_finite


RULES = {
    type(rule).__name__: rule
    for rule in (
        ScaledDotProduct(),
        Bilinear(numbers(4, 4)),
        Additive(numbers(4)),
        SoftCap(ScaledDotProduct(), 1.5),
        Sinks(ScaledDotProduct(), numbers(HEADS)),
        Bias(numbers(HEADS, QUERIES, KEYS)),
        Alibi(numbers(HEADS).abs()),
        T5RelativeBias(numbers(8, HEADS), max_distance=20),
        RelativeKey(numbers(7, 4)),
        ScoreMod(ScaledDotProduct(), lambda score, b, h, i, j: score * (1 + h) - j / 9),
        RelativeQuery(numbers(7, 4)),
        ScaledDotProduct() + Alibi(numbers(HEADS).abs()),
    )
}
SCORE_COMBINATIONS = {
    "alone": (lambda rule: rule, lambda own, dot: own),
    "in a sum": (lambda rule: ScaledDotProduct() + rule, lambda own, dot: dot + own),
    "capped": (lambda rule: SoftCap(rule, 2.0), lambda own, dot: 2 * (own / 2).tanh()),
    "with sinks": (lambda rule: Sinks(rule, numbers(HEADS)), lambda own, dot: own),
}
OTHERS = list(SCORE_COMBINATIONS), ["none", "causal", "empty rows"]
TWICE = "Sinks", "with sinks"  # sinks may be given only once


def check_score(name, override, way, combination, mask, **stored):
    """Compare a subclass of a score with the dense definition, in which an unchanged parent gives the raw scores."""
    rule, (around, formula) = RULES[name], SCORE_COMBINATIONS[combination]
    changed_rule = subclass(rule, "__call__", override, way, **stored)
    sinks = numbers(HEADS) if "Sinks" in (name, type(around(changed_rule)).__name__) else None

    def dense(query, key, distance):
        own = override(changed_rule, rule(query, key, 0.5, WHOLE), query, key, 0.5, WHOLE)
        return formula(own, dot(query, key, query.shape[-1] ** -0.5))

    rules = {"mask": MASKS.get(mask), "score": around(changed_rule), "scale": 0.5}
    leaves = [tensor for tensor in stored.values() if tensor.requires_grad]
    assert check(visible(mask), dense, sinks, leaves, **rules) == ["blockwise", "reference"]


def test_every_score_of_the_library_is_subclassed():
    assert {type(rule) for rule in RULES.values()} == set(builtin_classes(Score))


@pytest.mark.parametrize(("combination", "cases"), grouped(pairwise(*OTHERS, RULES, WAYS)))
def test_a_subclass_of_a_score_may_forbid_cells(combination, cases, subtests):
    def override(self, scores, query, key, scale, tile):
        return scores + torch.where(((tile.q_idx + tile.kv_idx) % 3 == 0) | (tile.q_idx == 2), -inf, 0.0)

    for mask, name, way in cases:
        if (name, combination) != TWICE:
            with subtests.test(mask=mask, score=name, way=way):
                check_score(name, override, way, combination, mask)


@pytest.mark.parametrize(("combination", "cases"), grouped(pairwise(*OTHERS, RULES, WAYS, [False, True])))
def test_a_tensor_that_a_subclass_of_a_score_returns_is_never_written_to(combination, cases, subtests):
    for mask, name, way, learned in cases:
        if (name, combination) != TWICE:
            with subtests.test(mask=mask, score=name, way=way, learned=learned):
                table = numbers(*SHAPE, seed=7).requires_grad_(learned)
                before = table.detach().clone()
                check_score(
                    name, lambda self, scores, *call: call[-1].slice(self.own), way, combination, mask, own=table
                )
                assert torch.equal(table, before)


@pytest.mark.parametrize("way", WAYS)
def test_a_subclass_of_a_measure_with_its_own_compute_gets_its_own_result(way, subtests):
    for name in measures(QUERIES, KEYS):
        with subtests.test(measure=name):
            check_measure(name, way)


def check_measure(name, way):
    measure, cells = measures(QUERIES, KEYS)[name], LINKED.expand(SHAPE)

    def tripled(self, result, block):
        return type(result)(*(part * 3 for part in result)) if isinstance(result, tuple) else result * 3

    def squares(self, result, block):
        return block.weights.square().sum(-2 if self.axis == "keys" else -1)

    def define(override):
        output, weights, _, measured = definition(*TENSORS, cells, OFFSET)
        if override is squares:
            return output, {"mine": weights.square().sum(-2 if measure.axis == "keys" else -1)}
        parts = tuple(part * 3 for part in measured[name])
        return output, {"mine": parts if name in ("max", "topk") else parts[0]}

    for override in (tripled, squares) if measure.axis is not None else (tripled,):
        requested = {"mine": subclass(measure, "compute", override, way)}
        assert compare_kernels(partial(define, override), requested, mask=GRAPH)
