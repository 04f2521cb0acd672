"""Linear layers by oneDNN compared with float64."""

from __future__ import annotations

import pytest
import torch
from torch.func import jvp as func_jvp
from torch.func import vmap

from regard.nn import linear

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch was built without oneDNN")


@pytest.fixture
def onednn(monkeypatch):
    """Linear layers are computed by oneDNN, on any processor."""
    monkeypatch.setattr(linear, "is_onednn_faster", lambda: True)


def _linears():
    """Inputs and weights (x, weight, bias): with and without axes, with gaps, few rows and none."""
    torch.manual_seed(0)
    weight, bias = torch.randn(300, 256), torch.randn(300)
    yield torch.randn(4, 5, 256), weight, bias
    yield torch.randn(256), weight, None
    yield torch.randn(3, 6, 256)[:, -1], weight, bias
    yield torch.randn(256, 7).mT, weight[20:280], bias[20:280]
    yield torch.randn(0, 256), weight, bias
    yield torch.randn(2, 300), weight.mT, None
    yield torch.randn(2, 256).expand(3, 2, 256), torch.nn.Parameter(weight), torch.nn.Parameter(bias)


@pytest.mark.parametrize("number", range(7))
def test_linear_layers_equal_those_of_float64(onednn, number):
    x, weight, bias = list(_linears())[number]
    expected = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    with torch.no_grad():
        torch.testing.assert_close(linear.linear(x, weight, bias), expected.float(), rtol=1e-5, atol=1e-4)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by torch, which calls it
def test_linear_layers_with_gradients_or_other_dtypes_are_torch_s(onednn, monkeypatch):
    x, weight, bias = next(_linears())
    taken = []
    monkeypatch.setattr(linear.functional, "linear", lambda *arguments: taken.append(arguments) or arguments[0])
    linear.linear(x, weight, bias)  # gradients may be needed
    with torch.no_grad():
        linear.linear(x, weight, bias)
        assert len(taken) == 1
        linear.linear(x.bfloat16(), weight.bfloat16(), None)
        linear.linear(x, weight[:10], bias[:10])  # small
        with torch.autocast("cpu", torch.bfloat16):
            linear.linear(x, weight, bias)
        func_jvp(lambda t: linear.linear(t, weight, bias), (x,), (x,))
        vmap(lambda t: linear.linear(t, weight, bias))(x)
        assert len(taken) == 6
        graph = torch.compile(lambda t: linear.linear(t, weight, bias), backend="eager", fullgraph=True)
        graph(x)
        assert len(taken) == 7
