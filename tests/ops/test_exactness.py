"""Properties of all weights: as exact as dense torch, NaN only where it belongs, and the laws of softmax."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.ops.cases import SCORES, allowed, kernels, masks, masks_of, measures
from helpers.ops.dense_reference import ADDED_ONE_BY_ONE, definition
from regard.analysis import rollout
from regard.ops import attend, weights
from regard.ops.masks import Causal, DenseMask, Neighbors
from regard.ops.measures import BlockMean, DistanceHistogram, TopK
from regard.ops.scores import Bias, ScaledDotProduct

MASKS = list(masks(1, 1, 1, 1))
OF_SOME_CELLS = ("diagonal", "mass")
"""Measures that are 0 in a row of NaN where all of their cells are masked."""
GRAPHS = ["neighbors", "neighbors and", "no edges"]


def builtin(queries, keys):
    return {name: measure for name, measure in measures(queries, keys).items() if measure.builtin}


def first_of(results):
    """The results by name, without second tensors: indices of the strongest keys, and the highest scores."""
    return {name: result[0] if isinstance(result, tuple) else result for name, result in results.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [0.01, 1.0, 10.0], ids=["flat", "ordinary", "peaked"])
def test_with_4096_keys_errors_are_at_most_twice_those_of_dense_torch(size, dtype):
    random = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 1, n, 64, generator=random) for n in (512, 4096, 4096))
    tensors = [tensor.to(dtype) for tensor in (query * size, key, value)]
    cells = torch.ones(1, 1, 512, 4096, dtype=torch.bool).tril(4096 - 512)
    dense = {}
    for each in {torch.float64, torch.float32, dtype}:
        output, _, _, measured = definition(*(tensor.to(each) for tensor in tensors), cells, 4096 - 512)
        dense[each] = first_of({"output": output, "output alone": output, "highest": measured["max"][1]} | measured)
    att = attend(*tensors, mask=Causal(), measure=builtin(512, 4096))
    others = {"output alone": attend(*tensors, mask=Causal()).output, "highest": att.measured["max"].score}
    for name, actual in first_of({"output": att.output} | others | att.measured).items():
        exact, peer = dense[torch.float64][name], dense[actual.dtype][name]  # measures are never in bfloat16
        error, other = ((x.double() - exact).norm().item() for x in (actual, peer))
        last_digits = 2 * torch.finfo(actual.dtype).eps * exact.norm().item()  # which of two is nearer is chance there
        assert error <= max(ADDED_ONE_BY_ONE.get(name, 2) * other, last_digits), (name, error, other)


def exact_for(kernel):
    """The most exact dtype of a kernel, and how far two of its results may differ."""
    return (torch.float64, 1e-12) if torch.float64 in kernel.dtypes else (torch.float32, 1e-5)


def graph_of(kernel, cells):
    """A mask of these cells that the kernel supports."""
    return Neighbors(*cells.nonzero().T) if kernel.supports(Neighbors) else DenseMask(cells.bool())


DEFINED = [kernel for kernel in kernels(rows=4) if kernel.propagates_nan]


def by_row(kernel, tensors, **rules):
    """Everything that the kernel computes by row for 9 rows and 12 keys, and which rows are NaN."""
    measures = {
        name: measure
        for name, measure in builtin(9, 12).items()
        if measure.axis == "queries" and kernel.supports(type(measure))
    }
    tensors = [tensor.clone().requires_grad_() for tensor in tensors]
    att = attend(*tensors, **rules, measure=measures, kernel=kernel)
    results = first_of({"output": att.output} | att.measured)
    return results, {name: x.isnan() if x.ndim == 3 else x.isnan().any(-1) for name, x in results.items()}


@pytest.mark.parametrize("where", ["query", "key", "value"])
@pytest.mark.parametrize("kernel", DEFINED, ids=lambda kernel: kernel.name)
def test_nan_reaches_the_rows_that_may_see_it_and_no_other(kernel, where, subtests):
    for mask in masks_of(kernel):
        with subtests.test(mask=mask):
            check_nan(kernel, mask, where)


def check_nan(kernel, mask, where):
    random, (dtype, tolerance) = torch.Generator().manual_seed(0), exact_for(kernel)
    tensors = {
        name: torch.randn(2, 2, tokens, 4, generator=random, dtype=torch.float64).to(dtype)
        for name, tokens in (("query", 9), ("key", 12), ("value", 12))
    }
    rule, cells = masks(2, 2, 9, 12)[mask], allowed(mask, 2, 2, 9, 12, 3)
    clean, _ = by_row(kernel, tensors.values(), mask=rule)
    tensors[where][:, :, 5, 1] = nan
    reached = cells.any(-1) & (torch.arange(9) == 5) if where == "query" else cells[..., 5]
    results, nans = by_row(kernel, tensors.values(), mask=rule)
    if where == "value":  # other rows may be NaN too, as 0 · NaN is
        assert nans.pop("output")[reached].all()
        assert not any(rows.any() for rows in nans.values())
        return
    for name, rows in nans.items():
        assert torch.equal(rows, rows & reached if name in OF_SOME_CELLS else reached), name
        torch.testing.assert_close(results[name][~reached], clean[name][~reached], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kernel", DEFINED, ids=lambda each: each.name)
@pytest.mark.parametrize("number", [-inf, inf])
def test_scores_of_minus_infinity_forbid_and_those_of_infinity_give_nan(kernel, number):
    random, (dtype, tolerance) = torch.Generator().manual_seed(0), exact_for(kernel)
    tensors = [torch.randn(1, 1, tokens, 4, generator=random, dtype=dtype) for tokens in (9, 12, 12)]
    graph, here = graph_of(kernel, torch.ones(9, 12)), torch.zeros(9, 12, dtype=torch.bool)
    here[2, 5] = here[4] = True
    score = ScaledDotProduct() + Bias(torch.zeros(9, 12).masked_fill(here, number))
    forbidden, _ = by_row(kernel, tensors, mask=graph & ~here)
    results, nans = by_row(kernel, tensors, mask=graph, score=score)
    reached = (here.any(-1) & (number > 0)).expand(1, 1, 9)
    for name, rows in nans.items():
        assert torch.equal(rows, rows & reached if name in OF_SOME_CELLS else reached), name
        torch.testing.assert_close(results[name][~reached], forbidden[name][~reached], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "kernel", [kernel for kernel in DEFINED if torch.float64 in kernel.dtypes], ids=lambda each: each.name
)
@pytest.mark.parametrize("number", [-1e31, -1e300])
def test_only_minus_infinity_forbids_however_low_a_score_is(kernel, number):
    random = torch.Generator().manual_seed(0)
    tensors = [torch.randn(1, 1, tokens, 4, generator=random, dtype=torch.float64) for tokens in (9, 12, 12)]
    graph, low = Neighbors(*torch.ones(9, 12).nonzero().T), torch.zeros(9, 12, dtype=torch.bool)
    low[2, 5] = low[4] = True
    score = ScaledDotProduct() + Bias(torch.zeros(9, 12, dtype=torch.float64).masked_fill(low, number))
    forbidden, _ = by_row(kernel, tensors, mask=graph & ~low)
    results, nans = by_row(kernel, tensors, mask=graph, score=score)
    others = torch.arange(9) != 4
    for name, rows in nans.items():
        assert not rows.any(), name
        torch.testing.assert_close(results[name][:, :, others], forbidden[name][:, :, others], rtol=1e-12, atol=1e-12)
    equal(results["output"][0, 0, 4], tensors[2].mean(2)[0, 0])  # all scores are equally low, and all keys visible
    equal(results["entropy"][0, 0, 4], torch.tensor(12, dtype=torch.float64).log())
    equal(results["max"][0, 0, 4], torch.tensor(1 / 12, dtype=torch.float64))
    assert results["lse"][0, 0, 4] == number
    topk = attend(*tensors, mask=graph, score=score, measure=TopK(12), kernel=kernel).measured["topk"]
    assert (topk.indices >= 0).all()
    assert topk.indices[0, 0, 2, -1] == 5


@st.composite
def matrices(draw, scores=tuple(SCORES), square=False):
    """Weights of a random shape with random rules, the cells that these allow, and the sum of each row."""
    batch, heads, kv_heads = draw(st.sampled_from([(1, 1, 1), (2, 2, 2), (3, 4, 2)]))
    queries, keys = (draw(st.integers(1, 40)) for _ in range(2))
    queries = keys if square else queries
    mask, case = draw(st.sampled_from(MASKS)), SCORES[draw(st.sampled_from(scores))]
    offset, size = draw(st.integers(-9, 9)), draw(st.sampled_from([0.1, 1.0, 1e4]))
    random = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    query = torch.randn(batch, heads, queries, 4, generator=random, dtype=torch.float64) * size
    key = torch.randn(batch, kv_heads, keys, 4, generator=random, dtype=torch.float64)
    score_tensors = case.tensors(heads, queries, keys, 4)
    rule = masks(batch, heads, queries, keys)[mask]
    W = weights(query, key, mask=rule, score=case.rule(score_tensors), offset=offset)
    distance = torch.arange(keys) - torch.arange(queries)[:, None] - offset
    scores = case.dense(score_tensors, query, key.repeat_interleave(heads // kv_heads, 1), distance)
    cells = allowed(mask, batch, heads, queries, keys, offset) & (scores > -inf)
    if "sinks" in score_tensors:
        return W, cells, 1 - (score_tensors["sinks"][:, None] - W.lse()).exp()
    return W, cells, cells.any(-1).double()


def equal(one, other):
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("score", SCORES)
@given(data=st.data(), distance=st.integers(0, 9), size=st.integers(1, 9))
def test_rows_sum_to_one_in_every_measure(score, data, distance, size):
    W, _, mass = data.draw(matrices([score]))
    equal(W @ torch.ones(W.shape[3], dtype=W.dtype), mass)
    equal(W.measure(DistanceHistogram(distance))["distance_histogram"].sum(-1), mass)
    equal(W.received().sum(-1), mass.sum(-1))
    rows, keys = (torch.tensor([len(part) for part in torch.ones(n).split(size)], dtype=W.dtype) for n in W.shape[2:])
    equal(rows @ W.measure(BlockMean(size))["block_mean"] @ keys[:, None], mass.sum(-1, keepdim=True))


@pytest.mark.parametrize("score", SCORES)
@given(data=st.data())
def test_entropy_is_between_that_of_one_key_and_that_of_equal_weights(score, data):
    W, cells, mass = data.draw(matrices([score]))
    mass = mass.clamp(min=1e-300)
    entropy = W.entropy()
    assert (entropy > -1e-9).all()
    assert (entropy < mass * (cells.sum(-1).clamp(min=1) / mass).log() + 1e-9).all()


@given(matrices())
def test_the_transpose_is_the_adjoint(drawn):
    W, *_ = drawn
    random = torch.Generator().manual_seed(0)
    y, x = (torch.randn(n, 1, generator=random, dtype=W.dtype) for n in W.shape[2:])
    equal((W.mT @ y).mT @ x, y.mT @ (W @ x))


WITHOUT_POSITIONS = [
    name for name in SCORES if not name.startswith(("bias", "alibi", "t5_bias", "relative", "several"))
]


@given(matrices(WITHOUT_POSITIONS), st.data())
def test_permuted_keys_receive_the_same(drawn, data):
    W, cells, _ = drawn
    query, key, score = W.request.query, W.request.key, W.request.score
    order = data.draw(st.permutations(range(W.shape[3])))
    permuted = weights(query, key[:, :, order], mask=cells[..., order], score=score).received()
    equal(permuted, weights(query, key, mask=cells, score=score).received()[..., order])


@given(matrices(), st.data())
def test_the_strongest_keys_have_the_largest_weights(drawn, data):
    W, cells, _ = drawn
    count, dense = data.draw(st.integers(1, W.shape[3])), W.dense()
    values, indices = W.topk(count)
    equal(values, dense.sort(-1, descending=True).values[..., :count])
    equal(values, dense.gather(-1, indices.clamp(min=0)).where(indices >= 0, 0.0))
    assert torch.equal((indices >= 0).sum(-1), cells.sum(-1).clamp(max=count))


@given(matrices(square=True), st.sampled_from(["mean", "max"]), st.floats(0.01, 0.99))
def test_rows_of_a_rollout_sum_to_one_but_those_of_padding_to_zero(drawn, fusion, residual):
    W, cells, _ = drawn
    sums = rollout([W, W, W], head_fusion=fusion, residual_weight=residual).sum(-1)
    is_attended_to = cells.expand(W.shape).flatten(1, 2).any(1)
    equal(sums, torch.where(is_attended_to, 1.0, sums.round().clamp(0, 1)))
    mask = W.request.mask
    if mask is None or type(mask) is Causal:
        equal(sums, torch.ones_like(sums))


WITHOUT_SINKS = [name for name, case in SCORES.items() if "sinks" not in case.tensors(1, 1, 1, 1)]


@given(matrices(WITHOUT_SINKS), st.floats(-100, 100))
def test_a_constant_added_to_a_row_changes_only_its_log_sum_exp(drawn, far):
    W, *_ = drawn
    request, shift = W.request, torch.linspace(far, 1, W.shape[2], dtype=W.dtype)
    score = request.score + Bias(shift[:, None])
    shifted = weights(request.query, request.key, mask=request.mask, score=score, offset=request.offset)
    before, after = (first_of(each.measure(builtin(*W.shape[2:]))) for each in (W, shifted))
    for name, result in after.items():
        equal(result, before[name] + shift if name == "lse" else before[name])
