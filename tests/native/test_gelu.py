"""GELU with tanh by the native library compared with float64, and where torch computes it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import grad, jvp, vmap
from torch.nn.functional import gelu
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from regard.native import gelu as native
from regard.native.gelu import gelu_tanh, run_gelu
from regard.native.library import LEVELS, Library, library

BEST = library()
pytestmark = pytest.mark.skipif(isinstance(BEST, str), reason=f"native: {BEST}")
COUNT = native.MIN_ELEMENTS


def exact(x):
    return gelu(x.double(), approximate="tanh")


def exact_gradient(x, gradient):
    return torch.ops.aten.gelu_backward(gradient.double(), x.double(), approximate="tanh")


@pytest.fixture
def is_used(monkeypatch):
    """How often the native library is called."""
    calls = []
    monkeypatch.setattr(native, "run_gelu", lambda *arguments: calls.append(1) or run_gelu(*arguments))
    return calls


each_level = pytest.mark.parametrize(
    "level", LEVELS if isinstance(BEST, str) else LEVELS[: LEVELS.index(BEST.level) + 1]
)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


@each_dtype
@each_level
def test_each_instruction_set_equals_float64(level, dtype, monkeypatch):
    monkeypatch.setattr(native, "library", lambda: Library(level))
    torch.manual_seed(0)
    for count in (0, 1, 3, 15, 16, 17, 4095, 4096, 4097, 20_000):
        x, gradient = (4 * torch.randn(2, count)).to(dtype)
        torch.testing.assert_close(run_gelu(x), exact(x).to(dtype))
        torch.testing.assert_close(run_gelu(x, gradient), exact_gradient(x, gradient).to(dtype))


@each_dtype
@each_level
def test_large_and_missing_numbers(level, dtype, monkeypatch):
    monkeypatch.setattr(native, "library", lambda: Library(level))
    x = torch.tensor([0.0, -0.0, 1e-30, -1e-30, 8.0, -8.0, 15.0, -15.0, 1e10, -1e10, 3e38, -3e38, torch.nan, torch.inf])
    x = x.to(dtype)
    torch.testing.assert_close(run_gelu(x), exact(x).to(dtype), equal_nan=True, rtol=1e-5, atol=1e-7)
    slopes = exact_gradient(x, torch.ones_like(x))
    slopes[x == torch.inf] = 1  # torch's is NaN
    torch.testing.assert_close(run_gelu(x, torch.ones_like(x)), slopes.to(dtype), equal_nan=True, rtol=1e-5, atol=1e-6)


def test_the_number_of_threads_does_not_change_a_bit():
    x, gradient = torch.randn(2, 200_003)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        single = run_gelu(x), run_gelu(x, gradient)
        torch.set_num_threads(3)
        assert torch.equal(run_gelu(x), single[0])
        assert torch.equal(run_gelu(x, gradient), single[1])
    finally:
        torch.set_num_threads(before)


@each_dtype
def test_gradients_are_those_of_torch(is_used, dtype):
    x, gradient = (torch.randn(3, COUNT, dtype=dtype) for _ in range(2))
    x.requires_grad_()
    gelu_tanh(x).backward(gradient)
    assert len(is_used) == 2
    torch.testing.assert_close(x.grad, exact_gradient(x, gradient).to(dtype))
    expanded = gelu_tanh(x).sum()  # whose gradient has no element of its own for each x
    (actual,) = torch.autograd.grad(expanded, x)
    torch.testing.assert_close(actual, exact_gradient(x, torch.ones_like(x)).to(dtype))


def test_second_derivatives_are_those_of_torch(is_used):
    def second(function, x):
        (first,) = torch.autograd.grad(function(x).sin().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    x = torch.randn(COUNT, requires_grad=True)
    torch.testing.assert_close(second(gelu_tanh, x), second(exact, x))
    assert is_used


def test_a_changed_input_is_noticed():
    x = torch.randn(COUNT, requires_grad=True)
    hidden = x * 2
    y = gelu_tanh(hidden)
    hidden.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_checkpointing_and_inference_mode(is_used):
    x = torch.randn(COUNT, requires_grad=True)
    checkpoint(gelu_tanh, x, use_reentrant=False).sum().backward()
    torch.testing.assert_close(x.grad, exact_gradient(x, torch.ones_like(x)).float())
    assert len(is_used) == 3
    with torch.inference_mode():
        torch.testing.assert_close(gelu_tanh(torch.ones(COUNT)), exact(torch.ones(COUNT)).float())


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by torch's own jvp
def test_torch_computes_what_the_library_cannot(is_used, monkeypatch):
    x = torch.randn(4, COUNT)
    close = torch.testing.assert_close
    for other in (x[0, :10], x.half(), x.double(), x.T, nn.Parameter(x)[:, ::2]):
        close(gelu_tanh(other), gelu(other, approximate="tanh"))
    assert gelu_tanh(x.to("meta")).shape == x.shape
    close(vmap(gelu_tanh)(x), exact(x).float())
    close(grad(lambda x: gelu_tanh(x).sum())(x), exact_gradient(x, torch.ones_like(x)).float())
    close(jvp(gelu_tanh, (x,), (x,))[1], exact_gradient(x, x).float())
    with FlopCounterMode(display=False):
        close(gelu_tanh(x), exact(x).float())
    close(torch.compile(gelu_tanh, fullgraph=True, backend="aot_eager")(x), exact(x).float())
    assert not is_used
    monkeypatch.setattr(native, "library", lambda: "it was not built")
    close(gelu_tanh(x), exact(x).float())
    assert not is_used
