"""The fused loss against torch."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from regard.errors import InvalidArgument
from regard.nn import linear_cross_entropy


def problem(tokens: int = 37, vocab: int = 50, dtype: torch.dtype = torch.float64, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    hidden, weight, bias = (
        torch.randn(*shape, dtype=dtype, generator=generator).requires_grad_()
        for shape in ((tokens, 16), (vocab, 16), (vocab,))
    )
    return hidden, weight, bias, torch.randint(0, vocab, (tokens,), generator=generator)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("block", "piece"), [(1, 1), (300, 16 * 7), (10_000, 10_000)])
def test_equals_cross_entropy_with_its_gradients(monkeypatch, smoothing, with_bias, block, piece):
    monkeypatch.setattr(importlib.import_module("regard.nn.linear_cross_entropy"), "CPU_BLOCK", block)
    monkeypatch.setattr(importlib.import_module("regard.nn.linear_cross_entropy"), "CPU_PIECE", piece)
    hidden, weight, bias, target = problem()
    target[::5] = 7
    used = (hidden, weight, bias) if with_bias else (hidden, weight)
    result = linear_cross_entropy(
        hidden, weight, target, label_smoothing=smoothing, ignore_index=7, bias=bias if with_bias else None
    )
    logits = F.linear(hidden, weight, bias if with_bias else None)
    expected = F.cross_entropy(logits, target, label_smoothing=smoothing, ignore_index=7)
    torch.testing.assert_close(result.loss, expected)
    torch.testing.assert_close(result.nll, F.cross_entropy(logits, target, ignore_index=7, reduction="sum"))
    assert result.num_tokens == (target != 7).sum()
    gradients = zip(torch.autograd.grad(3 * result.loss, used), torch.autograd.grad(3 * expected, used), strict=True)
    for actual, other in gradients:
        torch.testing.assert_close(actual, other)


def test_the_gradient_of_a_large_weight_is_added_to_a_few_times_in_pieces():
    sizes = []

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.add_.Tensor:
                sizes.append(args[0].shape)
            return func(*args, **(kwargs or {}))

    tokens, vocab, d_model = 512, 32_000, 128
    hidden, weight = torch.zeros(tokens, d_model).requires_grad_(), torch.zeros(vocab, d_model).requires_grad_()
    with Products(), torch.autocast("cpu", torch.bfloat16):
        linear_cross_entropy(hidden, weight, torch.zeros(tokens, dtype=torch.int64))
    pieces = [size for size in sizes if size[1:] == (d_model,)]
    assert len(pieces) == 4
    assert {size.numel() for size in pieces} == {2**21, vocab * d_model - 2**21}


def test_gradcheck():
    hidden, weight, bias, target = problem(tokens=5, vocab=6)

    def loss(hidden, weight, bias):
        return linear_cross_entropy(hidden, weight, target, label_smoothing=0.2, ignore_index=3, bias=bias).loss

    assert torch.autograd.gradcheck(loss, (hidden, weight, bias))


def test_gradients_only_for_tensors_that_require_them():
    hidden, weight, _, target = problem()
    linear_cross_entropy(hidden.detach(), weight, target).loss.backward()
    assert weight.grad is not None
    assert hidden.grad is None
    assert not linear_cross_entropy(hidden, weight, target).nll.requires_grad
    with torch.no_grad():
        assert not linear_cross_entropy(hidden, weight, target).loss.requires_grad


def test_the_loss_of_an_impossible_token():
    hidden, weight = torch.tensor([[1.0]]), torch.tensor([[200.0], [0.0]])
    result = linear_cross_entropy(hidden, weight, torch.tensor([1])).loss
    torch.testing.assert_close(result, torch.tensor(200.0))


def test_under_autocast_it_is_as_near_as_cross_entropy_itself():
    hidden, weight, _, target = problem(tokens=500, vocab=300, dtype=torch.float32)
    exact = F.cross_entropy(F.linear(hidden, weight), target, label_smoothing=0.1)
    exact_gradients = torch.autograd.grad(exact, (hidden, weight))
    with torch.autocast("cpu", torch.bfloat16):
        result = linear_cross_entropy(hidden, weight, target, label_smoothing=0.1).loss
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, exact, rtol=2e-3, atol=0)
    for actual, other in zip(torch.autograd.grad(result, (hidden, weight)), exact_gradients, strict=True):
        assert actual.dtype == torch.float32
        assert (actual - other).norm() < 0.01 * other.norm()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_no_token_gives_nan_and_no_gradient_as_in_torch(smoothing):
    hidden, weight, bias, target = problem()
    target = torch.full_like(target, -100)
    result = linear_cross_entropy(hidden, weight, target, label_smoothing=smoothing, bias=bias)
    expected = F.cross_entropy(F.linear(hidden, weight, bias), target, label_smoothing=smoothing)
    assert result.loss.isnan()
    assert expected.isnan()
    assert result.num_tokens == 0
    used = (hidden, weight, bias)
    for actual, other in zip(torch.autograd.grad(result.loss, used), torch.autograd.grad(expected, used), strict=True):
        assert torch.equal(actual, torch.zeros_like(actual))
        assert torch.equal(actual, other)


@pytest.mark.parametrize("ignored", [-100, 7])  # with 7 some tokens are left out
@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_second_derivative_raises_and_does_not_vanish(ignored, index):
    hidden, weight, bias, target = problem()
    target[::5] = 7
    loss = linear_cross_entropy(hidden, weight, target, bias=bias, ignore_index=ignored).loss
    (gradient,) = torch.autograd.grad(loss, (hidden, weight, bias)[index], create_graph=True)
    assert gradient.requires_grad
    with pytest.raises(InvalidArgument, match="cannot be differentiated again"):
        (gradient**2).sum().backward()


def test_the_loss_of_a_token_of_subnormal_probability():
    hidden, target = torch.ones(1, 1).half(), torch.tensor([1])
    for logit in (15.0, 15.6, 16.2):  # p of the other word is 3e-7 and less, of which float16 keeps 3 bits
        weight = torch.tensor([[logit], [0.0]]).half()
        result = linear_cross_entropy(hidden, weight, target).loss
        exact = F.cross_entropy(F.linear(hidden.double(), weight.double()), target)
        torch.testing.assert_close(result.double(), exact, rtol=1e-4, atol=0)


def test_all_problems_are_in_one_error():
    with pytest.raises(InvalidArgument) as caught:
        linear_cross_entropy(
            torch.zeros(3, 4),
            torch.zeros(5, 6),
            torch.zeros(2, dtype=torch.int32),
            label_smoothing=1.5,
            bias=torch.zeros(7),
        )
    message = str(caught.value)
    for part in (
        "weight: expected shape (vocab, d_model=4), got (5, 6)",
        "target: expected shape (tokens=3), got (2,)",
        "target: expected the dtype torch.int64, got torch.int32",
        "label_smoothing: expected a number from 0 to 1, got 1.5",
        "bias: expected shape (vocab,) = (5,), got (7,)",
    ):
        assert part in message


@pytest.mark.parametrize("word", [-1, 50])
def test_invalid_targets_are_named(word):
    hidden, weight, _, target = problem()
    target[3] = word
    with pytest.raises(InvalidArgument, match=f"target: expected integers from 0 to 49, or ignore_index, got {word}"):
        linear_cross_entropy(hidden, weight, target)
