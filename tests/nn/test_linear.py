"""Linear layers by oneDNN and by the native library compared with float64."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch
from torch.func import jvp as func_jvp
from torch.func import vmap
from torch.fx import symbolic_trace
from torch.utils.flop_counter import FlopCounterMode

from regard.native.library import library
from regard.nn import linear


@pytest.fixture(params=["oneDNN", "native"])
def by_library(monkeypatch, request):
    """Linear layers are computed by oneDNN on any processor, or those of few rows by the native library."""
    monkeypatch.setattr(linear, "is_onednn_faster", lambda: True)
    monkeypatch.setattr(linear, "MIN_WEIGHTS", 10_000)
    if request.param == "oneDNN":
        if not torch.backends.mkldnn.is_available():
            pytest.skip("this torch was built without oneDNN")
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
        torch.testing.assert_close(symbolic_trace(lambda x: run(x))(x), torch.addmm(bias, x, weight.T))
        with FlopCounterMode(display=False) as flops:
            run(x)
        assert flops.get_total_flops() == 2 * rows * 256 * 300


def test_a_result_without_gradients_can_be_changed_where_they_are_enabled(by_library):
    x, weight, bias = torch.randn(2, 256), torch.randn(300, 256), torch.randn(300, requires_grad=True)
    with torch.no_grad():
        y = linear.linear(x, weight, bias)
    y += bias  # fails for a view that was made without gradients
    y.sum().backward()
    assert torch.equal(bias.grad, torch.full((300,), 2.0))


def test_flops_are_counted_in_each_thread(by_library):
    x, weight = torch.randn(2, 256), torch.randn(300, 256)
    entered, left = threading.Barrier(2, timeout=30), threading.Barrier(2, timeout=30)

    def first():
        with FlopCounterMode(display=False):
            entered.wait()
        left.wait()

    def second():
        entered.wait()
        with torch.no_grad(), FlopCounterMode(display=False) as flops:
            left.wait()
            linear.linear(x, weight, None)
        return flops.get_total_flops()

    with ThreadPoolExecutor(2) as pool:
        pool.submit(first)
        assert pool.submit(second).result() == 2 * 2 * 256 * 300


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", ["negated", "zero", "sparse", "oneDNN's", "nested", "functional", "in a mode"])
def test_inputs_of_every_kind_equal_torch(by_library, kind):
    x, weight = torch.randn(2, 256), torch.randn(300, 256)
    made = {
        "negated": lambda: torch._neg_view(x),
        "zero": lambda: torch._efficientzerotensor(2, 256),
        "sparse": x.to_sparse,
        "oneDNN's": x.to_mkldnn,
        "nested": lambda: torch.nested.nested_tensor([x, x[:1]]),
    }.get(kind, lambda: x)()

    def run(function):
        if kind == "functional":
            return torch.func.functionalize(lambda x: function(x, weight, None))(made)
        with torch.device("cpu") if kind == "in a mode" else nullcontext():
            return function(made, weight, None)

    with torch.no_grad():
        actual, expected = run(linear.linear), run(torch.nn.functional.linear)
    if kind == "nested":
        actual, expected = actual.values(), expected.values()
    assert actual.layout == expected.layout
    torch.testing.assert_close(actual.to_dense(), expected.to_dense(), rtol=1e-5, atol=1e-4)


def _errors():
    """Inputs, weights and biases that do not fit, and a weight whose memory was freed, as sharded training does."""
    x, weight, bias = torch.randn(2, 256), torch.randn(300, 256), torch.randn(300)
    freed = torch.randn(300, 256)
    freed.untyped_storage().resize_(0)
    return {
        "features": (x[:, 1:], weight, bias),
        "short bias": (x, weight, bias[:100]),
        "long bias": (x, weight, torch.randn(400)),
        "dtype": (x, weight.bfloat16(), bias),
        "freed": (x, freed, bias),
    }


@pytest.mark.parametrize("kind", _errors())
def test_errors_are_those_of_torch(by_library, kind):
    arguments = _errors()[kind]
    with torch.no_grad():
        with pytest.raises(RuntimeError) as expected:
            torch.nn.functional.linear(*arguments)
        with pytest.raises(RuntimeError, match=re.escape(str(expected.value))):
            linear.linear(*arguments)


@pytest.mark.parametrize("bias", [torch.ones(1), torch.ones(()), torch.ones(2, 300), torch.ones(1, 300)])
def test_a_bias_is_broadcast_as_by_torch(by_library, bias):
    x, weight = torch.randn(2, 256), torch.randn(300, 256)
    with torch.no_grad():
        expected = torch.nn.functional.linear(x, weight, bias)
        torch.testing.assert_close(linear.linear(x, weight, bias), expected, rtol=1e-5, atol=1e-4)
