"""How far results differ, and how far they may."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch

from regard.diagnostics.calls import Call, difference, parts_of, tolerance, with_gradients
from regard.ops.kernels.native.kernel import Native
from regard.ops.kernels.reference import Reference
from regard.ops.kernels.sdpa import Sdpa
from regard.ops.masks import Causal
from regard.ops.measures import Entropy, Max


@pytest.mark.parametrize(
    ("actual", "expected", "largest"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.2),
        ([0.1, 0.0], [0.1, 0.25], 0.25),  # relative to 1 at least
        ([1.0, inf], [1.0, inf], 0.0),
        ([1.0, -inf], [1.0, inf], inf),
        ([1.0, nan], [1.0, nan], 0.0),
        ([1.0, nan], [1.0, inf], inf),
        ([nan, 1.0], [1.0, 1.0], inf),
        ([1.0, 1.0], [1.0, nan], inf),
        ([inf, nan], [inf, nan], 0.0),
        ([1.0], [1.0, 2.0], inf),
        ([3, 4], [3, 5], 0.2),
    ],
)
def test_the_difference_is_relative_to_the_largest_entry(actual, expected, largest):
    assert difference(torch.tensor(actual), torch.tensor(expected)) == pytest.approx(largest)


def test_the_tolerance_factor_of_a_kernel_applies_in_half_precision():
    half, single = torch.ones(1, dtype=torch.bfloat16), torch.ones(1)
    assert tolerance(half, torch.bfloat16, Sdpa()) == 5 * tolerance(half, torch.bfloat16, Native())
    assert tolerance(single, torch.float32, Sdpa()) == tolerance(single, torch.float32, Native())
    assert tolerance(single, torch.bfloat16, Native()) < tolerance(half, torch.bfloat16, Native())
    assert tolerance(single.double(), torch.float32, Native()) == tolerance(single, torch.float32, Native())


def test_gradients_are_those_of_every_finite_entry():
    leaf = torch.arange(12.0, requires_grad=True)
    results = {"double": 2 * leaf, "masked": 3 * leaf.masked_fill(leaf == 0, -inf), "count": leaf.detach()}
    gradient = with_gradients(results, {"leaf": leaf})["gradient of leaf"]
    factors = torch.tensor([4, 5, 6, 7, 8, 9, 10, 11, 12, 4, 5, 6]) / 8
    assert torch.equal(gradient, factors * torch.tensor([2, *[5] * 11]))


def test_a_call_in_another_dtype_has_leaves_of_its_own():
    tensors = {name: torch.randn(1, 2, 3, 4, requires_grad=True) for name in ("query", "key", "value")}
    call = Call(tensors, lambda own: {"mask": Causal()}, {"entropy": Entropy(), "max": Max()})
    results = call.to(torch.float64).results(Reference())
    assert list(results) == [
        *("output", "entropy", "max[0]", "max[1]"),
        *("gradient of query", "gradient of key", "gradient of value"),
    ]
    assert {result.dtype for result in results.values()} == {torch.float64}
    assert tensors["query"].grad is None
    assert call.with_measures_of(Sdpa()).measures == {}


def test_parts_of_tuples_are_numbered():
    assert parts_of({"max": (1, 2), "entropy": 3}) == {"max[0]": 1, "max[1]": 2, "entropy": 3}
