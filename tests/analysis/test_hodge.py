"""The Hodge decomposition against a least-squares fit of potentials to the dense flow."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.analysis import hodge
from regard.errors import InvalidArgument, InvalidType
from regard.ops import weight_matrix


def matrix(mask=None, tokens=9):
    query, key = torch.randn(2, 2, 3, tokens, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return regard.weights(2 * query, key, mask=mask)


def by_least_squares(P):
    """Of one head: the potential whose differences are nearest to the flow, over all pairs of tokens."""
    tokens = len(P)
    flow = ((P - P.mT) / 2).flatten()
    one = torch.eye(tokens, dtype=P.dtype)
    differences = (one[:, None] - one[None]).flatten(0, 1)  # (pairs, tokens)
    gradient = differences @ torch.linalg.pinv(differences) @ flow
    return torch.stack([flow.norm(), gradient.norm(), (flow - gradient).norm()]) / P.norm()


@pytest.mark.parametrize("mask", [None, regard.Causal(), torch.arange(9)[:, None] != 4], ids=["all", "causal", "empty"])
def test_parts_are_those_of_a_least_squares_fit(mask, monkeypatch):
    monkeypatch.setattr(weight_matrix, "CELLS_PER_STEP", 300)  # several blocks
    W = matrix(mask)
    parts = torch.stack(hodge(W), -1)
    for batch in range(2):
        for head in range(3):
            torch.testing.assert_close(parts[batch, head], by_least_squares(W.dense()[batch, head]))


def test_extremes():
    x = torch.randn(1, 2, 6, 4, dtype=torch.float64)
    symmetric = hodge(regard.weights(torch.zeros_like(x), x))
    assert all((part.abs() < 1e-7).all() for part in symmetric)
    scores = torch.full((5, 5), -40.0, dtype=torch.float64)
    scores[torch.arange(5), torch.arange(1, 6) % 5] = 0.0
    circle = hodge(regard.weights(scores[None, None], torch.eye(5, dtype=torch.float64)[None, None], scale=1.0))
    torch.testing.assert_close(
        torch.stack(circle).flatten(), torch.tensor([0.5**0.5, 0, 0.5**0.5], dtype=torch.float64)
    )
    nothing = hodge(matrix(torch.zeros(9, 9, dtype=torch.bool)))
    assert all((part == 0).all() for part in nothing)


def test_what_is_not_self_attention_is_refused():
    with pytest.raises(InvalidArgument, match="hodge: expected as many queries as keys, got 3 and 9"):
        hodge(matrix().at(queries=slice(3)))
    with pytest.raises(InvalidType, match="hodge: expected a weight matrix, got Tensor"):
        hodge(matrix().dense())  # pyright: ignore[reportArgumentType]
