"""Relative positions on keys and values, compared with the paper's equations, which have a vector per cell."""

from __future__ import annotations

import pytest
import torch

from regard.ops import attend
from regard.ops.masks import Causal
from regard.ops.measures import DistanceHistogram
from regard.ops.scores import RelativeKey, ScaledDotProduct


@pytest.mark.parametrize("mask", [None, Causal()], ids=["all", "causal"])
@pytest.mark.parametrize("kernel", ["blockwise", "reference"])
@pytest.mark.parametrize(("n", "k"), [(300, 4), (5, 16), (7, 0)])
def test_keys_and_values_follow_the_equations(n, k, kernel, mask):
    random = torch.Generator().manual_seed(0)
    shapes = (2, 4, n, 8), (2, 4, n, 8), (2, 4, n, 6), (2 * k + 1, 8), (2 * k + 1, 6)
    leaves = [torch.randn(*s, generator=random, dtype=torch.float64).requires_grad_() for s in shapes]
    query, key, value, on_keys, on_values = leaves

    att = attend(
        query,
        key,
        value,
        mask=mask,
        score=ScaledDotProduct() + RelativeKey(on_keys),
        measure=DistanceHistogram(k),
        kernel=kernel,
    )
    actual = att.output + att.measured["distance_histogram"] @ on_values

    clipped = (torch.arange(n) - torch.arange(n)[:, None]).clamp(-k, k) + k
    e = torch.einsum("bhid,bhijd->bhij", query, key[:, :, None] + on_keys[clipped]) / 8**0.5  # equation 4
    if mask is not None:
        e = e.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)
    z = torch.einsum("bhij,bhijd->bhid", e.softmax(-1), value[:, :, None] + on_values[clipped])  # equation 3
    torch.testing.assert_close(actual, z, rtol=0, atol=1e-11)
    gradients = (torch.autograd.grad(each.square().sum(), leaves) for each in (actual, z))
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-9)
