"""Linear layers by oneDNN and by the native library compared with float64."""

from __future__ import annotations

import pytest
import torch
from torch.func import jvp as func_jvp
from torch.func import vmap
from torch.utils.flop_counter import FlopCounterMode

from regard.nn import linear
from regard.ops.kernels.native.library import library

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch was built without oneDNN")


@pytest.fixture(params=["oneDNN", "native"])
def by_library(monkeypatch, request):
    """Linear layers are computed by oneDNN on any processor, or those of few rows by the native library."""
    monkeypatch.setattr(linear, "is_onednn_faster", lambda: True)
    if request.param == "oneDNN":
        monkeypatch.setattr(linear, "linear_of_few_rows", lambda *arguments: None)
    elif isinstance(library(), str):
        pytest.skip(f"native: {library()}")


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
    yield torch.complex(torch.randn(4, 256), torch.randn(4, 256)).conj().imag, weight, bias


@pytest.mark.parametrize("number", range(8))
def test_linear_layers_equal_those_of_float64(by_library, number):
    x, weight, bias = list(_linears())[number]
    expected = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    with torch.no_grad():
        torch.testing.assert_close(linear.linear(x, weight, bias), expected.float(), rtol=1e-5, atol=1e-4)


@pytest.mark.filterwarnings("ignore:`torch.jit")  # by torch, which calls it
@pytest.mark.parametrize("rows", [20, 2])
def test_linear_layers_with_gradients_or_in_a_transformation_are_torch_s(by_library, monkeypatch, rows):
    x, weight, bias = torch.randn(rows, 256), torch.randn(300, 256), torch.randn(300)
    counted = []

    def count(*arguments):
        counted.append(arguments)
        return torch.addmm(arguments[2], arguments[0], arguments[1].T)

    monkeypatch.setattr(linear.functional, "linear", count)

    def run(x, weight=weight, bias=bias):
        return linear.linear(x, weight, bias)

    run(x)  # gradients may be needed
    with torch.no_grad():
        run(x)
        assert len(counted) == 1
        run(x.double(), weight.double(), bias.double())
        run(x, weight[:10], bias[:10])  # small
        with torch.autocast("cpu", torch.bfloat16):
            run(x)
        func_jvp(run, (x,), (x,))
        vmap(lambda row: run(row[None]))(x)
        assert len(counted) == 6
        torch.compile(run, backend="eager", fullgraph=True)(x)
        assert len(counted) == 7
        traced = torch.jit.trace(run, x)
        torch.testing.assert_close(traced(2 * x), torch.addmm(bias, 2 * x, weight.T))
        with FlopCounterMode(display=False) as flops:
            run(x)
        assert flops.get_total_flops() == 2 * rows * 256 * 300
        with pytest.raises(RuntimeError, match="shapes"):
            run(x[:, 1:])
