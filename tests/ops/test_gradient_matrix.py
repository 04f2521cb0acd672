"""Gradients of weights and products of matrices, cell by cell, against the dense matrices."""

from __future__ import annotations

import pytest
import torch

from helpers.pairwise import pairwise
from regard import Causal, weights
from regard.errors import InvalidArgument, StaleView
from regard.ops import GradientMatrix, ProductMatrix
from regard.ops.row_blocks import RowBlocks


def matrices():
    """A gradient matrix with groups of heads, weights of its shape, their products, and what they are as tensors."""
    random = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    output_gradient, value, query, key = draw(2, 4, 6, 3), draw(2, 2, 9, 3), draw(2, 4, 6, 5), draw(2, 2, 9, 5)
    G, W = GradientMatrix.of(output_gradient, value), weights(query, key, mask=Causal())
    dense = torch.einsum("bhqd,bhkd->bhqk", output_gradient, value.repeat_interleave(2, 1))
    return {
        "gradient": (G, dense),
        "product": (G * W, dense * W.dense()),
        "reversed": (torch.mul(W, G), dense * W.dense()),
        "scores": (weights(query, key).scores, weights(query, key).scores.dense()),
        "square": (W * W, W.dense() ** 2),
    }


READS = {
    "dense": lambda x: x.dense() if isinstance(x, RowBlocks) else x,
    "row": lambda x: x[1, 3, 4],
    "cell": lambda x: x[1, 3, 4, 7],
    "region": lambda x: x[:, 1:3, 2:5, ::2],
    "columns": lambda x: x[..., [3, 5]],
    "rows of lists": lambda x: x[[0, 1], :, [2, 5]],
    "bool index": lambda x: x[:, torch.tensor([True, False, True, True])],
    **{
        f"{name} over {dims}": lambda x, name=name, dims=dims: getattr(x, name)(dims)
        for name in ("sum", "mean", "amax", "amin")
        for dims in (-1, 2, 1, 0, (2, 3), (0, 1), (1, 3), (0, 1, 2, 3))
    },
    "sum of all": lambda x: x.sum(),
    "mean of all": lambda x: x.mean(),
    "keepdim": lambda x: x.sum(-1, keepdim=True),
    "max": lambda x: x.max(-1).values,
    "argmax": lambda x: x.argmax(-1),
    "topk": lambda x: x.topk(3).indices,
    "smallest": lambda x: torch.topk(x, 2, -1, False).values,
    "topk of columns": lambda x: x.mT.topk(2).values,
    "matrix times vector": lambda x: x @ torch.arange(9.0, dtype=torch.float64),
    "matrix times columns": lambda x: torch.matmul(x, torch.ones(9, 2, dtype=torch.float64)),
    "matrix times heads": lambda x: x @ torch.arange(2 * 4 * 9 * 2.0, dtype=torch.float64).view(2, 4, 9, 2),
    "vector times matrix": lambda x: torch.arange(6.0, dtype=torch.float64) @ x,
    "transpose times columns": lambda x: x.mT @ torch.arange(2 * 6 * 2.0, dtype=torch.float64).view(2, 1, 6, 2),
    "transpose": lambda x: x.transpose(-2, -1).sum(-1),
    "einsum": lambda x: torch.einsum("bhqk,bk->bhq", x, torch.ones(2, 9, dtype=torch.float64)),
    "diagonal": lambda x: x.diagonal(1, 2, 3),
    "clamp": lambda x: x.clamp(min=0).mean(1),
    "float": lambda x: x.float(),
    "stack": lambda x: torch.stack([x, x]).sum((0, 2)),
}


@pytest.mark.parametrize(("name", "read", "rows"), pairwise([*matrices()], [*READS], [1, 4, 6]))
def test_what_is_read_is_that_of_the_dense_matrix(name, read, rows, monkeypatch):
    blocks = RowBlocks.query_blocks
    monkeypatch.setattr(RowBlocks, "query_blocks", lambda matrix: blocks(matrix, 2 * 4 * 9 * rows))
    matrix, dense = matrices()[name]
    expected = READS[read](dense)
    torch.testing.assert_close(READS[read](matrix), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", matrices())
def test_parts_and_attributes(name):
    matrix, dense = matrices()[name]
    assert (matrix.shape, matrix.dtype, matrix.device) == (dense.shape, dense.dtype, dense.device)
    part = matrix.at(batch=1, heads=[3, 0, 1], queries=slice(2, 5))
    assert type(part) is type(matrix)
    torch.testing.assert_close(part.dense(), dense[1:, [3, 0, 1], 2:5])
    torch.testing.assert_close(part.sum(-1), dense[1:, [3, 0, 1], 2:5].sum(-1))
    assert not matrix.detach().requires_grad
    assert matrix.cpu().shape == dense.shape


def test_products_are_lazy_and_have_gradients():
    query, key, value = (torch.randn(1, 2, 5, 4, dtype=torch.float64).requires_grad_() for _ in range(3))
    W = weights(query, key)
    product = GradientMatrix.of(query.detach(), value) * W
    assert isinstance(product, ProductMatrix)
    assert repr(product) == "ProductMatrix(GradientMatrix × WeightMatrix, shape=(1, 2, 5, 5))"
    assert product.requires_grad
    dense = (query.detach() @ value.mT) * (query @ key.mT / 2).softmax(-1)
    for read in (lambda x: x[0, 1, 3], lambda x: x.sum(), lambda x: x.mT.topk(2).values, lambda x: x.mean((1, 2))):
        losses = [read(x).sin().sum() for x in (product, dense)]
        gradients = [torch.autograd.grad(loss, (query, key, value), retain_graph=True) for loss in losses]
        torch.testing.assert_close(*gradients)
    assert isinstance(W * 2, torch.Tensor)
    assert isinstance(W * torch.ones(5), torch.Tensor)
    assert isinstance(W * weights(query[:, :1], key[:, :1]), torch.Tensor)  # which broadcasts


def test_weights_have_the_gradient_of_their_part():
    G, dense = matrices()["gradient"]
    W = weights(torch.randn(2, 4, 6, 5).double(), torch.randn(2, 2, 9, 5).double())
    assert W.grad is None
    W = type(W)(W.request).with_gradient(G)
    assert W.grad is G
    torch.testing.assert_close(W.at(heads=[2, 3], queries=1).grad.dense(), dense[:, [2, 3], 1:2])
    torch.testing.assert_close(W.to("cpu").detach().at(batch=0).grad.dense(), dense[:1])
    torch.testing.assert_close((W.grad * W)[0, 1], dense[0, 1] * W[0, 1])


def test_changes_in_place_and_size():
    output_gradient, value = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4)
    G = GradientMatrix.of(output_gradient, value)
    assert G.nbytes == output_gradient.nbytes + value.nbytes
    large = GradientMatrix.of(torch.randn(1, 1, 20000, 4), torch.randn(1, 1, 20000, 4))
    with pytest.raises(InvalidArgument, match="the result would hold 400,000,000 cells"):
        large.dense()
    with pytest.raises(InvalidArgument, match="the result would hold 400,000,000 cells"):
        (large * large).dense()
    value.mul_(2)
    for read in (lambda: G[0, 0, 0], lambda: G.sum(-1), lambda: G.mT @ torch.ones(5), lambda: G.at(heads=0)):
        with pytest.raises(StaleView, match="this is a view of values and a gradient"):
            read()
