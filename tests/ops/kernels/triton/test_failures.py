"""A GPU with too little memory, or whose compiler fails."""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings

import pytest
import torch

import regard
from regard.ops.kernels.triton.kernel import Triton

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None and not (sys.platform == "linux" and os.environ.get("CI") == "true"),
    reason="Triton is not installed",
)
INPUTS = torch.randn(3, 1, 2, 20, 8).unbind()


class OnCpu(Triton):
    """Its kernels are neither interpreted nor compiled: Triton finds no device."""

    devices = ("cpu",)

    def unavailable_reason(self):
        return None


class Kernel:
    """Counts how often it is compiled, and fails."""

    __name__ = "forward"

    def __init__(self, error):
        self.error, self.count = error, 0

    def __getitem__(self, grid):
        def run(*args, **options):
            self.count += 1
            raise self.error

        return run


@pytest.fixture
def broken(monkeypatch):
    from regard.ops.kernels.triton.jit import forward

    def make(error):
        broken = Kernel(error)
        monkeypatch.setattr(forward, "forward", broken)
        return broken

    return make


def results(kernel, **options):
    tensors = [tensor.clone().requires_grad_() for tensor in INPUTS]
    att = regard.attend(*tensors, measure=["entropy", "received"], mask=regard.Causal(), kernel=kernel, **options)
    (att.output.sum() + att.measured["received"].square().sum()).backward()
    return [att.output, *att.measured.values(), *(tensor.grad for tensor in tensors)]


@pytest.mark.parametrize("error", [RuntimeError("PassManager::run failed"), "resources"], ids=["compiler", "resources"])
def test_a_kernel_that_cannot_be_compiled_is_reported_once_and_the_fallback_serves(broken, error):
    if error == "resources":
        from triton.runtime.errors import OutOfResources

        error = OutOfResources(278528, 232448, "shared memory")
    found, ours = broken(error), OnCpu()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        actual = results(ours)
    of_forward, of_backward = [str(warning.message) for warning in caught]  # where Triton finds no device
    start = f"kernel 'triton' cannot compile forward: {type(error).__name__}: {error!s}"
    assert of_forward == f"{start} (on cpu); other kernels serve this call and later ones like it"
    assert "cannot compile sweep_rows: RuntimeError: 0 active drivers" in of_backward
    for one, other in zip(actual, results("blockwise"), strict=True):
        torch.testing.assert_close(one, other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results(ours)
    assert found.count == 1


def test_too_little_memory_names_the_sizes(broken):
    broken(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    text = "attention of 1 batch, 2 heads, 20 queries, 20 keys in float32 with entropy, received: CUDA out of memory"
    with pytest.raises(torch.OutOfMemoryError, match=text):
        results(OnCpu())


def test_another_call_is_compiled_again(broken):
    found, ours = broken(RuntimeError("failed")), OnCpu()
    with pytest.warns(UserWarning, match="cannot compile"):
        results(ours)
    with pytest.warns(UserWarning, match="cannot compile"):
        regard.attend(*INPUTS, kernel=ours)
    assert found.count == 2
