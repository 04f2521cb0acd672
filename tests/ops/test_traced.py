"""Programs that torch records by running a function: right for other inputs, or an error."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import regard
from regard.errors import KernelNotSupported
from regard.ops.dropout import dropout


def tensors():
    return tuple(torch.randn(1, 2, 40, 16) for _ in range(3))


def attention(query, key, value):
    attended = regard.attend(query, key, value, mask=regard.Causal(), measure=["entropy"])
    return attended.output, attended.measured["entropy"]


def gradient(query, key, value):
    query = query.detach().requires_grad_()
    output, entropy = attention(query, key, value)
    return torch.autograd.grad(output.sum() + entropy.sum(), query)


def every_third(b, h, q_idx, kv_idx):
    return (q_idx - kv_idx) % 3 == 0


def own_mask(query, key, value):
    return (regard.attend(query, key, value, mask=every_third, kernel="reference").output,)


def one_row(query, key, value):
    return (regard.weights(query, key)[0, 1, 3],)


def output(query, key, value):
    return (regard.attend(query, key, value).output,)


FUNCTIONS = [attention, gradient, own_mask, one_row, output]


@pytest.fixture(params=FUNCTIONS, ids=lambda function: function.__name__)
def function(request):
    for _ in range(4):  # so that a call like it is ready to run again
        request.param(*tensors())
    return request.param


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_a_recorded_program_computes_with_its_inputs(function, mode):
    program = make_fx(function, tracing_mode=mode)(*tensors())
    others = tensors()
    for actual, expected in zip(program(*others), function(*others), strict=True):
        torch.testing.assert_close(actual, expected)


def test_fake_tensors_have_shapes_only(function):
    expected = [result.shape for result in function(*tensors())]
    with FakeTensorMode() as mode:
        assert [result.shape for result in function(*map(mode.from_tensor, tensors()))] == expected
    if function is own_mask:  # an index of its cells is a tensor with numbers
        return
    fakes = [mode.from_tensor(tensor) for tensor in tensors()]
    assert [result.shape for result in function(*fakes)] == expected


@pytest.mark.filterwarnings(
    "ignore:.*torch.jit.trace:DeprecationWarning", "ignore:.*jit:DeprecationWarning", "ignore::torch.jit.TracerWarning"
)
def test_scripts_are_refused_or_right(function):
    if function in (output, own_mask):
        program = torch.jit.trace(function, tensors())
        others = tensors()
        torch.testing.assert_close(program(*others), function(*others))
    else:
        with pytest.raises(KernelNotSupported, match=r"^kernel: torch.jit.trace cannot record '\w+'; use torch.export"):
            torch.jit.trace(function, tensors())


def test_blocks_of_a_mask_of_the_users_are_chosen_by_numbers_which_cannot_be_recorded():
    with pytest.raises(RuntimeError, match="data-dependent"):
        make_fx(lambda *qkv: regard.attend(*qkv, mask=every_third, measure=["entropy"]).output)(*tensors())


def test_a_recorded_dropout_draws_other_elements_in_each_run():
    program = make_fx(lambda x: dropout(x, 0.5))(torch.ones(1000))
    assert not torch.equal(program(torch.ones(1000)), program(torch.ones(1000)))
