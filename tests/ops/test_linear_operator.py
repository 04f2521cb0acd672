"""The weight matrix as a linear operator: NumPy's and torch's dense algebra are the oracles."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import svds

from ops.rules import masks
from regard.errors import InvalidArgument, InvalidType
from regard.ops import Causal, weights


def matrix(batch=2, heads=4, queries=9, keys=13, mask=None, dtype=torch.float64):
    random = torch.Generator().manual_seed(0)
    query = torch.randn(batch, heads, queries, 5, generator=random, dtype=dtype).requires_grad_()
    key = torch.randn(batch, heads // 2, keys, 5, generator=random, dtype=dtype).requires_grad_()
    return weights(query, key, mask=mask), (query, key)


@pytest.mark.parametrize("mask", ["none", "causal", "lengths", "neighbours", "empty rows"])
@pytest.mark.parametrize("shape", [(9,), (9, 3), (4, 9, 3), (2, 1, 9, 3), (2, 4, 9, 1)])
def test_products_with_the_transpose_are_those_of_the_dense_one(mask, shape):
    W, leaves = matrix(mask=masks(2, 4, 9, 13)[mask])
    y = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    dense = W.dense().mT
    expected = dense @ y
    found = W.mT @ y
    assert W.mT.shape == dense.shape
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(each.square().sum(), (*leaves, y)) for each in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_what_keys_receive_is_the_product_with_the_transpose():
    W, _ = matrix()
    y = torch.randn(9, dtype=torch.float64)
    assert torch.equal(W.received(y), W.mT @ y)
    torch.testing.assert_close(W.mT.mT @ torch.ones(13, dtype=torch.float64), torch.ones(2, 4, 9, dtype=torch.float64))
    assert (W.mT @ y.float()).dtype == torch.float32
    assert repr(W.mT) == f"{W!r}.mT"


def test_scipy_finds_the_singular_values():
    W, _ = matrix(1, 2, 60, 80, mask=Causal())
    one = W.at(heads=1)
    operator = one.linear_operator()
    dense = one.dense()[0, 0].detach().numpy()
    assert operator.shape == dense.shape
    assert operator.dtype == np.float64
    np.testing.assert_allclose(operator @ np.eye(80), dense)
    np.testing.assert_allclose(operator.T @ np.eye(60), dense.T)
    found = svds(operator, k=4, return_singular_vectors=False, rng=0)
    np.testing.assert_allclose(np.sort(found)[::-1], np.linalg.svd(dense, compute_uv=False)[:4], rtol=1e-9)


def test_what_cannot_be_multiplied_is_said():
    W, _ = matrix()
    with pytest.raises(InvalidArgument, match=r"W.mT @ y: expected \(queries,\), .* queries = 9 on cpu; got \(13,\)"):
        W.mT @ torch.ones(13)
    with pytest.raises(InvalidArgument, match=r"W @ x: expected \(keys,\), .* keys = 13 on cpu; got \(9,\)"):
        W @ torch.ones(9)
    with pytest.raises(InvalidType, match=r"W.mT @ y: expected a floating-point tensor, got torch.int64"):
        W.mT @ torch.ones(9, dtype=torch.int64)
    with pytest.raises(InvalidArgument, match=r"expected one head of one sequence, .* this has batch 2 and heads 4"):
        W.linear_operator()
