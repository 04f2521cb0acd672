"""Gradients of tensors in half precision: summed in float32 and rounded once, for every rule that holds a tensor."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from helpers.ops.cases import Cosine, Squares, kernels
from regard.ops import attend, weights
from regard.ops.kernels.base import KernelInputs
from regard.ops.kernels.blocks import CPU
from regard.ops.kernels.blockwise import Blockwise
from regard.ops.kernels.reference import Reference
from regard.ops.masks import Neighbors
from regard.ops.measures import KLDivergence, Received, TransposedProduct
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
    ScoreMod,
    Sinks,
    SoftCap,
    Sum,
    T5RelativeBias,
)

BATCH, HEADS, QUERIES, KEYS, DIM = 2, 4, 90, 70, 8
HALVES = [torch.bfloat16, torch.float16]
DOT = ScaledDotProduct()


def other(name, tensor):
    """A divergence from a matrix in which this tensor is one of the two."""
    random = torch.Generator().manual_seed(5)
    shapes = {"query": (BATCH, HEADS, QUERIES, DIM), "key": (BATCH, 1, KEYS, DIM)}
    tensors = {each: torch.randint(64, shape, generator=random).to(tensor.dtype) / 64 for each, shape in shapes.items()}
    return KLDivergence(weights(**tensors | {name: tensor}, scale=0.1))


HOLDERS = {  # by class and attribute: shape of the tensor, and what makes the rule of it
    (T5RelativeBias, "table"): ((8, HEADS), lambda t: DOT + T5RelativeBias(t, max_distance=40)),
    (Alibi, "slopes"): ((HEADS,), lambda t: DOT + Alibi(t)),
    (Bias, "tensor"): ((KEYS,), lambda t: DOT + Bias(t)),
    (Bias, "tensor of texts"): ((HEADS, QUERIES, KEYS), lambda t: DOT + Bias(t)),
    (Bias, "tensor of queries"): ((QUERIES, 1), lambda t: DOT + Bias(t)),
    (Sinks, "logits"): ((HEADS,), lambda t: Sinks(DOT, t)),
    (RelativeKey, "table"): ((5, DIM), lambda t: DOT + RelativeKey(t)),
    (RelativeKey, "table of heads"): ((HEADS, 3, DIM), lambda t: DOT + RelativeKey(t)),
    (RelativeKey, "table of sequences"): ((BATCH, HEADS, 3, DIM), lambda t: DOT + RelativeKey(t)),
    (RelativeQuery, "table"): ((5, DIM), lambda t: DOT + RelativeQuery(t)),
    (RelativeQuery, "table of heads"): ((HEADS, 3, DIM), lambda t: DOT + RelativeQuery(t)),
    (RelativeQuery, "table of sequences"): ((BATCH, HEADS, 3, DIM), lambda t: DOT + RelativeQuery(t)),
    (Bilinear, "weight"): ((DIM, DIM), lambda t: Bilinear(t)),
    (Bilinear, "weight of heads"): ((HEADS, DIM, DIM), lambda t: Bilinear(t)),
    (Additive, "vector"): ((DIM,), lambda t: Additive(t)),
    (Additive, "vector of heads"): ((HEADS, DIM), lambda t: Additive(t, "leaky_relu")),
    (SoftCap, "score"): ((8, HEADS), lambda t: SoftCap(DOT + T5RelativeBias(t), 3.0)),
    (Sinks, "score"): ((HEADS,), lambda t: Sinks(DOT + Alibi(t), torch.zeros(HEADS))),
    (ScoreMod, "score"): ((HEADS,), lambda t: ScoreMod(DOT + Alibi(t), lambda score, b, h, i, j: score * 2)),
    (ScoreMod, "score_mod"): ((HEADS,), lambda t: ScoreMod(DOT, lambda score, b, h, i, j: score + t[h])),
    (Sum, "left"): ((HEADS,), lambda t: Alibi(t) + DOT),
    (Sum, "right"): ((HEADS,), lambda t: DOT + (DOT + Alibi(t))),
    (Received, "row_weights"): ((1,), lambda t: Received(t)),
    (Received, "row_weights of queries"): ((QUERIES,), lambda t: Received(t)),
    (TransposedProduct, "rows"): ((1, 1, QUERIES, 6), lambda t: TransposedProduct(t)),
    (TransposedProduct, "rows, few"): ((1, HEADS, QUERIES, 2), lambda t: TransposedProduct(t)),
    (KLDivergence, "request"): ((BATCH, 1, KEYS, DIM), lambda t: other("key", t)),
    (KLDivergence, "request, query"): ((BATCH, HEADS, QUERIES, DIM), lambda t: other("query", t)),
    (Cosine, "temperature"): ((HEADS,), lambda t: Cosine(t)),
    (Squares, "weight_of_key"): ((KEYS,), lambda t: Squares(t)),
}
SHARED = {  # tensors of the call that heads share
    "key": (BATCH, 1, KEYS, DIM),
    "value": (BATCH, 1, KEYS, DIM),
    "key of pairs": (BATCH, 2, KEYS, DIM),
    "value of pairs": (BATCH, 2, KEYS, DIM),
}


def test_every_rule_that_can_hold_a_floating_point_tensor_is_tested():
    """By the annotations of the attributes; one named Any or Score may hold tensors, too."""
    holding = {
        (cls, name)
        for cls in builtin_classes()
        for name, annotation in vars(cls).get("__annotations__", {}).items()
        if not str(annotation).startswith("ClassVar")
        and any(kind in str(annotation) for kind in ("Float[", "Shaped[", "Any", "Score"))
    }
    derived = {(KLDivergence, "lse")}  # made of `request`
    # A modifier inherits the score that it modifies, and a relative score the table.
    holding |= {(cls, "score") for cls in (SoftCap, Sinks)} | {(cls, "table") for cls in (RelativeKey, RelativeQuery)}
    tested = {(cls, name.split(" ")[0].rstrip(",")) for cls, name in HOLDERS if cls.builtin}
    assert holding - derived == tested


def supported(kernel, holder):
    """Whether a kernel takes the rule, and rounds sums once."""
    if kernel.tolerance_factor != 1 or isinstance(holder, str):
        return kernel.tolerance_factor == 1
    rule = HOLDERS[holder][1](torch.rand(HOLDERS[holder][0]))
    return not list(kernel.unsupported_reasons(inputs_of(rule)))


def inputs_of(rule):
    is_measure = hasattr(rule, "compute")
    query, key = torch.rand(BATCH, HEADS, QUERIES, DIM), torch.rand(BATCH, 1, KEYS, DIM)
    request = make_request(query, key, mask=graph(), score=None if is_measure else rule)
    return KernelInputs(key, request, {"measure": rule} if is_measure else {})


def graph():
    return Neighbors(*torch.ones(QUERIES, KEYS).nonzero().T)


def random_tensors(shape, dtype):
    """All positive, so that many contributions add up to a large number."""
    random = torch.Generator().manual_seed(0)
    shapes = {"query": (BATCH, HEADS, QUERIES, DIM), "key": (BATCH, 1, KEYS, DIM), "value": (BATCH, 1, KEYS, DIM)}
    tensors = {name: torch.rand(size, generator=random).to(dtype) for name, size in shapes.items()}
    return tensors, torch.rand(shape, generator=random).to(dtype)


def gradient(kernel, holder, dtype, to):
    """The gradient of the tensor that a holder holds, of a sum of everything that depends on it."""
    shape = SHARED[holder] if isinstance(holder, str) else HOLDERS[holder][0]
    tensors, stored = random_tensors(shape, dtype)
    tensors, stored = {name: x.to(to) for name, x in tensors.items()}, stored.to(to).requires_grad_()
    rule = None
    if isinstance(holder, str):
        tensors[holder.split(" ")[0]] = stored
    else:
        rule = HOLDERS[holder][1](stored)
    is_measure = hasattr(rule, "compute")
    att = attend(
        **tensors,
        mask=graph() if kernel.required_mask is Neighbors else None,
        score=None if is_measure else rule,
        scale=0.1,
        measure={"measure": rule} if is_measure else "lse",
        kernel=kernel,
    )
    results = [result for result in (*att.measured.values(), att.output) if result.requires_grad]
    ones = [torch.ones_like(result) for result in results]
    return torch.autograd.grad(results, stored, ones)[0]


def assert_rounded_once(actual, exact, sums=1e-5):
    """Equal but for one rounding of each entry, and for the rounding of sums in float32."""
    info = torch.finfo(actual.dtype)
    limit = info.eps / 2 * exact.abs().clamp(min=info.tiny) + sums * exact.abs().max()
    assert ((actual.double() - exact).abs() <= limit).all(), ((actual.double() - exact).abs() / limit).max()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_gradients_are_rounded_once(dtype, subtests):
    for holder in (*HOLDERS, *SHARED):
        with subtests.test(holder=holder):
            check_rounding(holder, dtype)


def check_rounding(holder, dtype):
    exact = gradient(Reference(), holder, dtype, torch.float64)
    run = [kernel for kernel in kernels(rows=16, max_rows=16) if supported(kernel, holder)]
    assert {"reference", "blockwise"} <= {kernel.name for kernel in run}
    for kernel in run:
        actual = gradient(kernel, holder, dtype, dtype)
        assert actual.dtype == dtype
        assert_rounded_once(actual, exact, sums=5e-5 if holder[0] is KLDivergence else 1e-5)  # terms of it cancel


def columns(W):
    return W.columns([0, 1, 5, 30, 31, 69])


CALLS = {  # several passes over the matrix each, whose gradients are added up
    "columns": columns,
    "log of columns": lambda W: columns(W).log(),
    "rows of different heads": lambda W: W[[0, 1, 1, 0], [0, 1, 2, 3], [4, 8, 0, 9]],
    "cells": lambda W: W[0, :, [60, 60, 60, 60, 40, 50], [0, 40, 41, 42, 20, 5]],
    "heads that share a key": lambda W: W.at(heads=[0, 1, 2, 3, 3, 3]).entropy(),
    "a head often": lambda W: W.at(heads=[1] * 300, queries=[2] * 20).lse(),
    "transposed top": lambda W: W.mT.topk(5).values,
    "divergence": lambda W: W.detach().measure(KLDivergence(W.at(queries=list(range(QUERIES))[::-1])))["kl_divergence"],
}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kernel", [None, Blockwise(replace(CPU, rows=16, max_rows=16))], ids=["default", "blocks"])
def test_gradients_of_several_passes_are_rounded_once(call, dtype, kernel):
    random = torch.Generator().manual_seed(0)
    shapes = (BATCH, HEADS, QUERIES, DIM), (BATCH, 1, KEYS, DIM), (8, HEADS)
    halves = [torch.randn(shape, generator=random).to(dtype) for shape in shapes]

    def gradients(to):
        query, key, table = leaves = [half.to(to).requires_grad_() for half in halves]
        result = CALLS[call](weights(query, key, score=DOT + T5RelativeBias(table), kernel=kernel))
        upstream = torch.linspace(1, 9, result.numel()).view(result.shape).to(result.dtype)
        return torch.autograd.grad(result, leaves, upstream)

    for actual, exact in zip(gradients(dtype), gradients(torch.float64), strict=True):
        assert_rounded_once(actual, exact)


def test_the_product_with_a_vector_that_texts_share():
    query, key = torch.randn(2, 40, 2, 5, DIM).to(torch.bfloat16).unbind()
    x = torch.linspace(-1, 1, 5).to(torch.bfloat16)

    def gradient(to):
        leaf = x.to(to).requires_grad_()
        result = weights(query.to(to), key.to(to)) @ leaf
        assert result.dtype == to
        return torch.autograd.grad(
            result, leaf, torch.linspace(-1, 1, result.numel()).view(result.shape).round(decimals=1).bfloat16().to(to)
        )[0]

    assert_rounded_once(gradient(torch.bfloat16), gradient(torch.float64))


def test_gradients_in_a_compiled_program_are_rounded_once():
    holder = (T5RelativeBias, "table")
    tensors, stored = random_tensors(HOLDERS[holder][0], torch.bfloat16)

    def gradient(to, compiled):
        query, key, value = (x.to(to) for x in tensors.values())
        table = stored.to(to).requires_grad_()

        def call(table):
            score = DOT + T5RelativeBias(table, max_distance=40)
            return attend(query, key, value, score=score, scale=0.1, measure="lse").measured["lse"]

        call = torch.compile(call, backend="aot_eager", fullgraph=True) if compiled else call
        return torch.autograd.grad(call(table).sum(), table)[0]

    assert_rounded_once(gradient(torch.bfloat16, True), gradient(torch.float64, False))
