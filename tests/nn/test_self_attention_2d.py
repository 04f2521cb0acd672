"""Self-attention on images against the paper's equations."""

from __future__ import annotations

import re

import pytest
import torch

from regard.errors import InvalidArgument, InvalidType
from regard.nn import SelfAttention2d


@pytest.mark.parametrize("spectral_norm", [False, True])
def test_equations_1_to_3_of_the_paper(spectral_norm):
    torch.manual_seed(0)
    layer, x = (
        SelfAttention2d(16, reduction=4, spectral_norm=spectral_norm).double().eval(),
        torch.randn(2, 16, 3, 5).double(),
    )
    with torch.no_grad():
        layer.gamma.fill_(0.7)
    flat = x.flatten(2)  # (batch, channels, places)
    f, g, h, v = (each.weight.detach()[:, :, 0, 0] for each in (layer.key, layer.query, layer.value, layer.out))
    s = torch.einsum("bci,bcj->bij", f @ flat, g @ flat)  # equation 1: s of i and j
    beta = s.softmax(1)  # over i
    o = v @ torch.einsum("bij,bci->bcj", beta, h @ flat)  # equation 2
    attended = layer(x)
    torch.testing.assert_close(attended.output, 0.7 * o.view_as(x) + x)  # equation 3
    torch.testing.assert_close(attended.weights.dense()[:, 0], beta.mT)


def test_it_starts_as_the_identity_and_learns_to_attend():
    layer, x = SelfAttention2d(8), torch.randn(1, 8, 4, 4)
    attended = layer(x)
    assert torch.equal(attended.output, x)
    attended.output.square().sum().backward()
    assert layer.gamma.grad.abs() > 0
    assert layer.query.weight.grad.abs().max() == 0


def test_spectral_norm_bounds_every_map():
    layer = SelfAttention2d(16, reduction=2, spectral_norm=True)
    with torch.no_grad():
        layer.query.parametrizations.weight.original.mul_(100)
        for _ in range(50):  # a step of the power iteration each
            layer(torch.randn(1, 16, 2, 2))
    layer.eval()
    for each in (layer.query, layer.key, layer.value, layer.out):
        assert torch.linalg.matrix_norm(each.weight[:, :, 0, 0], 2).item() == pytest.approx(1, abs=1e-3)


def test_invalid_arguments_are_named():
    with pytest.raises(InvalidArgument, match="reduction: expected a divisor of channels=12, got 8"):
        SelfAttention2d(12)
    with pytest.raises(InvalidArgument, match=r"x: expected shape \(batch, channels=8, .*, got \(1, 4, 2, 2\)"):
        SelfAttention2d(8)(torch.zeros(1, 4, 2, 2))
    for shape in ((1, 8, 0, 2), (0, 8, 2, 2)):
        with pytest.raises(InvalidArgument, match=rf"x: expected no empty axis .*, got {re.escape(str(shape))}"):
            SelfAttention2d(8)(torch.zeros(shape))
    for dtype in (torch.int64, torch.float64):
        with pytest.raises(InvalidArgument, match=f"x: expected the weights' dtype torch.float32, got {dtype}"):
            SelfAttention2d(8)(torch.zeros(1, 8, 2, 2, dtype=dtype))
    with pytest.raises(InvalidType, match="x: expected a tensor, got NoneType"):
        SelfAttention2d(8)(None)
