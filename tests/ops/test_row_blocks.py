"""Comparisons of a lazy matrix with a number: the edges, in linear memory."""

from __future__ import annotations

import pytest
import torch

from regard.errors import InvalidArgument
from regard.ops import weights
from regard.ops.masks import Causal


def test_edges_of_a_large_matrix_are_listed_in_order(monkeypatch):
    random = torch.Generator().manual_seed(0)
    W = weights(*torch.randn(2, 2, 3, 40, 4, generator=random), mask=Causal())
    monkeypatch.setattr(W, "query_blocks", lambda: (slice(start, start + 7) for start in range(0, 40, 7)))
    comparison = W > 0.1
    monkeypatch.setattr(comparison, "query_blocks", W.query_blocks)
    assert torch.equal(comparison.nonzero(), (W.dense() > 0.1).nonzero())


def test_edges_hold_no_matrix():
    random = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 1, 20_000, 4, generator=random)
    edges = weights(3 * query, 3 * key, mask=Causal()) > 0.5
    assert edges.nonzero().shape == (int(edges.sum()), 4)
    with pytest.raises(InvalidArgument, match=r"^xor: needs all 400,000,000 cells"):
        edges ^ edges


def test_a_matrix_is_indexed_by_a_comparison_of_its_shape():
    query = torch.randn(1, 2, 5, 4)
    with pytest.raises(IndexError, match=r"expected a comparison of the shape \(1, 1, 5, 5\), got \(1, 2, 5, 5\)"):
        weights(query[:, :1], query[:, :1])[weights(query, query) > 0.1]
