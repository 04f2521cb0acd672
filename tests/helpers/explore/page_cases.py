"""Recordings of one layer with random weights, and what a page must hold of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

import regard
from regard.ops.weight_matrix import WeightMatrix
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording

LONG = 600
"""Tokens of a layer that is too large for a page to hold every weight."""
NOT_COMPUTED = regard.SoftCap(regard.ScaledDotProduct(), 50.0)
"""A score by which a page does not compute weights from queries and keys."""
PRECISION = 1 / 6000
ROUNDING = 1e-6
"""Of float32: how far two ways to compute a weight may be apart."""


def one_layer(weights: WeightMatrix, **fields: Any) -> Recording:
    """A recording of one layer, whose tokens do not matter."""
    _, _, queries, keys = weights.shape
    return Recording("", "", (Layer("a", "encoder", weights, ("q",) * queries, ("k",) * keys, **fields),))


def random_weights(queries: int, keys: int, heads: int = 2, **options: Any) -> WeightMatrix:
    """Rows with most weight on few keys in one head, and spread out in the next."""
    generator = torch.Generator().manual_seed(queries)
    scale = torch.tensor([3.0, 0.5]).repeat(heads)[:heads, None, None]
    query = scale * torch.randn(1, heads, queries, 8, generator=generator)
    return regard.weights(query, torch.randn(1, heads, keys, 8, generator=generator), **options)


def long_weights(**options: Any) -> WeightMatrix:
    """Weights that a page does not compute from queries and keys, unless another score is given."""
    return random_weights(LONG, LONG, **{"score": NOT_COMPUTED, **options})


def block_means(dense: Tensor, size: int) -> np.ndarray:
    """How much a query gives to a block of keys, averaged over a block of queries: (heads, rows, columns)."""
    rows = torch.stack([part.mean(1) for part in dense.split(size, 1)], 1)
    return torch.stack([part.sum(2) for part in rows.split(size, 2)], 2).numpy()


def assert_stored(stored: np.ndarray, exact: np.ndarray, rounding: float = ROUNDING) -> None:
    """A stored weight is within the precision, and as near as any that can be stored."""
    assert np.abs(stored - exact).max() <= PRECISION + rounding
    np.testing.assert_allclose(3000 * stored, np.round(3000 * stored), atol=1e-9)


def decimals(weights: Any) -> list[str]:
    """Weights as a page prints them."""
    return [f"{weight:.3f}" for weight in np.asarray(weights).ravel().tolist()]


def claim_weights(*row: float) -> WeightMatrix:
    """A matrix of one row that claims to have other weights than it computes."""
    weights = torch.tensor([[[row]]])

    class ClaimedWeights(WeightMatrix):
        def dense(self) -> Tensor:
            return weights

    return ClaimedWeights(random_weights(1, len(row), heads=1).request)


def twelve_layers(tokens: int) -> Recording:
    """Twelve layers of twelve heads, from nearly uniform to sharp ones, without room for queries and keys on a page."""
    generator = torch.Generator().manual_seed(0)
    names = tuple(f"▁word{index}" for index in range(tokens))
    spread = torch.linspace(0.3, 2.5, 12)[:, None, None]
    layers = []
    for layer in range(12):
        query, key = (torch.randn(1, 12, tokens, 64, generator=generator) for _ in range(2))
        layers.append(Layer(f"encoder.{layer}", "encoder", regard.weights(spread * query, key), names, names))
    return Recording("", "", tuple(layers))
