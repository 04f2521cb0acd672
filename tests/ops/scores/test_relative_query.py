"""Relative positions on queries and keys: the disentangled scores, with a vector per cell."""

from __future__ import annotations

import pytest
import torch

from regard.ops import attend, weights
from regard.ops.masks import Causal, Neighbors
from regard.ops.scores import RelativeKey, RelativeQuery, ScaledDotProduct

CASES = [(300, 4), (5, 16), (7, 0)]


@pytest.mark.parametrize("mask", [None, Causal()], ids=["all", "causal"])
@pytest.mark.parametrize("kernel", ["blockwise", "reference"])
@pytest.mark.parametrize(("n", "k"), CASES)
def test_contents_and_positions_are_compared_both_ways(n, k, kernel, mask):
    random = torch.Generator().manual_seed(0)
    shapes = (2, 4, n, 8), (2, 2, n, 8), (2, 2, n, 6), (2, 4, 2 * k + 1, 8), (4, 2 * k + 1, 8)
    leaves = [torch.randn(*s, generator=random, dtype=torch.float64).requires_grad_() for s in shapes]
    query, key, value, on_keys, on_queries = leaves

    score = ScaledDotProduct() + RelativeKey(on_keys) + RelativeQuery(on_queries)
    actual = attend(query, key, value, mask=mask, score=score, scale=0.2, kernel=kernel).output

    clipped = (torch.arange(n) - torch.arange(n)[:, None]).clamp(-k, k) + k
    keys, values = (each.repeat_interleave(2, 1) for each in (key, value))
    vectors = on_keys[:, :, clipped], on_queries[:, clipped]
    scores = query @ keys.mT + torch.einsum("bhid,bhijd->bhij", query, vectors[0])
    scores = (scores + torch.einsum("bhjd,hijd->bhij", keys, vectors[1])) * 0.2
    if mask is not None:
        scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)
    expected = scores.softmax(-1) @ values
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-11)
    gradients = (torch.autograd.grad(each.square().sum(), leaves) for each in (actual, expected))
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-9)


def test_positions_of_a_query_count_from_the_offset_on_graphs_too():
    random = torch.Generator().manual_seed(0)
    query, key, table = (torch.randn(*s, generator=random) for s in ((1, 2, 40, 8), (1, 2, 64, 8), (2, 9, 8)))
    edges = torch.randint(40, (60,), generator=random), torch.randint(64, (60,), generator=random)
    score = ScaledDotProduct() + RelativeQuery(table)
    on_graph = weights(query, key, mask=Neighbors(*edges), score=score)
    allowed = torch.zeros(40, 64, dtype=torch.bool).index_put(edges, torch.tensor(True))
    distance = (torch.arange(64) - torch.arange(40)[:, None] - 24).clamp(-4, 4) + 4
    scores = (query @ key.mT + torch.einsum("bhjd,hijd->bhij", key, table[:, distance])) * 8**-0.5
    expected = scores.masked_fill(~allowed, -torch.inf).softmax(-1).nan_to_num()
    torch.testing.assert_close(on_graph.dense(), expected)
    received = on_graph.measure("received")["received"]
    torch.testing.assert_close(received, expected.sum(2))
    torch.testing.assert_close(on_graph[0, 1, [7, 3]], expected[0, 1, [7, 3]])
