"""One dropout for all kernels: the same seed drops the same weights, forward and backward."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.ops.dropout import dropped_weights
from regard.ops.kernels.blocks import BlockSizes
from regard.ops.kernels.blockwise import Blockwise

KERNELS = ["native", "blockwise", Blockwise(BlockSizes(rows=3, max_rows=3, elements=64, elements_per_head=2**20))]
MASKS = {
    "none": None,
    "causal": regard.Causal(),
    "graph": regard.Neighbors.from_edge_index(torch.randint(40, (2, 300))),
}


def attend_with_gradients(kernel, mask, p=0.3, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(2, h, 40, 8, generator=generator).to(dtype).requires_grad_() for h in (4, 2, 2)]
    torch.manual_seed(5)
    output = regard.attend(*inputs, mask=mask, dropout=p, kernel=kernel).output
    output.square().sum().backward()
    return [output.detach(), *(tensor.grad for tensor in inputs)]


@pytest.mark.parametrize(
    ("kernel", "mask"),
    [*((kernel, mask) for kernel in KERNELS for mask in ("none", "causal")), ("sparse", "graph")],
)
def test_every_kernel_drops_the_weights_that_the_definition_drops(kernel, mask):
    expected = attend_with_gradients("reference", MASKS[mask])
    actual = attend_with_gradients(kernel, MASKS[mask])
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_gradients_that_native_lacks_come_from_blockwise_with_the_same_dropout():
    """The gradient of a bias that all queries share."""
    query = torch.randn(1, 2, 20, 8)
    gradients = []
    for kernel in ("native", "reference"):
        torch.manual_seed(3)
        bias = torch.linspace(-1, 1, 20).requires_grad_()
        score = regard.ScaledDotProduct() + regard.Bias(bias)
        regard.attend(query, query, query, score=score, dropout=0.4, kernel=kernel).output.square().sum().backward()
        gradients.append(bias.grad)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_a_compiled_program_has_the_dropout_of_native():
    query = torch.randn(1, 2, 20, 8)

    def output():
        return regard.attend(query, query, query, dropout=0.4, measure="entropy").output

    torch.manual_seed(3)
    expected = output()
    torch.manual_seed(3)
    assert torch.equal(torch.compile(output, fullgraph=True, backend="aot_eager")(), expected)


def test_the_share_of_dropped_weights_is_the_probability():
    shape, keys = (4, 8, 500, 700), torch.arange(700)
    for p in (0.0, 1e-3, 0.1, 0.5, 0.999):
        dropped, factor = dropped_weights(p, torch.tensor(7), shape, slice(0, 4), slice(0, 8), slice(0, 500), keys)
        share, deviation = dropped.double().mean().item(), (p * (1 - p) / dropped.numel()) ** 0.5
        assert abs(share - p) <= 5 * deviation
        assert factor == pytest.approx(1 / (1 - p))
        for axis in range(4):  # no row, column or head is dropped more often than the others
            others = [other for other in range(4) if other != axis]
            shares = dropped.double().mean(others)
            spread = (p * (1 - p) / (dropped.numel() // shape[axis])) ** 0.5
            assert (shares - p).abs().max() <= 6 * spread
