"""Rows with a score of NaN or infinity, and rows with an infinite result: the same in every kernel."""

from __future__ import annotations

from itertools import product
from math import inf, nan

import pytest
import torch

from helpers.ops import dense_reference as d
from helpers.ops.cases import kernels
from regard.ops import attend, weights
from regard.ops.kernels.reference import Reference
from regard.ops.masks import Causal, DenseMask, Neighbors, Padding, Window
from regard.ops.measures import (
    BlockMean,
    Diagonal,
    DistanceHistogram,
    GroupPool,
    KLDivergence,
    Mass,
    Received,
    TopK,
    TransposedProduct,
    as_measures,
)
from regard.ops.scores import Bias, ScaledDotProduct, Sinks, SoftCap

DEFINED = [kernel for kernel in kernels(rows=4, max_rows=4) if kernel.propagates_nan]
BATCH, HEADS = 2, 2
SIZES = [(9, 12), (150, 200)]
MASKS = {
    "none": lambda n, m: None,
    "causal": lambda n, m: Causal(),
    "window": lambda n, m: Window(3, 1),
    "padding": lambda n, m: Padding(torch.tensor([m, m // 2])),
    "dense": lambda n, m: DenseMask((torch.arange(n)[:, None] * 3 + torch.arange(m)) % 5 != 2),
}


def cells_of(mask, n, m):
    at = d.grid(BATCH, HEADS, n, m, m - n)
    cells = {
        "none": torch.ones(1, dtype=torch.bool),
        "causal": d.causal(at),
        "window": d.window(at, 3, 1),
        "padding": d.shorter(at, torch.tensor([m, m // 2])),
        "dense": (at.query * 3 + at.key) % 5 != 2,
    }[mask]
    return cells.expand(BATCH, HEADS, n, m)


def tensors(n, m, source):
    """Query, key, value and a bias; two rows, or the rows that see a key, get scores that are not finite."""
    random = torch.Generator().manual_seed(0)
    query, key, value = (torch.rand(BATCH, HEADS, tokens, 8, generator=random) for tokens in (n, m, m))
    bias = torch.randn(n, m, generator=random)
    bias[::3, ::4] = -inf  # forbidden
    if source == "infinite score":
        bias[2], bias[7, 5 :: m // 4] = inf, inf
    elif source == "NaN score":
        bias[4, m - n + 3] = nan
    elif source == "NaN query":
        query[:, :, 5, 2] = nan
    elif source == "infinite query":
        query[:, :1, 3, 1] = inf
    else:
        key[0, 0, m // 2, 4] = nan
    return query, key, value, bias


def definition(query, key, value, bias, cells):
    """Weights: NaN for the visible keys of a row with a visible score that is NaN or infinity, else 0."""
    scores = query.double() @ key.double().mT / 8**0.5 + bias.double()
    visible = cells & ~scores.isneginf()
    bad = (visible & ~scores.isfinite()).any(-1, keepdim=True)
    scores = scores.masked_fill(~visible, -inf)
    P = scores.where(~bad, 0.0).softmax(-1).nan_to_num(0.0)
    return torch.where(bad, torch.where(visible, nan, 0.0), P), bad[..., 0], visible, scores


def measures_of(n, m, kernel, other):
    of_query, of_key = torch.arange(n) // 3 - 1, torch.arange(m) // 4 - 1
    requested = {
        "entropy": "entropy",
        "lse": "lse",
        "max": "max",
        "mean_distance": "mean_distance",
        "topk": TopK(3),
        "mass": Mass(Window(2, 1)),
        "mass of keys": Mass(Padding(torch.tensor([3, 5]))),
        "diagonal": Diagonal(-1),
        "histogram": DistanceHistogram(2),
        "received": "received",
        "received of some": Received(torch.linspace(1, 2, n)),
        "columns": TransposedProduct(torch.linspace(1, 2, 6 * n).view(1, 1, n, 6)),
        "groups": GroupPool(of_query, of_key),
    }
    requested |= {"blocks": BlockMean(5), "divergence": KLDivergence(other)}
    supported = {name: each for name, each in as_measures(requested).items() if kernel.supports(type(each))}
    return supported, (of_query, of_key)


def expected(P, bad, scores, Q, n, m, groups):
    at = d.grid(BATCH, HEADS, n, m, m - n)
    distance = at.key - at.position

    def some(cells):
        return torch.where(cells, P, 0.0).sum(-1)

    def of_row(x):
        return torch.where(bad, nan, x)

    logs = P.where(P > 0, 1.0).log()
    top = P.nan_to_num().sort(-1, descending=True)
    clipped = distance.clamp(-2, 2)
    y = torch.linspace(1, 2, 6 * n).view(1, 1, n, 6).double()
    return {
        "entropy": of_row(-(P * logs).sum(-1)),
        "lse": of_row(scores.logsumexp(-1)),
        "max.weight": of_row(P.amax(-1)),
        "max.score": of_row(scores.amax(-1)),
        "mean_distance": (P * distance.abs()).sum(-1),
        "topk.values": of_row(top.values[..., :3].movedim(-1, 0)).movedim(0, -1),
        "mass": some((distance >= -2) & (distance <= 1)),
        "mass of keys": some(at.key < torch.tensor([3, 5])[:, None, None, None]),
        "diagonal": some(distance == -1),
        "histogram": torch.stack([some(clipped == reach) for reach in range(-2, 3)], -1),
        "received": P.sum(-2),
        "received of some": (P * torch.linspace(1, 2, n).double()[:, None]).sum(-2),
        "columns": torch.stack([(P * y[..., c : c + 1]).sum(-2) for c in range(6)], -1),
        "groups": d.grouped(P, *groups),
        "blocks": d.block_mean(P, 5),
        "divergence": of_row(torch.where(P > 0, P * (logs - Q.log()), 0.0).sum(-1)),
    }


def same(name, actual, exact):
    torch.testing.assert_close(
        actual.double(), exact, rtol=1e-5, atol=1e-5, equal_nan=True, msg=lambda text: f"{name}: {text}"
    )


@pytest.mark.parametrize("source", ["infinite score", "NaN score", "NaN query", "infinite query", "NaN key"])
@pytest.mark.parametrize("kernel", DEFINED, ids=lambda kernel: kernel.name)
def test_visible_weights_are_nan_and_results_follow(kernel, source, subtests):
    for mask, size in product(MASKS, SIZES):
        with subtests.test(mask=mask, size=size):
            check_results(kernel, mask, source, size)


def check_results(kernel, mask, source, size):
    n, m = size
    query, key, value, bias = tensors(n, m, source)
    cells = cells_of(mask, n, m)
    P, bad, visible, scores = definition(query, key, value, bias, cells)
    rule = MASKS[mask](n, m)
    if kernel.required_mask is Neighbors:
        graph = Neighbors(*torch.ones(n, m).nonzero().T)
        rule = graph if rule is None else graph & rule
    clean = query.nan_to_num(0.5, 0.5, 0.5), key.nan_to_num(0.5, 0.5, 0.5)
    other = weights(*clean)
    requested, groups = measures_of(n, m, kernel, other)
    score = ScaledDotProduct() + Bias(bias)
    att = attend(query, key, value, mask=rule, score=score, measure=requested, kernel=kernel)
    assert bad.any()
    same("output", att.output, torch.where(bad[..., None], nan, P.nan_to_num() @ value.double()))
    exact = expected(P, bad, scores, other.dense().double(), n, m, groups)
    actual = {name: result for name, result in att.measured.items() if not isinstance(result, tuple)}
    actual |= {"max.weight": att.measured["max"].weight, "max.score": att.measured["max"].score}
    actual["topk.values"] = att.measured["topk"].values
    for name, result in actual.items():
        same(name, result, exact[name])
    indices = att.measured["topk"].indices
    assert torch.equal(indices == -1, bad[..., None] | (torch.arange(3) >= visible.sum(-1, keepdim=True)))
    W = att.weights
    same("dense", W.dense(), P)
    same("columns", W.columns([0, 3, m - 1]), P[..., [0, 3, m - 1]])
    same("rows", W[1, 0, [2, 3, 7]], P[1, 0, [2, 3, 7]])
    same("selected", W.at(queries=[2, 3, 4, 5, 7]).entropy(), exact["entropy"][..., [2, 3, 4, 5, 7]])


@pytest.mark.parametrize("kernel", DEFINED, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("wrap", [lambda s: Sinks(s, torch.tensor([0.5, -1.0])), lambda s: SoftCap(s, 4.0)])
def test_modified_scores(kernel, wrap):
    query, key, value, bias = tensors(9, 12, "NaN score")
    graph = Neighbors(*torch.ones(9, 12).nonzero().T) & Causal()
    score = wrap(ScaledDotProduct() + Bias(bias.nan_to_num(nan, neginf=0.0)))
    rule = graph if kernel.required_mask is Neighbors else Causal()
    requested = ["entropy", "lse", "max", "received"]
    measured = attend(query, key, value, mask=rule, score=score, measure=requested, kernel=kernel).measured
    row = (torch.arange(9) == 4).expand(2, 2, 9)
    for name in ("entropy", "lse"):
        assert torch.equal(measured[name].isnan(), row)
    assert torch.equal(measured["max"].weight.isnan(), row)
    assert torch.equal(measured["max"].score.isnan(), row)
    assert torch.equal(measured["received"].isnan(), (torch.arange(12) <= 4 + 3).expand(2, 2, 12))


ROW_MEASURES = {
    "divergence": lambda other: KLDivergence(other),
    "lse": lambda other: "lse",
    "max": lambda other: "max",
    "entropy": lambda other: "entropy",
    "topk": lambda other: TopK(3),
    "mean_distance": lambda other: "mean_distance",
    "histogram": lambda other: DistanceHistogram(2),
}


@pytest.mark.parametrize("n", [9, 150])
@pytest.mark.parametrize("kernel", DEFINED, ids=lambda kernel: kernel.name)
def test_rows_with_infinite_results_that_a_loss_leaves_out_have_no_gradient(kernel, n, subtests):
    for measure in ROW_MEASURES:
        if measure != "divergence" or kernel.supports(KLDivergence):
            with subtests.test(measure=measure):
                check_rows_left_out(kernel, n, measure)


def check_rows_left_out(kernel, n, measure):
    random = torch.Generator().manual_seed(0)
    halves = [torch.randn(BATCH, HEADS, n, 8, generator=random) for _ in range(5)]
    visible = torch.ones(n, n, dtype=torch.bool).tril()
    visible[3] = False  # no keys, so lse and highest score are -inf
    of_other = torch.arange(n) != 1  # so the divergence of most rows is infinite

    def gradients(rows, dtype, kernel):
        query, key, value, *others = leaves = [half.to(dtype).requires_grad_() for half in halves]
        other = weights(others[0], others[1], mask=Padding(of_other.expand(BATCH, n)) | DenseMask(keep[:, None]))
        cells = visible
        if rows is not None:
            query, other, cells = query[:, :, rows], other.at(queries=rows.nonzero().flatten()), visible[rows]
        mask = Neighbors(*cells.nonzero().T) if kernel.required_mask is Neighbors else DenseMask(cells)
        results = attend(query, key, value, mask=mask, measure=ROW_MEASURES[measure](other), kernel=kernel).measured
        (result,) = results.values()
        parts = [x for x in (result if isinstance(result, tuple) else (result,)) if x.is_floating_point()]
        if rows is None:
            parts = [part.masked_fill(~keep.view(n, *[1] * (part.ndim - 3)), 0.0) for part in parts]
        loss = sum(part.sum() for part in parts)
        return torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)

    keep = torch.arange(n) % 4 == 0
    exact = gradients(keep, torch.float64, Reference())
    for actual, reference in zip(gradients(None, torch.float32, kernel), exact, strict=True):
        torch.testing.assert_close(actual.double(), reference, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernel", ["reference", "blockwise", "native"])
def test_an_infinite_divergence_in_the_loss_gives_nan_gradients(kernel):
    query, key = torch.randn(2, 1, 1, 6, 4).unbind()
    leaf = query.requires_grad_()
    divergence = KLDivergence(weights(query.detach(), key, mask=DenseMask(torch.arange(6) != 2)))
    actual = attend(leaf, key, key, measure=divergence, kernel=kernel).measured["kl_divergence"]
    assert actual.isinf().all()
    (gradient,) = torch.autograd.grad(actual[0, 0, 3], leaf)
    assert gradient[0, 0, 3].isnan().all()
    assert (gradient[0, 0, [0, 1, 2, 4, 5]] == 0).all()
