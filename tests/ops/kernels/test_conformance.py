"""Every kernel gives what the definition says: outputs, answers and gradients, whatever the rules, dtype and shape."""

from __future__ import annotations

import re
from math import inf

import pytest
import torch

from ops.definition import ADDED_ONE_BY_ONE, definition
from ops.rules import SCORES, allowed, masks, measures
from pairwise import pairwise
from regard.errors import KernelNotSupported
from regard.ops import attend
from regard.ops.kernels import sparse
from regard.ops.kernels.base import Kernel, KernelInputs
from regard.ops.kernels.dispatch import KERNELS
from regard.ops.request import make_request

SHAPES = {  # batch, heads, kv_heads, queries, keys, head_dim, value_dim
    "plain": (2, 4, 4, 33, 33, 8, 8),
    "one query": (2, 4, 4, 1, 20, 8, 8),
    "one key": (1, 2, 2, 5, 1, 4, 4),
    "one of each": (1, 1, 1, 1, 1, 1, 1),
    "group_pool": (2, 6, 2, 20, 31, 8, 5),
    "one kv head": (3, 4, 1, 17, 9, 4, 8),
    "blocks": (1, 2, 1, 300, 270, 4, 6),
    "more queries than keys": (1, 2, 2, 40, 13, 4, 4),
}
OFFSETS = {"default": None, "zero": 0, "ahead": 7, "behind": -6}
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
REFUSALS = (
    "it takes up to 128 queries and keys, not 300",
    "it does not know the score (General|Additive|SoftCap|Sum|Bias|Relative|Sinks|ScoreOfHeads|Cosine)$",
)


def name(value):
    return str(value).removeprefix("torch.")


def tensors(shape, dtype):
    batch, heads, kv_heads, queries, keys, head_dim, value_dim = SHAPES[shape]
    random = torch.Generator().manual_seed(1)
    # Not contiguous: the layout that projecting and splitting heads leaves behind.
    sizes = (queries, heads, head_dim), (keys, kv_heads, head_dim), (keys, kv_heads, value_dim)
    made = (torch.randn(batch, *size, generator=random, dtype=torch.float64) for size in sizes)
    return [tensor.to(dtype).transpose(1, 2).requires_grad_() for tensor in made]


def found(results, leaves):
    """The results, and the gradients of one number that depends on every finite entry of them."""
    finite = [part.masked_fill(~part.isfinite(), 0.0).double() for parts in results.values() for part in parts]
    loss = sum((part * torch.linspace(0.5, 1.5, part.numel()).view(part.shape)).sum() for part in finite)
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return results | {f"gradient of {name}": (part,) for name, part in zip(leaves, gradients, strict=True)}


def check(ours, dense, exact, dtype, largest=0.0):
    """In float64 equal to 1e-12; else at most twice as far from the truth as dense torch in the same dtype.

    Where the last digits decide, eight units of the last place are allowed: which of two is nearer is chance there. So
    is it for the sums over all cells that gradients of shared tensors are, with a few more digits, and for sums that a
    product adds one by one, in an order that its library chooses for the processor. The last digits of the largest
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
            digits = 2**-17 if name.startswith("gradient") else 2**-19 if name in ADDED_ONE_BY_ONE else 2**-20
            digits *= 2 if name == "gradient of t" else 1  # one bucket has most of some 90,000 cells, added in a row
            floor = 1e-12 if dtype == torch.float64 else max(8 * torch.finfo(mine.dtype).eps, digits, 2 * other)
            assert error <= max(floor, of_scores), (name, error, other)


RULES = list(masks(1, 1, 33, 33)), list(SCORES), list(OFFSETS), DTYPES
GRAPHS = ["neighbours", "neighbours and", "no edges"]


@pytest.mark.parametrize(
    "kernel", [kernel for kernel in KERNELS if kernel.name != "sparse"], ids=lambda kernel: kernel.name
)
@pytest.mark.parametrize(("shape", "mask", "score", "offset", "dtype"), pairwise(list(SHAPES), *RULES), ids=name)
def test_a_kernel_gives_what_the_definition_says(kernel, shape, mask, score, offset, dtype):
    compare(kernel, shape, mask, score, offset, dtype)


@pytest.mark.parametrize(
    ("shape", "mask", "score", "offset", "dtype"), pairwise(list(SHAPES), GRAPHS, *RULES[1:]), ids=name
)
def test_so_does_the_kernel_for_graphs(monkeypatch, shape, mask, score, offset, dtype):
    monkeypatch.setattr(sparse, "SPARSE", 0)  # also where most cells are edges
    compare(next(kernel for kernel in KERNELS if kernel.name == "sparse"), shape, mask, score, offset, dtype)


HUGE = [("and", score) for score in SCORES] + [(mask, "scaled_dot") for mask in RULES[0]]
HUGE_ON_GRAPHS = [("neighbours and", score) for score in SCORES] + [(mask, "scaled_dot") for mask in GRAPHS]


@pytest.mark.parametrize(
    ("kernel", "rules", "dtype"),
    pairwise([kernel for kernel in KERNELS if kernel.name != "sparse"], HUGE, DTYPES[:3])
    + pairwise([kernel for kernel in KERNELS if kernel.name == "sparse"], HUGE_ON_GRAPHS, DTYPES[:3]),
    ids=lambda value: value.name if isinstance(value, Kernel) else name(value),
)
def test_huge_scores_cost_no_more_than_their_own_last_digits(monkeypatch, kernel, rules, dtype):
    monkeypatch.setattr(sparse, "SPARSE", 0)
    compare(kernel, "plain", *rules, "default", dtype, times=1e4)


def compare(kernel, shape, mask, score, offset, dtype, times=None):
    """Where `times` is given, the score's own tensors are so many times as large, or the query where it has none."""
    query, key, value = tensors(shape, dtype)
    batch, heads, _, queries, keys, head_dim, _ = SHAPES[shape]
    case, rule = SCORES[score], masks(batch, heads, queries, keys)[mask]
    made = case.tensors(heads, queries, keys, head_dim)
    held = {name: (tensor * (times or 1)).to(dtype).requires_grad_() for name, tensor in made.items()}
    if times and not held:
        query = (query.detach() * times).requires_grad_()
    shift = keys - queries if OFFSETS[offset] is None else OFFSETS[offset]
    cells = allowed(mask, batch, heads, queries, keys, shift)
    known = kernel.measures
    asked = {name: m for name, m in measures(queries, keys).items() if known is None or type(m) in known}
    given = {"mask": rule, "score": case.rule(held), "offset": OFFSETS[offset]}
    reasons = list(kernel.why_not(KernelInputs(make_request(query, key, **given), value, asked)))
    if reasons:
        with pytest.raises(KernelNotSupported) as error:
            attend(query, key, value, **given, measure=asked, kernel=kernel.name)
        assert all(any(re.search(known, reason) for known in REFUSALS) for reason in reasons), reasons
        assert reasons[0] in str(error.value)
        return

    leaves = {"query": query, "key": key, "value": value, **held}
    answers = {}
    for precise in (False, True):
        exact = {n: t.detach().to(torch.float64 if precise else dtype).requires_grad_() for n, t in leaves.items()}
        names = {name: exact[name] for name in held}
        output, _, scores, all_said = definition(
            exact["query"], exact["key"], exact["value"], cells, shift, case, names
        )
        answers[precise] = found({"output": (output,)} | {name: all_said[name] for name in asked}, exact)
    att = attend(query, key, value, **given, measure=asked, kernel=kernel.name)
    assert att.output.dtype == dtype
    said = {name: answer if isinstance(answer, tuple) else (answer,) for name, answer in att.measured.items()}
    said |= {"topk": said["topk"][:1]} if "topk" in said else {}
    largest = scores.detach().masked_fill(scores == -inf, 0.0).abs().max().item() if times else 0.0
    check(found({"output": (att.output,)} | said, leaves), answers[False], answers[True], dtype, largest)
