"""What a forward pass leaves to the backward pass."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.ops.kernels.base import Kernel, RunOptions
from regard.ops.kernels.blockwise import Blockwise
from regard.ops.kernels.differentiable import ForwardResult


class SavesOutput(Blockwise):
    """Saves a number for each row; its backward pass gets the output before it."""

    name = "saves"
    saves_first_result = True
    saved: tuple = ()

    def saved_specs(self, inputs):
        return ((inputs.request.shape[:3], torch.float32),)

    def forward(self, inputs, options: RunOptions):
        output, results, _ = super().forward(inputs, options)
        numbers = output.new_full(output.shape[:3], 7.0)
        return ForwardResult(output, results, (numbers,) if options.saves else ())

    def backward(self, inputs, options, needed, gradients, saved):
        SavesOutput.saved = tuple(each.clone() for each in saved)
        return super().backward(inputs, options, needed, gradients, ())


@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
def test_the_backward_pass_gets_the_first_result_and_what_was_saved(is_compiled, monkeypatch):
    kernel = SavesOutput()
    monkeypatch.setitem(Kernel.registered, "saves", kernel)
    tensors = [tensor.requires_grad_() for tensor in torch.randn(3, 1, 2, 5, 4).unbind()]

    def run(*tensors):
        att = regard.attend(*tensors, measure="entropy", kernel=kernel)
        return att.output, att.measured["entropy"]

    if is_compiled:
        run = torch.compile(run, fullgraph=True, backend="aot_eager")
    output, entropy = run(*tensors)
    gradients = torch.autograd.grad(output.sum() + entropy.sum(), tensors)
    first, numbers = SavesOutput.saved
    assert torch.equal(first, output)
    assert torch.equal(numbers, torch.full((1, 2, 5), 7.0))
    att = regard.attend(*tensors, measure="entropy", kernel="blockwise")
    expected = torch.autograd.grad(att.output.sum() + att.measured["entropy"].sum(), tensors)
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other)
