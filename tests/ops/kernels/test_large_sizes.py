"""Random calls of 131 to 700 queries and keys, multiples of nothing, compared with the definition in float64."""

from __future__ import annotations

import random

import pytest
import torch

from helpers.ops.cases import SCORES, allowed, mask, masks_of, measures
from helpers.ops.dense_reference import ADDED_ONE_BY_ONE, definition
from helpers.pairwise import everything
from regard.ops import attend
from regard.ops.kernels.blockwise import Blockwise
from regard.ops.kernels.native.kernel import Native
from regard.ops.scores.base import Score
from regard.ops.tree import subtrees

COUNT = 400 if everything() else 10
DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float16)


def scores_of(kernel):
    """The names of the scores that a kernel takes."""
    rules = {name: case.rule(case.tensors(2, 3, 4, 5)) for name, case in SCORES.items()}
    return [
        name
        for name, rule in rules.items()
        if all(kernel.supports(type(part)) for part in subtrees(rule) if isinstance(part, Score))
    ]


def draw(seed):
    """The settings of a call."""
    draw = random.Random(seed)
    kernel = draw.choice([Native(), Native(), Blockwise()])
    score = draw.choice([name for name in scores_of(kernel) if "alone" not in name and name != "relative of heads"])
    return {
        "kernel": kernel,
        "mask": draw.choice(masks_of(kernel)),
        "score": score,
        "heads": draw.choice([(1, 1), (2, 1), (4, 2), (3, 3)]),
        "queries": draw.randint(131, 700) if draw.random() < 0.9 else draw.randint(1, 5),
        "keys": draw.randint(131, 700),
        "dim": draw.randint(1, 16) if score.startswith("additive") else draw.randint(1, 80),
        "value_dim": draw.randint(1, 80),
        "offset": draw.randint(-50, 300),
        "dtype": draw.choice(DTYPES),
        "measures": draw.sample(sorted(measures(9, 12)), 4),
        "batch": draw.randint(1, 2),
    }


def results(output, measured):
    """All results by name; the indices of the strongest keys are left out."""
    parts = {"output": output}
    for name, result in measured.items():
        for number, part in enumerate(result if isinstance(result, tuple) else (result,)):
            if part.is_floating_point():
                parts[f"{name} {number}"] = part
    return parts


@pytest.mark.parametrize("seed", range(COUNT))
def test_a_random_call_equals_the_definition(seed):
    drawn = draw(seed)
    (heads, kv_heads), queries, keys, offset = (drawn[each] for each in ("heads", "queries", "keys", "offset"))
    batch, dim, dtype, kernel = (drawn[each] for each in ("batch", "dim", "dtype", "kernel"))
    generator = torch.Generator().manual_seed(seed)
    shapes = (heads, queries, dim), (kv_heads, keys, dim), (kv_heads, keys, drawn["value_dim"])
    leaves = [torch.randn(batch, *shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]
    case = SCORES[drawn["score"]]
    tensors = {name: x.to(dtype).requires_grad_() for name, x in case.tensors(heads, queries, keys, dim).items()}
    exact = [x.detach().double().requires_grad_() for x in (*leaves, *tensors.values())]
    exact_tensors = dict(zip(tensors, exact[3:], strict=True))

    builtin = measures(queries, keys)
    requested = {name: builtin[name] for name in drawn["measures"]}
    if isinstance(kernel, Native):
        requested = {name: measure for name, measure in requested.items() if kernel.supports(type(measure))}
    rule = mask(drawn["mask"], batch, heads, queries, keys)
    cells = allowed(drawn["mask"], batch, heads, queries, keys, offset)
    att = attend(*leaves, mask=rule, score=case.rule(tensors), measure=requested, offset=offset, kernel=kernel.name)
    output, _, _, measured = definition(
        *exact[:3],
        cells,
        offset,
        lambda q, k, distance: case.dense(exact_tensors, q, k, distance),
        exact_tensors.get("sinks"),
    )
    actual = results(att.output, att.measured)
    expected = results(output, {name: measured[name] for name in requested})
    loss, exact_loss = [], []
    for name, reference in expected.items():
        result, finite = actual[name], reference.isfinite()
        assert torch.equal(result.double()[~finite], reference[~finite]), (drawn, name)
        largest = max(1.0, reference[finite].abs().max().item()) if finite.any() else 1.0
        limit = max(3e-6 * ADDED_ONE_BY_ONE.get(name.split(" ")[0], 1), torch.finfo(result.dtype).eps) * largest
        error = torch.where(finite, result.double() - reference, 0.0).abs().max().item()
        assert error <= limit, (drawn, name, error, limit)
        upstream = torch.linspace(-1, 1, reference.numel()).view(reference.shape).to(result.dtype)
        loss.append((torch.where(finite, result, 0.0), upstream))
        exact_loss.append((torch.where(finite, reference, 0.0), upstream.double()))
    pairs = (
        torch.autograd.grad(
            [part for part, _ in each],
            of,
            [upstream for _, upstream in each],
            allow_unused=True,
            materialize_grads=True,
        )
        for each, of in ((loss, [*leaves, *tensors.values()]), (exact_loss, exact))
    )
    for name, result, reference in zip(["query", "key", "value", *tensors], *pairs, strict=True):
        reference = (
            reference.to(result.dtype).double() if reference.abs().max() > torch.finfo(result.dtype).max else reference
        )
        finite = reference.isfinite()  # in float16, a sum may be infinite
        largest = max(reference[finite].abs().max().item(), 1.0 if name in tensors else 0.1)  # of a sum that cancels
        error = torch.where(finite, result.double() - reference, 0.0).abs().max().item()
        assert torch.equal(result.double()[~finite], reference[~finite]), (drawn, name)
        assert error <= max(2e-5, torch.finfo(result.dtype).eps) * largest, (drawn, name, error, largest)
