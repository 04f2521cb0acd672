"""Relative positions on keys and values against the paper's equations, with a vector for every cell."""

from __future__ import annotations

import pytest
import torch

from regard.ops import Causal, DistanceHistogram, RelativeKey, ScaledDotProduct, attend


@pytest.mark.parametrize("mask", [None, Causal()], ids=["all", "causal"])
@pytest.mark.parametrize("kernel", ["blockwise", "reference"])
@pytest.mark.parametrize(("n", "k"), [(300, 4), (5, 16), (7, 0)])
def test_keys_and_values_get_what_the_paper_adds(n, k, kernel, mask):
    random = torch.Generator().manual_seed(0)
    shapes = (2, 4, n, 8), (2, 4, n, 8), (2, 4, n, 6), (2 * k + 1, 8), (2 * k + 1, 6)
    leaves = [torch.randn(*s, generator=random, dtype=torch.float64).requires_grad_() for s in shapes]
    query, key, value, of_keys, of_values = leaves

    att = attend(
        query,
        key,
        value,
        mask=mask,
        score=ScaledDotProduct() + RelativeKey(of_keys),
        measure=DistanceHistogram(k),
        kernel=kernel,
    )
    found = att.output + att.measured["distance_histogram"] @ of_values

    clipped = (torch.arange(n) - torch.arange(n)[:, None]).clamp(-k, k) + k
    e = torch.einsum("bhid,bhijd->bhij", query, key[:, :, None] + of_keys[clipped]) / 8**0.5  # equation 4
    if mask is not None:
        e = e.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)
    z = torch.einsum("bhij,bhijd->bhid", e.softmax(-1), value[:, :, None] + of_values[clipped])  # equation 3
    torch.testing.assert_close(found, z, rtol=0, atol=1e-11)
    gradients = (torch.autograd.grad(each.square().sum(), leaves) for each in (found, z))
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-9)
