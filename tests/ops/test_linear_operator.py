"""The weight matrix as a linear operator, compared with the dense algebra of torch and NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import svds

from helpers.ops.cases import masks
from regard.errors import InvalidArgument, InvalidType
from regard.ops import weights
from regard.ops.masks import Causal


def matrix(batch=2, heads=4, queries=9, keys=13, mask=None, dtype=torch.float64):
    random = torch.Generator().manual_seed(0)
    query = torch.randn(batch, heads, queries, 5, generator=random, dtype=dtype).requires_grad_()
    key = torch.randn(batch, heads // 2, keys, 5, generator=random, dtype=dtype).requires_grad_()
    return weights(query, key, mask=mask), (query, key)


@pytest.mark.parametrize("mask", ["none", "causal", "lengths", "neighbors", "empty rows"])
def test_products_with_the_transpose_are_those_of_the_dense_matrix(mask, subtests):
    for shape in ((9,), (9, 3), (4, 9, 3), (2, 1, 9, 3), (2, 4, 9, 1)):
        with subtests.test(shape=shape):
            check_product(mask, shape)


def check_product(mask, shape):
    W, leaves = matrix(mask=masks(2, 4, 9, 13)[mask])
    y = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    dense = W.dense().mT
    expected = dense @ y
    product = W.mT @ y
    assert W.mT.shape == dense.shape
    torch.testing.assert_close(product, expected)
    gradients = [torch.autograd.grad(each.square().sum(), (*leaves, y)) for each in (product, expected)]
    torch.testing.assert_close(*gradients)


def test_received_is_the_product_with_the_transpose():
    W, _ = matrix()
    y = torch.randn(9, dtype=torch.float64)
    assert torch.equal(W.received(y), W.mT @ y)
    torch.testing.assert_close(W.mT.mT @ torch.ones(13, dtype=torch.float64), torch.ones(2, 4, 9, dtype=torch.float64))
    assert (W.mT @ y.float()).dtype == torch.float32
    assert repr(W.mT) == f"{W!r}.mT"


@pytest.mark.parametrize("mask", ["none", "causal", "lengths", "neighbors", "empty rows", "own"])
def test_the_strongest_queries_of_each_key_are_those_of_the_dense_matrix(mask, subtests):
    for k in (1, 4, 12):
        with subtests.test(k=k):
            check_topk(mask, k)


def check_topk(mask, k):
    W, leaves = matrix(mask=masks(2, 4, 9, 13)[mask])
    values, indices = W.mT.topk(k)
    dense = W.dense().mT
    expected = torch.nn.functional.pad(dense.sort(-1, descending=True).values, (0, max(0, k - 9)))[..., :k]
    assert values.shape == indices.shape == (2, 4, 13, k)
    torch.testing.assert_close(values, expected)
    torch.testing.assert_close(dense.gather(-1, indices.clamp(min=0)).where(indices >= 0, 0.0), expected)
    assert torch.equal(indices >= 0, expected > 0)
    for row in indices.flatten(0, 2).tolist():
        chosen = [index for index in row if index >= 0]
        assert len(set(chosen)) == len(chosen)
    rows = torch.linspace(0.5, 1.5, k, dtype=torch.float64)
    actual, right = (torch.autograd.grad((each * rows).sum(), leaves) for each in (values, expected))
    torch.testing.assert_close(actual, right)
    with torch.no_grad():
        plain = W.mT.topk(k)
    torch.testing.assert_close(plain.values, values)
    assert torch.equal(plain.indices, indices)


@pytest.mark.parametrize(("k", "error"), [(0, InvalidArgument), (2.5, InvalidType), (True, InvalidType)])
def test_an_invalid_k_is_rejected(k, error):
    W, _ = matrix()
    with pytest.raises(error, match=f"k: expected an int of at least 1, got {k}"):
        W.mT.topk(k)


def test_scipy_computes_the_singular_values():
    W, _ = matrix(1, 2, 60, 80, mask=Causal())
    head = W.at(heads=1)
    operator = head.linear_operator()
    dense = head.dense()[0, 0].detach().numpy()
    assert operator.shape == dense.shape
    assert operator.dtype == np.float64
    np.testing.assert_allclose(operator @ np.eye(80), dense)
    np.testing.assert_allclose(operator.T @ np.eye(60), dense.T)
    values = svds(operator, k=4, return_singular_vectors=False, rng=0)
    np.testing.assert_allclose(np.sort(values)[::-1], np.linalg.svd(dense, compute_uv=False)[:4], rtol=1e-9)


def test_invalid_operands_are_rejected():
    W, _ = matrix()
    with pytest.raises(
        InvalidArgument, match=r"W.mT @ y: expected shape \(queries,\), .* queries = 9 on cpu, got \(13,\)"
    ):
        W.mT @ torch.ones(13)
    with pytest.raises(InvalidArgument, match=r"W @ x: expected shape \(keys,\), .* keys = 13 on cpu, got \(9,\)"):
        W @ torch.ones(9)
    with pytest.raises(InvalidType, match=r"W.mT @ y: expected a floating-point tensor, got int64 \(9,\)"):
        W.mT @ torch.ones(9, dtype=torch.int64)
    with pytest.raises(
        InvalidArgument, match=r"linear_operator: expected one head .*, got batch 2 and heads 4; select"
    ):
        W.linear_operator()
