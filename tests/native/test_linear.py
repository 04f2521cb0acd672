"""Linear layers by oneDNN and by the native library compared with float64."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch
from torch.func import jvp as func_jvp
from torch.func import vmap
from torch.fx import symbolic_trace
from torch.utils.flop_counter import FlopCounterMode

from regard.native import linear
from regard.native.library import LEVELS, Library, library

needs_library = pytest.mark.skipif(isinstance(library(), str), reason=f"native: {library()}")
BEST = library()
ROWS = (1, 2, 3, 4, 5, 7, 8)


def tensors(rows, in_features, out_features, dtype=torch.float32):
    torch.manual_seed(rows)
    return [
        torch.randn(*shape).to(dtype) for shape in ((rows, in_features), (out_features, in_features), (out_features,))
    ]


@needs_library
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("level", LEVELS if isinstance(BEST, str) else LEVELS[: LEVELS.index(BEST.level) + 1])
def test_each_instruction_set_equals_float64(level, dtype):
    loaded = Library(level)
    for rows in ROWS:
        for in_features, out_features in ((1, 1), (3, 4), (15, 5), (16, 8), (17, 3), (64, 31), (333, 66)):
            x, weight, bias = tensors(rows, in_features, out_features, dtype)
            exact = x.double() @ weight.double().T
            torch.testing.assert_close(linear.multiply(loaded, x, weight, None), exact.to(dtype))
            torch.testing.assert_close(linear.multiply(loaded, x, weight, bias), (exact + bias.double()).to(dtype))


@needs_library
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_neither_other_rows_nor_threads_change_a_bit(dtype):
    most = linear.MAX_ROWS[dtype]
    x, weight, bias = tensors(most, 300, 2001, dtype)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        full = linear.linear_of_few_rows(x, weight, bias)
        torch.set_num_threads(3)
        for rows in range(1, most + 1):
            assert torch.equal(linear.linear_of_few_rows(x[-rows:], weight, bias), full[-rows:])
    finally:
        torch.set_num_threads(before)


@needs_library
def test_axes_and_strides_of_the_input():
    x, weight, bias = tensors(6, 20, 7)
    exact = torch.nn.functional.linear(x, weight, bias)
    close = torch.testing.assert_close
    close(linear.linear_of_few_rows(x.view(2, 3, 20), weight, bias), exact.view(2, 3, 7))
    close(linear.linear_of_few_rows(x[0], weight, bias), exact[0])
    close(linear.linear_of_few_rows(x[::2], weight, bias), exact[::2])
    close(linear.linear_of_few_rows(x.T.contiguous().T, weight, bias), exact)
    close(linear.linear_of_few_rows(x[:1].expand(4, 20), weight, bias), exact[:1].expand(4, 7))
    assert linear.linear_of_few_rows(x[:0], weight, bias).shape == (0, 7)
    assert linear.linear_of_few_rows(x, weight[:0], bias[:0]).shape == (6, 0)
    assert torch.equal(linear.linear_of_few_rows(x[:, :0], weight[:, :0].contiguous(), bias), bias.expand(6, 7))


@needs_library
def test_infinite_and_missing_numbers_stay_in_their_row_and_feature():
    x, weight, bias = tensors(3, 40, 6)
    x[1, 3], weight[2, 39], bias[5] = torch.nan, torch.inf, -torch.inf
    y = linear.linear_of_few_rows(x, weight, bias)
    expected = torch.nn.functional.linear(x, weight, bias)
    torch.testing.assert_close(y, expected, equal_nan=True)
    assert y[1].isnan().all()
    assert y[0].isfinite().tolist() == [True, True, False, True, True, False]


@needs_library
def test_unsupported_inputs_go_to_torch(monkeypatch):
    x, weight, bias = tensors(9, 8, 4)
    assert linear.linear_of_few_rows(x, weight, bias) is None  # rows
    assert linear.linear_of_few_rows(x[:1].half(), weight.half(), bias.half()) is None
    assert linear.linear_of_few_rows(x[:1].double(), weight.double(), bias.double()) is None
    monkeypatch.setattr(linear, "library", lambda: "it was not built")
    assert linear.linear_of_few_rows(x[:1], weight, bias) is None


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


def test_the_mode_of_the_first_call_does_not_decide_which_tensors_are_plain():
    with torch.inference_mode():
        inference = torch.empty(2)
        linear._plain_keys.cache_clear()
        linear._plain_keys()
    assert {linear._keys_of(torch.empty(2)), linear._keys_of(inference)} == linear._plain_keys()


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


def test_nothing_is_computed_at_import():
    code = "import torch; del torch._C._dispatch_keys; import regard.native.linear, regard.nn"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
