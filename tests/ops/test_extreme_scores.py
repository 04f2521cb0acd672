"""The mask alone decides which keys are visible, for all finite scores: up to 3e38, or 1e300 in float64."""

from __future__ import annotations

from functools import cache
from itertools import product
from math import inf

import pytest
import torch
from torch import Tensor

from helpers.ops.cases import Total, allowed, kernels, masks, masks_of
from helpers.pairwise import grouped, pairwise
from regard.ops import attend
from regard.ops.indexing import SelectCells
from regard.ops.kernels.native.kernel import Native
from regard.ops.masks import Causal, Neighbors, Padding, to_dense
from regard.ops.measures import Entropy, LogSumExp, Max, Received, TopK
from regard.ops.scores import Bias, ScaledDotProduct, Score, Sinks
from regard.ops.tile import Tile

BATCH, HEADS, QUERIES, KEYS = SHAPE = 2, 2, 9, 12
REQUESTED = {"entropy": Entropy(), "lse": LogSumExp(), "received": Received(), "max": Max(), "topk": TopK(4)}
REQUESTED |= {"cells": SelectCells("weights", slice(None))}
RULES = masks(*SHAPE)
BIGGEST = {torch.float32: 3e38, torch.float64: 1e300}


class Table(Score):
    """A user's score that looks its numbers up."""

    table: Tensor

    def __call__(self, query: Tensor, key: Tensor, scale: float, tile: Tile) -> Tensor:
        return tile.slice(self.table).to(query.dtype)


PATTERNS = {  # of a row, as multiples of the biggest score
    "lowest": [-1.0] * 12,
    "highest": [1.0] * 12,
    "lowest and highest": [-1.0, 1.0, -1.0] * 4,
    "rising": [2 * j / 11 - 1 for j in range(12)],
    "moderately low": [-1e-7, -2e-7, -1e-7, -3e-7] * 3,
    "ordinary and lowest": [0.0, -1.0, 0.0, -0.5] * 3,
    "masked ones highest": None,
}
FORMS = {  # where scores come from: the product of query and key, or a table
    "product": lambda table, sinks: None,
    "bias": lambda table, sinks: Bias(table),
    "bias and sinks": lambda table, sinks: Sinks(Bias(table), sinks),
    "own": lambda table, sinks: Table(table),
}
FORMS_OF = {
    "native": ["product"],
    "sdpa": ["product"],
    "sparse": ["product", "bias", "bias and sinks"],
}
KERNELS = {kernel.name: kernel for kernel in kernels(rows=5)}
RUNNING, GRAPHS = ["blockwise", "reference", "sparse"], ["neighbors", "neighbors and", "no edges"]
REST = list(PATTERNS), list(BIGGEST), range(len(FORMS))


@cache
def cells_of(mask):
    return allowed(mask, *SHAPE, KEYS - QUERIES)


def oracle(scores, cells, value, sinks=None):
    """The definition in float64: measures by name, and the scores with −∞ in each cell that is forbidden."""
    cells = cells & (scores > -inf)
    masked = scores.masked_fill(~cells, -inf)
    sink = scores.new_full((), -inf) if sinks is None else sinks[:, None]
    highest = torch.maximum(masked.detach().amax(-1), sink.detach())
    highest = highest.where(highest > -inf, 0.0)
    # Forbidden cells are replaced before exp, so that autograd never multiplies their zeros by infinity.
    numerator = torch.where(cells, (scores.where(cells, 0.0) - highest[..., None]).exp(), 0.0)
    denominator = numerator.sum(-1) + (sink - highest).exp()
    denominator = denominator.where(denominator > 0, 1.0)
    P = numerator / denominator[..., None]
    measures = {
        "output": P @ value,
        "weights": P,
        "entropy": -(P * P.where(P > 0, 1.0).log()).sum(-1),
        "lse": torch.where(cells.any(-1) | (sink > -inf), denominator.log() + highest, -inf),
        "received": P.sum(-2),
        "max weight": P.amax(-1),
        "max score": masked.amax(-1),
        "topk": P.sort(-1, descending=True).values[..., :4],
    }
    return measures, masked


def measures_of(attended):
    actual = {"output": attended.output, "weights": attended.weights.dense(), **attended.measured}
    actual["weights"] = actual.pop("cells", actual["weights"])
    if "max" in actual:
        actual["max weight"], actual["max score"] = actual.pop("max")
        actual["topk"], actual["indices"] = actual.pop("topk")
    return actual


def gradients(measures, leaves):
    """Gradients of a small multiple of the sum of the measures, so that none leaves the range of float32."""
    finite = [part.double().masked_fill(~part.isfinite(), 0.0) for part in measures]
    loss = sum((part * torch.linspace(0.5, 1.5, part.numel()).view(part.shape)).sum() for part in finite) / 1024
    return torch.autograd.grad(loss, list(leaves), allow_unused=True, materialize_grads=True)


def close(name, actual, expected, rtol, atol):
    """The same infinities, and else equal but for the last digits."""
    infinite = ~expected.isfinite()
    assert torch.equal(actual.double()[infinite], expected[infinite]), name
    pair = (part.detach().double().masked_fill(infinite, 0.0) for part in (actual, expected))
    torch.testing.assert_close(*pair, rtol=rtol, atol=atol, msg=lambda text: f"{name}: {text}")


def check(kernel, form, mask, pattern, dtype, holes=False):
    """Compare all that a kernel gives with the oracle."""
    random = torch.Generator().manual_seed(0)
    cells, row, biggest = cells_of(mask), PATTERNS[pattern], BIGGEST[dtype]
    numbers = 1.0 - 2.0 * cells.double() if row is None else torch.tensor(row, dtype=torch.float64).expand(SHAPE)
    table = (numbers * biggest).to(dtype)
    if holes:
        table = table.masked_fill(torch.rand(SHAPE, generator=random) < 0.3, -inf)
    of_key = table[:, :1, 0, :, None] if form == "product" else torch.zeros(BATCH, 1, KEYS, 1, dtype=dtype)
    leaves = {
        "query": torch.ones(BATCH, HEADS, QUERIES, 1, dtype=dtype),
        "key": of_key.contiguous(),
        "value": torch.randn(BATCH, 1, KEYS, 3, generator=random).to(dtype),
        "table": table,
        "sinks": torch.tensor([-1e5, 1e5], dtype=dtype),
    }
    query, key, value, table, sinks = (tensor.requires_grad_() for tensor in leaves.values())
    requested = {name: m for name, m in REQUESTED.items() if KERNELS[kernel].supports(type(m))}
    score = FORMS[form](table, sinks)
    attended = attend(
        query, key, value, mask=RULES[mask], score=score, scale=1.0, measure=requested, kernel=KERNELS[kernel]
    )
    actual = measures_of(attended)

    exact = {name: tensor.detach().double().requires_grad_() for name, tensor in leaves.items()}
    scores = (exact["query"] @ exact["key"].mT).expand(SHAPE) if form == "product" else exact["table"]
    reference, masked = oracle(scores, cells, exact["value"], exact["sinks"] if "sinks" in form else None)
    digits = 1e-12 if dtype == torch.float64 else 1e-6
    assert (actual["weights"][masked == -inf] == 0).all()
    close("scores", attended.weights.scores.dense(), masked, digits, 0.0)
    for name in actual.keys() & reference.keys():
        close(name, actual[name], reference[name], digits, digits)
    if "indices" in actual:
        at = actual["indices"]
        assert torch.equal((at >= 0).sum(-1), (masked > -inf).sum(-1).clamp(max=4))
        assert torch.zeros(SHAPE).scatter_add(-1, at.clamp(min=0), (at >= 0).float()).max() <= 1  # each once
        assert torch.equal(masked.gather(-1, at.clamp(min=0)).where(at >= 0, -inf), masked.topk(4, -1).values)
    names = {"output", "entropy", "lse", "received"} & actual.keys()
    if pattern == "rising" and "topk" in actual:  # else which of the highest gets the gradient is anyone's choice
        names |= {"max weight", "max score", "topk"}
    pairs = (
        gradients([by[name] for name in sorted(names)], of.values())
        for by, of in ((actual, leaves), (reference, exact))
    )
    for name, result, expected in zip(leaves, *pairs, strict=True):
        size = biggest if name == "query" and form == "product" else 1.0  # the sum of scores, each times a small number
        close(f"gradient of {name}", result, expected, digits, digits / 64 * size)


@pytest.mark.parametrize(
    ("kernel", "pattern", "cases"),
    grouped(
        pairwise([kernel for kernel in KERNELS if kernel not in ("sparse", "native")], *REST, list(RULES))
        + pairwise(["sparse"], *REST, GRAPHS)
        + pairwise(["native"], list(PATTERNS), [torch.float32], range(1), masks_of(Native())),
        2,
    ),
)
def test_the_mask_alone_decides_whatever_the_scores(kernel, pattern, cases, subtests):
    forms = FORMS_OF.get(kernel, list(FORMS))
    for dtype, form, mask in cases:
        with subtests.test(dtype=dtype, form=forms[form % len(forms)], mask=mask):
            check(kernel, forms[form % len(forms)], mask, pattern, dtype)


@pytest.mark.parametrize(("kernel", "pattern", "cases"), grouped(pairwise(RUNNING, *REST, GRAPHS[:2]), 2))
def test_a_score_of_minus_infinity_forbids_a_cell_among_the_lowest_scores(kernel, pattern, cases, subtests):
    forms = [form for form in FORMS_OF.get(kernel, FORMS) if form != "product"]
    for dtype, form, mask in cases:
        with subtests.test(dtype=dtype, form=forms[form % len(forms)], mask=mask):
            check(kernel, forms[form % len(forms)], mask, pattern, dtype, holes=True)


GRAPH = Neighbors(*torch.tensor([[i, j] for i in range(QUERIES) for j in range(KEYS) if (i * j) % 3 != 1]).T)


@pytest.mark.parametrize("kernel", RUNNING)
def test_sinks_lose_no_digits_where_they_or_the_scores_are_large(kernel, subtests):
    logits = (-1e5, -1e5 + 3), (-10.0, 8.0), (1e5, 1e5 - 1), (-1e5, 1e5)
    for scores, sinks in product((-1e5, -10.0, 0.0, 1e5), logits):
        with subtests.test(scores=scores, sinks=sinks):
            check_sinks(kernel, scores, sinks)


def check_sinks(kernel, scores, sinks):
    random = torch.Generator().manual_seed(0)
    query, logits = torch.ones(1, HEADS, QUERIES, 1).requires_grad_(), torch.tensor(sinks).requires_grad_()
    key = (scores + torch.randint(-8, 8, (1, HEADS, KEYS, 1), generator=random) / 4).requires_grad_()
    value = torch.randn(1, HEADS, KEYS, 3, generator=random)
    mask = Causal() & GRAPH & Padding(torch.tensor([KEYS - 2]))
    score, requested = Sinks(ScaledDotProduct(), logits), ["entropy", "lse", "received", "max", TopK(4)]
    actual = measures_of(
        attend(query, key, value, mask=mask, score=score, scale=1.0, measure=requested, kernel=KERNELS[kernel])
    )

    exact = [tensor.detach().double().requires_grad_() for tensor in (query, key, logits)]
    cells = to_dense(mask, (1, HEADS, QUERIES, KEYS))
    reference, _ = oracle(exact[0] @ exact[1].mT, cells, value.double(), exact[2])
    for name in ("weights", "entropy", "lse", "received", "max weight", "topk", "output"):
        cancels = name in ("entropy", "output")  # as positive and negative terms do
        close(name, actual[name], reference[name], rtol=1e-6, atol=5e-7 if cancels else 1e-30)
    pairs = (
        gradients([measures[name] for name in ("output", "entropy", "lse", "received")], of)
        for measures, of in ((actual, (query, key, logits)), (reference, exact))
    )
    for result, expected, size in zip(*pairs, (max(1.0, abs(scores)), 1.0, 1.0), strict=True):
        close("gradient", result, expected, rtol=1e-5, atol=1e-8 * size)


@pytest.mark.parametrize("kernel", ["blockwise", "reference"])
def test_a_measure_may_multiply_weights_by_scores(kernel, subtests):
    for mask in RULES:
        with subtests.test(mask=mask):
            check_product_with_scores(mask, kernel)


def check_product_with_scores(mask, kernel):
    random = torch.Generator().manual_seed(0)
    plain = torch.randint(-9, 4, (BATCH, HEADS, KEYS, 1), generator=random) / 9
    query = torch.ones(BATCH, HEADS, QUERIES, 1)
    for size in (1.0, 1e38):
        key = (plain * size).requires_grad_()
        inputs = {"mask": RULES[mask], "scale": 1.0, "measure": Total(), "kernel": KERNELS[kernel]}
        actual = attend(query, key, key, **inputs).measured["total"]
        exact = key.detach().double().requires_grad_()
        scores = (query.double() @ exact.mT).expand(SHAPE)
        reference = (oracle(scores, cells_of(mask), exact)[0]["weights"] * scores).sum((-1, -2))
        close("total", actual, reference, rtol=1e-5, atol=1e-5 * size)
        pairs = (torch.autograd.grad(measure.sum(), leaf) for measure, leaf in ((actual, key), (reference, exact)))
        for result, expected in zip(*pairs, strict=True):
            close("gradient", result, expected, rtol=1e-4, atol=1e-5 * size)


@pytest.mark.parametrize("kernel", RUNNING)
@pytest.mark.parametrize("part", ["weight", "score"])
def test_a_loss_on_the_maximum_may_train_sinks_alone(kernel, part):
    random = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, HEADS, tokens, 4, generator=random) for tokens in (QUERIES, KEYS))
    logits = torch.tensor([0.5, -1.0]).requires_grad_()
    score = Sinks(ScaledDotProduct(), logits)
    actual = attend(query, key, key, mask=GRAPH, score=score, measure="max", kernel=KERNELS[kernel]).measured["max"]
    (result,) = torch.autograd.grad(getattr(actual, part).sum() + 0.0 * logits.sum(), logits)

    exact = logits.detach().double().requires_grad_()
    cells = to_dense(GRAPH, (1, HEADS, QUERIES, KEYS))
    reference, _ = oracle(query.double() @ key.double().mT / 2, cells, key.double(), exact)
    (expected,) = torch.autograd.grad(reference[f"max {part}"].sum() + 0.0 * exact.sum(), exact)
    close("gradient", result, expected, rtol=1e-5, atol=1e-6)
